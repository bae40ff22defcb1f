"""Cluster files and the reference fabric."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from layoutopt.optimizer.specs.errors import InputError
from layoutopt.optimizer.specs.loading import gpu_names, load_cluster, load_gpu, reference_cluster
from layoutopt.optimizer.specs.vocabulary import Precision
from layoutopt.optimizer.topology.graph import cluster_tiers

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from layoutopt.optimizer.specs.cluster import ClusterSpec

    Load = Callable[[str], ClusterSpec]

GRAPHML = """<?xml version="1.0"?>
<graphml xmlns="http://graphml.graphdrawing.org/xmlns">
  <key id="d0" for="edge" attr.name="bandwidth" attr.type="double"/>
  <graph edgedefault="undirected">
    <node id="a"/><node id="b"/>
    <edge source="a" target="b"><data key="d0">5e10</data></edge>
  </graph>
</graphml>
"""
PLAIN = {
    "directed": False,
    "nodes": [{"id": "a"}, {"id": "b"}],
    "edges": [{"source": "a", "target": "b", "bandwidth": 5e10}],
}


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """Return a function that loads a text as a cluster file."""

    def read(text: str) -> ClusterSpec:
        path = tmp_path / "mine.yaml"
        path.write_text(text)
        return load_cluster(path)

    return read


def test_defaults(load: Load) -> None:
    """A GPU and a number of nodes are enough: one level with full bisection, one NIC per GPU."""
    cluster = load("gpu: H100-SXM\nnodes: 3\n")
    assert (cluster.name, cluster.gpu.name, cluster.gpu_count, cluster.nics_per_node) == (
        "mine",
        "h100",
        24,
        8,
    )
    assert [(level.gpus, level.oversubscription) for level in cluster.levels] == [(24, 1.0)]
    assert (cluster.pue, cluster.failures.gpu_hours_per_failure, cluster.failures.restart_s) == (
        1.2,
        50_700,
        600,
    )
    assert cluster.storage is None
    assert cluster.graph is None


def test_one_node_has_no_levels(load: Load) -> None:
    """A single, even partly filled, node needs no network."""
    assert load("gpu: h100\ngpus: 6\n").levels == ()


def test_everything_stated(load: Load) -> None:
    """Every key arrives in SI."""
    cluster = load(
        "name: big\nsource: lab\ngpu: gb200\ngpus: 144\nnodes: 36\ngpus_per_node: 4\nnvlink_domain: 72\n"
        "nics_per_node: 2\nnic_bandwidth: 800 Gbit/s\nrail_optimized: false\nin_switch_reduction: true\n"
        "levels:\n  - {name: leaf, nodes: 18, latency: 1 us}\n"
        "  - {name: spine, oversubscription: 2:1, latency: 5 us}\n"
        "storage: {write_bandwidth: 1 TB/s, per_gpu_bandwidth: 2 GB/s}\n"
        "failures: {gpu_hours_per_failure: 2000 days, restart: 5 min}\n"
        "reserve: 2 GiB\nhost_memory: 1 TB\npue: 1.1\n"
        "calibration: {gemm_cap.hopper: 0.6, nvlink_fraction: {value: 0.8, source: nccl-tests of May}}\n"
    )
    assert (cluster.name, cluster.gpu_count, cluster.gpus_per_node, cluster.nvlink_domain) == (
        "big",
        144,
        4,
        72,
    )
    assert (cluster.nics_per_node, cluster.nic_bytes_per_s) == (2, 100e9)
    assert (cluster.rail_optimized, cluster.in_switch_reduction) == (False, True)
    assert [(level.name, level.gpus, level.oversubscription) for level in cluster.levels] == [
        ("leaf", 72, 1.0),
        ("spine", 144, 2.0),
    ]
    assert cluster.levels[1].latency_s == pytest.approx(5e-6)
    assert cluster.storage is not None
    assert (cluster.storage.write_bytes_per_s, cluster.storage.per_gpu_bytes_per_s) == (1e12, 2e9)
    assert (cluster.failures.gpu_hours_per_failure, cluster.failures.restart_s) == (48_000, 300)
    assert (cluster.reserve_bytes, cluster.host_memory_bytes, cluster.pue) == (2 * 2.0**30, 1e12, 1.1)
    assert cluster.calibration == {"gemm_cap.hopper": 0.6, "nvlink_fraction": 0.8}


def test_gpu_with_a_base(load: Load) -> None:
    """An inline GPU may change some numbers of a catalog entry."""
    cluster = load("gpu: {base: h100-80g-sxm, name: h100-slow, memory: 84 GB}\nnodes: 1\n")
    assert (cluster.gpu.name, cluster.gpu.memory_bytes, cluster.gpu.sm_count) == ("h100-slow", 84e9, 132)


def test_whole_inline_gpu(load: Load) -> None:
    """An inline GPU may state everything itself; the nominal memory then is the stated one."""
    cluster = load(
        "gpu:\n  name: own\n  architecture: hopper\n"
        "  dense_flops: {bf16: 1 PFLOP/s, fp8: 2e15}\n  memory: 90 GB\n"
        "  memory_bandwidth: 3 TB/s\n  nvlink_bandwidth: 450 GB/s\n"
        "  nvlink_domain: 4\n  gpus_per_node: 4\n"
        "  nic_bandwidth: 400 Gbps\n  sm_count: 100\n  tdp: 0.7 kW\n"
        "  host_link_bandwidth: 64 GB/s\nnodes: 2\n"
    )
    gpu = cluster.gpu
    assert gpu.dense_flops == {Precision.BF16: 1e15, Precision.FP8: 2e15}
    assert (gpu.nominal_memory_bytes, gpu.tdp_w, cluster.gpu_count) == (90e9, 700.0, 8)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("net.json", json.dumps(PLAIN)),
        ("net.yaml", "nodes: [{id: a}, {id: b}]\nlinks: [{source: a, target: b, bandwidth: 5e10}]\n"),
        ("net.graphml", GRAPHML),
    ],
)
def test_graph_files(load: Load, tmp_path: Path, name: str, text: str) -> None:
    """A graph beside the cluster file is the same data in node-link JSON, YAML and GraphML."""
    (tmp_path / name).write_text(text)
    assert load(f"gpu: h100\nnodes: 2\ngraph: {name}\n").graph == PLAIN


def test_inline_graph(load: Load) -> None:
    """A node-link mapping may stand in the cluster file."""
    cluster = load(
        "gpu: h100\nnodes: 2\ngraph: {nodes: [{id: 1}, {id: 2}], edges: [{source: 1, target: 2}]}\n"
    )
    assert cluster.graph is not None
    assert cluster.graph["edges"] == [{"source": 1, "target": 2}]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("g.graphml", "<graphml", r"g\.graphml:1: not valid XML"),
        ("g.graphml", "<other/>", "no graph element"),
        (
            "g.graphml",
            '<!DOCTYPE x [<!ENTITY a "b">]><graphml/>',
            "document type declarations are not accepted",
        ),
        ("g.graphml", GRAPHML.replace("5e10", "fast"), "bandwidth: 'fast' is not a double"),
        ("g.graphml", GRAPHML.replace('key="d0"', 'key="d9"'), "key 'd9' is not declared"),
        ("g.json", "{", r"g\.json:1: not valid JSON"),
        ("g.json", '{"nodes": 1}', "nodes: is not a list of mappings"),
        ("g.json", '{"nodes": [{"id": 1}], "edges": [{"source": 1, "target": 9}]}', "target 9 is not a node"),
    ],
)
def test_bad_graph_files(load: Load, tmp_path: Path, name: str, text: str, message: str) -> None:
    """A broken graph file is one line that names it."""
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=message):
        load(f"gpu: h100\nnodes: 2\ngraph: {name}\n")


@given(name=st.sampled_from(gpu_names()), count=st.integers(1, 200_000))
def test_reference_fabric_covers_and_nests(name: str, count: int) -> None:
    """At any count the reference fabric covers the GPUs, nests, and is priced by the topology."""
    cluster = reference_cluster(name, count)
    gpu = load_gpu(name)
    assert (cluster.gpu_count, cluster.gpus_per_node, cluster.nvlink_domain) == (
        count,
        gpu.gpus_per_node,
        gpu.nvlink_domain,
    )
    tiers = [tier for tier in cluster_tiers(cluster) if not tier.is_host]
    assert not tiers or tiers[-1].outside >= count
    block = max(gpu.gpus_per_node, gpu.nvlink_domain)
    for tier in tiers:
        full_bisection = tier.outside <= 3072 // block * block
        assert tier.bytes_per_s == pytest.approx(gpu.nic_bytes_per_s / (1 if full_bisection else 7))


@given(name=st.sampled_from(gpu_names()), count=st.integers(1, 50_000), more=st.integers(0, 50_000))
def test_reference_fabric_is_one_family(name: str, count: int, more: int) -> None:
    """A smaller cluster has the inner levels of a larger one, so sizes can be compared."""
    small, large = reference_cluster(name, count), reference_cluster(name, count + more)
    for inner, outer in zip(small.levels, large.levels, strict=False):
        assert inner.name == outer.name
        assert inner.gpus == outer.gpus or inner.name == "spine"
    assert len(small.levels) <= len(large.levels)


def test_reference_names() -> None:
    """``NAMExN`` reads names and aliases in any case, and names itself after the entry."""
    assert load_cluster("h100x16384") == reference_cluster("h100", 16_384)
    assert load_cluster("MI300Xx64").name == "mi300xx64"
    assert load_cluster("a100-80g-sxmx12").gpu_count == 12
    pod = load_cluster("h100x16384").levels
    assert [(level.name, level.gpus, level.oversubscription) for level in pod] == [
        ("leaf", 256, 1.0),
        ("pod", 3072, 1.0),
        ("spine", 16_384, 7.0),
    ]
