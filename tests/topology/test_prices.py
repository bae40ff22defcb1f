"""Prices of collectives: published bandwidths, and the properties that a search relies on."""

from __future__ import annotations

from dataclasses import replace
from time import process_time
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layoutopt.optimizer.specs.errors import InputError
from layoutopt.optimizer.specs.gpu_catalog import generations
from layoutopt.optimizer.topology.groups import Digit, GroupBatch
from layoutopt.optimizer.topology.links import link_table, load_links
from layoutopt.optimizer.topology.mesh import mesh_groups
from layoutopt.optimizer.topology.prices import Topology

if TYPE_CHECKING:
    from collections.abc import Callable

    from layoutopt.optimizer.specs.cluster import ClusterSpec

    MakeCluster = Callable[..., ClusterSpec]
    MakeGroup = Callable[[int, int, int], GroupBatch]

LINKS = load_links(alone=True)
COLLECTIVES = ("all_reduce_s", "all_gather_s", "reduce_scatter_s", "all_to_all_s", "p2p_s")
PODS = {"leaf": (256, 1.0), "pod": (3072, 1.0), "spine": (16384, 7.0)}


def bus_bandwidth(topology: Topology, collective: str, size_bytes: float, group: GroupBatch) -> float:
    """Bytes/s as nccl-tests reports them (doc/PERFORMANCE.md)."""
    members = int(group.size[0])
    factor = (members - 1) / members * (2 if collective == "all_reduce_s" else 1)
    return float(factor * size_bytes / getattr(topology, collective)(size_bytes, group)[0])


@pytest.mark.parametrize(
    ("collective", "nodes", "size_bytes", "published", "tolerance"),
    [
        ("all_reduce_s", 1, 4e9, 476e9, 0.03),  # NVIDIA/nccl-tests issue 290, 8xH100
        ("all_reduce_s", 1, 4e6, 143e9, 0.25),  # stas00/ml-engineering network/README, 4 MB on 8xH200
        ("all_gather_s", 1, 4e9, 361e9, 0.03),  # the same, 8xH200
        ("reduce_scatter_s", 1, 4e9, 363e9, 0.03),  # the same
        ("all_reduce_s", 2, 16e9, 470e9, 0.10),  # NVIDIA/nccl-tests issue 309, 8x400 Gbit/s per node
        ("all_reduce_s", 4, 16e9, 366e9, 0.10),  # the same
        ("all_reduce_s", 32, 16e9, 340e9, 0.15),  # NVIDIA/nccl issue 1218, 256 GPUs
        ("all_gather_s", 10, 16e9, 324e9, 0.15),  # xxrjun/nccl-tests-cluster, 80 GPUs
    ],
)
def test_published_bus_bandwidth(
    collective: str, nodes: int, size_bytes: float, published: float, tolerance: float,
    make_cluster: MakeCluster, make_group: MakeGroup,
) -> None:  # fmt: skip
    """H100 and H200 nodes with NVLink switches that reduce."""
    topology = Topology(make_cluster(8 * nodes, in_switch_reduction=True), LINKS)
    measured = bus_bandwidth(topology, collective, size_bytes, make_group(8 * nodes, 1, 8 * nodes))
    assert measured == pytest.approx(published, rel=tolerance)


def test_two_nodes_beat_four(make_cluster: MakeCluster, make_group: MakeGroup) -> None:
    """All-reduce on two nodes moves the bytes once each way (470 against 366 GB/s published)."""
    topology = Topology(make_cluster(32, in_switch_reduction=True), LINKS)
    two, four = (bus_bandwidth(topology, "all_reduce_s", 16e9, make_group(n, 1, 32)) for n in (16, 32))
    assert two > 1.2 * four


def test_nvlink_domain_beyond_a_node(make_cluster: MakeCluster, make_group: MakeGroup) -> None:
    """NVL72: 72 ranks on 18 nodes reduce at NVLink speed (published 850 GB/s in the switch, 680 by rings)."""
    base = make_cluster(576, gpus_per_node=4, nvlink_domain=72, nics_per_node=4, in_switch_reduction=True)
    gpu = replace(base.gpu, generation=generations()["blackwell-gb200"], nvlink_bytes_per_s=900e9)
    topology = Topology(replace(base, gpu=gpu), LINKS)
    assert bus_bandwidth(topology, "all_reduce_s", 16e9, make_group(72, 1, 576)) == pytest.approx(
        850e9, rel=0.02
    )
    rings = Topology(replace(base, gpu=gpu, in_switch_reduction=False), LINKS)
    assert bus_bandwidth(rings, "all_reduce_s", 16e9, make_group(72, 1, 576)) == pytest.approx(
        680e9, rel=0.02
    )
    assert topology.all_gather_s(1e9, make_group(9, 8, 576)) < topology.all_gather_s(
        1e9, make_group(9, 64, 576)
    )


def test_one_rank_per_node_gets_one_nic(make_cluster: MakeCluster, make_group: MakeGroup) -> None:
    """A data-parallel group with tp 8 runs at one NIC per rank, whatever its size: 50 GB/s nominal."""
    topology = Topology(make_cluster(1024), LINKS.ideal())
    seconds = topology.all_gather_s(17.65e9, make_group(128, 8, 1024))[0]
    assert seconds == pytest.approx(127 / 128 * 17.65e9 / 50e9)


def test_fewer_nics_than_gpus_are_shared(make_cluster: MakeCluster, make_group: MakeGroup) -> None:
    """Four NICs for eight GPUs halve the bandwidth (NVIDIA/nccl issue 1357)."""
    eight, four = (Topology(make_cluster(64, nics_per_node=n), LINKS.ideal()) for n in (8, 4))
    for collective in COLLECTIVES:
        whole, half = (getattr(t, collective)(1e9, make_group(8, 8, 64))[0] for t in (eight, four))
        assert half == pytest.approx(2 * whole)


def test_oversubscribed_spine(make_cluster: MakeCluster, make_group: MakeGroup) -> None:
    """1:7 above pods of 3,072: nearly free for rings in rank order, seven times as slow for all-to-all."""
    flat, pods = (Topology(make_cluster(16384, levels=levels), LINKS.ideal()) for levels in (None, PODS))
    data_parallel = make_group(2048, 8, 16384)
    ring_flat, ring_pods = (t.all_gather_s(1e9, data_parallel)[0] for t in (flat, pods))
    assert ring_pods == pytest.approx(ring_flat)
    exchange_flat, exchange_pods = (t.all_to_all_s(1e9, data_parallel)[0] for t in (flat, pods))
    assert exchange_pods > 5 * exchange_flat
    assert pods.p2p_s(1e9, make_group(16, 1024, 16384))[0] == pytest.approx(7 / 3 * 1e9 / 50e9)
    assert pods.p2p_s(1e9, make_group(2, 8192, 16384))[0] == pytest.approx(7 * 1e9 / 50e9)


def test_pairs_of_nvlink_use_the_host_link(make_cluster: MakeCluster, make_group: MakeGroup) -> None:
    """PCIe GPUs bridged in pairs: four ranks of a node go at the host link's speed."""
    topology = Topology(make_cluster(8, nvlink_domain=2), LINKS.ideal())
    assert topology.all_gather_s(1e9, make_group(2, 1, 8))[0] == pytest.approx(0.5 * 1e9 / 450e9)
    assert topology.all_gather_s(1e9, make_group(4, 1, 8))[0] == pytest.approx(0.75 * 1e9 / 2 / 64e9)
    assert topology.all_gather_s(1e9, make_group(4, 2, 8))[0] == pytest.approx(0.75 * 1e9 / 64e9)


def test_mesh_of_links(make_cluster: MakeCluster, make_group: MakeGroup) -> None:
    """Eight MI300X, each with a link of 64 GB/s to each other: a pair has one link, all eight have seven."""
    base = make_cluster(8)
    gpu = replace(base.gpu, generation=generations()["cdna3"], nvlink_bytes_per_s=448e9)
    topology = Topology(replace(base, gpu=gpu), LINKS.ideal())
    for size in (2, 4, 8):  # every shard goes straight to every peer over its own link
        assert topology.all_gather_s(1e9, make_group(size, 1, 8))[0] == pytest.approx(1e9 / size / 64e9)
        assert topology.all_to_all_s(1e9, make_group(size, 1, 8))[0] == pytest.approx(1e9 / size / 64e9)
        assert topology.p2p_s(1e9, make_group(size, 1, 8))[0] == pytest.approx(1e9 / 64e9)


def test_split_exchange(make_cluster: MakeCluster, make_group: MakeGroup) -> None:
    """Bytes inside and beyond the domain run at the same time; an even split equals the plain all-to-all."""
    topology = Topology(make_cluster(64), LINKS.without_latency())
    group = make_group(64, 1, 64)
    plain = topology.all_to_all_s(1e9, group)[0]
    split = topology.all_to_all_split_s(1e9 * 7 / 64, 1e9 * 56 / 64, group)[0]
    assert split == pytest.approx(plain)
    only_near = topology.all_to_all_split_s(1e9, 0.0, group)[0]
    assert only_near < topology.all_to_all_split_s(0.0, 1e9, group)[0]
    assert topology.all_to_all_split_s(1e9, 1e7, group)[0] == pytest.approx(only_near)


def test_sharing_slows_the_network_only(make_cluster: MakeCluster, make_group: MakeGroup) -> None:
    """Two axes on the same NICs take twice as long; inside a node nothing changes."""
    topology = Topology(make_cluster(64), LINKS.ideal())
    for collective in COLLECTIVES:
        price = getattr(topology, collective)
        across, inside = make_group(8, 8, 64), make_group(8, 1, 64)
        assert price(1e9, across, 2.0)[0] == pytest.approx(2 * price(1e9, across)[0])
        assert price(1e9, inside, 2.0)[0] == price(1e9, inside)[0]
    split = topology.all_to_all_split_s(0.0, 1e9, make_group(8, 8, 64), np.array([2.0]))
    assert split == pytest.approx(2 * topology.all_to_all_split_s(0.0, 1e9, make_group(8, 8, 64)))


@settings(max_examples=80)
@given(
    size=st.sampled_from([2, 3, 4, 8, 16, 48]),
    stride=st.sampled_from([1, 2, 4, 8, 16]),
    size_bytes=st.floats(0, 1e11),
    collective=st.sampled_from(COLLECTIVES),
)
def test_monotone_and_continuous_in_bytes(
    size: int,
    stride: int,
    size_bytes: float,
    collective: str,
    make_cluster: MakeCluster,
    make_group: MakeGroup,
) -> None:
    """More bytes never cost less, and a little more costs a little more."""
    topology = Topology(make_cluster(768, levels=PODS, in_switch_reduction=True), LINKS)
    group = make_group(size, stride, 768)
    low, same, high = (
        getattr(topology, collective)(value, group)[0]
        for value in (size_bytes, size_bytes * (1 + 1e-9), size_bytes * 1.5 + 1)
    )
    assert 0 < low <= same <= high
    assert same - low <= 1e-8 * low
    assert high <= 1.5 * low + 1e-8


def test_groups_of_one_cost_nothing(make_cluster: MakeCluster, make_group: MakeGroup) -> None:
    """Exactly 0, with latencies and whatever the bytes."""
    topology = Topology(make_cluster(64, in_switch_reduction=True), LINKS)
    for collective in COLLECTIVES:
        assert getattr(topology, collective)(np.array([1e9]), make_group(1, 8, 64))[0] == 0.0
    assert topology.all_to_all_split_s(0.0, 0.0, make_group(1, 1, 64))[0] == 0.0


def test_batches_equal_their_rows(make_cluster: MakeCluster) -> None:
    """A long batch gives each row the price it has alone, with and without sharing."""
    rng = np.random.default_rng(5)
    tp, cp, pp, dp = (2 ** rng.integers(0, 4, 40_000) for _ in range(4))
    groups = mesh_groups("tp-cp-pp-ep-dp", tp=tp, cp=cp, pp=pp, dp=dp, ep=1, etp=1)
    topology = Topology(make_cluster(4096, levels={"pod": (512, 1.0), "spine": (4096, 7.0)}), LINKS)
    size_bytes, sharing = rng.random(40_000) * 1e9, rng.integers(1, 3, 40_000)
    for collective in COLLECTIVES:
        price = getattr(topology, collective)
        plain, shared = price(size_bytes, groups.dp_cp), price(size_bytes, groups.dp_cp, sharing)
        for row in range(0, 40_000, 3511):
            digits = tuple(Digit(d.size[[row]], d.stride[[row]]) for d in groups.dp_cp.digits)
            alone = GroupBatch(digits=digits, ranks=groups.dp_cp.ranks[[row]])
            assert price(size_bytes[row], alone)[0] == pytest.approx(plain[row], rel=1e-12)
            assert price(size_bytes[row], alone, sharing[row])[0] == pytest.approx(shared[row], rel=1e-12)


def test_ideal_links_are_nominal(make_cluster: MakeCluster, make_group: MakeGroup) -> None:
    """The links of the simple model: ring volume over datasheet bandwidth and nothing else."""
    topology = Topology(make_cluster(8, in_switch_reduction=True), LINKS.ideal())
    assert topology.all_reduce_s(1e9, make_group(8, 1, 8))[0] == pytest.approx(2 * 7 / 8 * 1e9 / 450e9)


def test_calibration_overrides_by_name() -> None:
    """A full name sets one value, a name before the dot all under it, other rooms' names nothing."""
    links = load_links(
        {"network_fraction": 0.5, "nvlink_fraction": 0.6, "ring_base_s.ll": 1e-6, "gemm_cap": 0.1}, alone=True
    )
    assert {network.network_fraction for network in links.networks.values()} == {0.5}
    assert set(links.nvlink_fraction.values()) == {0.6}
    assert links.ring[2].base_s == pytest.approx(1e-6 + (link_table()["collective_start_s"].alone or 0.0))
    assert links.ring[0].base_s == LINKS.ring[0].base_s


def test_training_is_never_faster_than_an_idle_machine(
    make_cluster: MakeCluster, make_group: MakeGroup
) -> None:
    """A collective of a training step costs at least what nccl-tests measures."""
    group, cluster = make_group(64, 1, 64), make_cluster(64)
    busy, idle = (Topology(cluster, load_links(alone=alone)) for alone in (False, True))
    for size in (1e6, 256e6):
        assert busy.all_reduce_s(size, group)[0] >= idle.all_reduce_s(size, group)[0]
        assert busy.all_gather_s(size, group)[0] >= idle.all_gather_s(size, group)[0]


def test_every_constant_is_documented() -> None:
    """Unit, meaning, source, and a value within its bounds."""
    for name, entry in link_table().items():
        assert entry.unit and entry.meaning and entry.source, name
        assert entry.bounds[0] <= entry.value <= entry.bounds[1], name


def test_unknown_gpu_family_is_an_error(make_cluster: MakeCluster, make_group: MakeGroup) -> None:
    """No silent fallback for a GPU without a measured NVLink fraction."""
    cluster = make_cluster(8)
    unknown = replace(
        cluster, gpu=replace(cluster.gpu, generation=replace(cluster.gpu.generation, name="pascal"))
    )
    with pytest.raises(InputError, match=r"no constant nvlink_fraction\.pascal"):
        Topology(unknown, LINKS).all_reduce_s(1e9, make_group(8, 1, 8))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"levels": {"leaf": (12, 1.0), "spine": (64, 1.0)}}, "level 'leaf' joins 12 GPUs"),  # no whole nodes
        ({"levels": {"leaf": (16, 1.0), "pod": (40, 1.0), "spine": (64, 1.0)}}, "level 'pod' joins 40"),
        ({"nvlink_domain": 12}, "NVLink domain joins 12 GPUs"),  # half a node
    ],
)
def test_blocks_must_nest(fields: dict[str, object], message: str, make_cluster: MakeCluster) -> None:
    """Blocks that do not consist of whole smaller blocks are refused."""
    with pytest.raises(InputError, match=message):
        Topology(make_cluster(64, **fields), LINKS)


def test_levels_inside_a_domain_drop_out(make_cluster: MakeCluster) -> None:
    """A leaf below the NVLink domain's size carries nothing; a cluster of one domain has no tiers."""
    cluster = make_cluster(
        144, gpus_per_node=4, nvlink_domain=72, levels={"leaf": (32, 1.0), "spine": (144, 2.0)}
    )
    assert [tier.name for tier in Topology(cluster, LINKS).tiers] == ["spine"]
    assert Topology(make_cluster(8), LINKS).tiers == ()
    assert [tier.name for tier in Topology(make_cluster(8, nvlink_domain=2), LINKS).tiers] == ["host"]


def best_of(runs: int, work: Callable[[], object]) -> float:
    """Shortest of a few runs, seconds of this process's CPU: others on the machine don't count."""
    times = []
    for _ in range(runs):
        start = process_time()
        work()
        times.append(process_time() - start)
    return min(times)


def test_pricing_is_a_few_passes_over_the_rows(make_cluster: MakeCluster) -> None:
    """300,000 rows cost no more than 120 look-up passes, finding equal groups included."""
    rng = np.random.default_rng(6)
    tp, cp, pp, dp = (2 ** rng.integers(0, 4, 300_000) for _ in range(4))
    topology = Topology(make_cluster(16384, levels=PODS, in_switch_reduction=True), LINKS)
    size_bytes = rng.random(300_000) * 1e9

    placed = mesh_groups("tp-cp-pp-ep-dp", tp=tp, cp=cp, pp=pp, dp=dp, ep=1, etp=1).dp_cp

    def price() -> object:
        return topology.all_reduce_s(size_bytes, replace(placed, memo={}))

    one_pass = best_of(10, lambda: size_bytes * size_bytes[dp])
    assert best_of(5, price) < 120 * one_pass
