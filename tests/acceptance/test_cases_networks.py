"""Public reports of network measurements, topologies and model files: what the tool reads out of them.

A report states sizes and bandwidths; the log around them is written here in the format of the tool that made it.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from layoutopt.optimizer.cost.parameters import attention_parameters
from layoutopt.optimizer.interop.machines.nccl_calibration import suggest_calibration
from layoutopt.optimizer.interop.machines.nccl_fit import (
    compare_collectives,
    find_anomalies,
    fit_collective,
    link_bytes_per_s,
)
from layoutopt.optimizer.interop.sources import FileKind, import_text
from layoutopt.optimizer.specs.loading import load_cluster, load_gpu
from layoutopt.optimizer.topology.links import load_links
from layoutopt.optimizer.topology.one import bus_factor
from layoutopt.optimizer.topology.show import topology_table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from layoutopt.optimizer.interop.machines.nccl_log import NcclTable
    from layoutopt.optimizer.interop.records import GpuTopology
    from layoutopt.optimizer.specs.cluster import ClusterSpec

MIB = 2**20
H100 = "NVIDIA H100 80GB HBM3"


def table(
    collective: str,
    busbw_gb: Mapping[int, float],
    *,
    ranks: int,
    nodes: int,
    gpu: str = H100,
    first: float | None = None,
) -> NcclTable:
    """Write a log of one test, by size in bytes, and read it back; ``first`` is the time of the smallest size in us."""
    lines = [f"# Collective test starting: {collective}_perf", "# nThread 1 nGpus 1 minBytes 8 maxBytes 8G"]
    per_node = ranks // nodes
    lines += [
        f"#  Rank {rank} Group 0 Pid {4000 + rank} on host{rank // per_node} device {rank % per_node} [0x10] {gpu}"
        for rank in range(ranks)
    ]
    lines.append("#       size         count      type   redop    root     time   algbw   busbw #wrong")
    for position, (size, bus) in enumerate(sorted(busbw_gb.items())):
        algorithm = bus / bus_factor(collective, ranks)
        time_us = first if first and not position else size / algorithm / 1e3
        lines.append(f"{size:>12} {size // 4:>12} float sum -1 {time_us:.2f} {algorithm:.2f} {bus:.2f} 0")
    found: tuple[NcclTable, ...] = import_text("\n".join(lines), "log.txt", FileKind.NCCL_TESTS).value
    return found[0]


def kinds(one: NcclTable, node_bytes_per_s: float | None = None) -> set[str]:
    """Name the anomalies of a table."""
    return {anomaly.kind for anomaly in find_anomalies(one, node_bytes_per_s=node_bytes_per_s)}


def predicted_gb(
    cluster: ClusterSpec, ranks: int, collective: str = "all_reduce", size: float = 4e9
) -> float:
    """Predict the bus bandwidth of all ranks at a large size."""
    links = load_links(cluster.calibration)
    rows = topology_table(cluster, links, size_bytes=size, groups=[(ranks, 1)]).collectives
    return next(row.bus_bytes_per_s for row in rows if row.collective == collective) / 1e9


@pytest.mark.report("nt290-h100-single")
def test_one_node_reduces_in_the_switch(report: Any) -> None:
    """476 GB/s inside a node is in-switch reduction, also in the prediction; 46-48 GB/s across nodes is one NIC."""
    sizes = {128 * MIB: 447.0, 1024 * MIB: 472.0, 4096 * MIB: report.check["busbw"]}
    assert "in_switch_reduction" in kinds(table("all_reduce", sizes, ranks=8, nodes=1))
    switched = replace(load_cluster("h100x8"), in_switch_reduction=True)
    assert report.near(predicted_gb(switched, 8), "busbw")
    for nic in report.check["per_nic"]:
        flat = dict.fromkeys((64 * MIB, 1024 * MIB, 4096 * MIB), float(nic))
        assert "one_nic" in kinds(table("all_reduce", flat, ranks=16, nodes=2))


@pytest.mark.report("nt309-2-4-nodes")
def test_two_nodes_do_not_stand_for_more(report: Any) -> None:
    """Two nodes are marked as special; the constants come from four, and the prediction then gives the measured figure."""
    measured = {ranks: float(bus) for ranks, bus in report.check["busbw"].items()}
    tables = [
        table(
            "all_reduce",
            {512 * MIB: bus * 0.97, 4096 * MIB: bus, 16384 * MIB: bus},
            ranks=n,
            nodes=max(n // 8, 1),
        )
        for n, bus in measured.items()
    ]
    assert "two_nodes" in kinds(tables[1]) and "two_nodes" not in kinds(tables[2])
    cluster = load_cluster("h100x32")
    constants = suggest_calibration(tables, cluster).values
    assert "32 ranks" in constants["network_fraction.infiniband"].source
    calibrated = replace(cluster, calibration={name: entry.value for name, entry in constants.items()})
    assert predicted_gb(calibrated, 32) == pytest.approx(measured[32], rel=0.1)


@pytest.mark.report("nccl2409-roce-cap")
def test_each_collective_is_calibrated_apart(report: Any) -> None:
    """All-reduce, all-gather and all-to-all keep their own figures, and the difference is named."""
    expected = {"all_reduce": "ar", "all_gather": "ag", "alltoall": "a2a"}
    tables = {
        name: table(
            name, {256 * MIB: report.check[key] * 0.95, 8192 * MIB: report.check[key]}, ranks=16, nodes=2
        )
        for name, key in expected.items()
    }
    fits = {name: fit_collective(one) for name, one in tables.items()}
    for name, key in expected.items():
        assert report.near(fits[name].bus_bytes_per_s / 1e9, key)
    assert {anomaly.kind for anomaly in compare_collectives(list(fits.values()))} == {"collectives_differ"}
    constants = suggest_calibration(list(tables.values()), load_cluster("h100x16")).values
    assert constants["network_gather.infiniband"].value == pytest.approx(101 / 231, rel=0.1)


@pytest.mark.report("nccl1244-h20-2node")
def test_a_dip_does_not_spoil_the_fit(report: Any) -> None:
    """Latency and bandwidth of a curve with a dip at 128 MiB, which is named as a cliff."""
    reached = (16, 30, 62, 107, 155, 211, 269, 227, 245, 313, 343)
    one = table(
        "all_reduce",
        {MIB << i: float(bus) for i, bus in enumerate(reached)},
        ranks=16,
        nodes=2,
        gpu="NVIDIA H20",
        first=122.0,
    )
    fit = fit_collective(one)
    assert report.near(fit.latency_s * 1e6, "alpha_us")
    assert report.near(fit.best_bus_bytes_per_s / 1e9, "busbw")
    assert "cliff" in kinds(one)


@pytest.mark.report("nccl652-old-format")
def test_the_first_column_generation_is_read(report: Any) -> None:
    """No root column, errors as 5e-07, rows of size 0: ignored where empty, and the latency is that of small sizes."""
    lines = [
        "# nThread: 1 nGpus: 1 minBytes: 0 maxBytes: 1048576 step: 2(factor) warmup iters: 5 iters: 20 validation: 1"
    ]
    lines += [
        f"#   Rank {r:>3} Pid {r} on node{r // 8} device {r % 8} [0x10] A100-SXM4-40GB" for r in range(256)
    ]
    lines.append(
        "#       size         count    type   redop     time   algbw   busbw   error     time   algbw   busbw   error"
    )
    times = {0: 14.0, 4: 63.0, 8: 63.0, 16: 64.0, 32: 65.0, 64: 65.0, 128: 71.0, 1 << 20: 110.0}
    for size, time_us in times.items():
        algorithm = size / time_us / 1e3
        half = f"{time_us:.2f} {algorithm:.2f} {algorithm * 2 * 255 / 256:.2f} 5e-07"
        lines.append(f"{size:>12} {size // 4:>12} float sum {half} {half}")
    one = import_text("\n".join(lines), "all_reduce.txt").value[0]
    assert (one.collective, one.ranks, one.nodes) == ("all_reduce", 256, 32)
    assert report.near(fit_collective(one).latency_s * 1e6, "alpha_us")


@pytest.mark.report("nccl1161-h100-pcie")
def test_a_pcie_card_is_no_sxm_module(report: Any) -> None:
    """Its pair is read as measured, no link figure of another card is assumed, and the catalog keeps it apart."""
    one = table(
        "all_reduce", {MIB * 1024 * n: 115.9 for n in (1, 2, 4, 8)}, ranks=2, nodes=1, gpu="NVIDIA H100 PCIe"
    )
    assert report.near(fit_collective(one).bus_bytes_per_s / 1e9, "busbw")
    assert link_bytes_per_s("NVIDIA H100 PCIe") is None
    card, module = load_gpu(report.case["cluster"]["gpu"]), load_gpu("H100-80G-SXM")
    assert card.nvlink_domain == 2 and card.nvlink_bytes_per_s < module.nvlink_bytes_per_s
    assert max(card.dense_flops.values()) < max(module.dense_flops.values())
    assert 115 <= predicted_gb(load_cluster("h100-80g-pciex2"), 2) <= 260


@pytest.mark.report("nccl1454-300nodes")
def test_far_below_nominal_is_no_network_to_plan_with(report: Any) -> None:
    """14 GB/s where the node's NICs carry 200: a misconfigured network, and said so."""
    one = table("all_reduce", {1024 * MIB: 13.5, 4096 * MIB: 14.0}, ranks=2400, nodes=300)
    assert report.check["warn"] in kinds(one, node_bytes_per_s=4 * 50e9)


@pytest.mark.report("nccl1218-ag-vs-ar")
def test_all_gather_is_not_all_reduce(report: Any) -> None:
    """200 beside 340 GB/s on the same ranks: gathers get a constant of their own."""
    tables = [
        table(name, {256 * MIB: bus * 0.96, 2048 * MIB: bus}, ranks=256, nodes=32)
        for name, bus in (("all_reduce", 340.0), ("all_gather", 200.0))
    ]
    found = suggest_calibration(tables, load_cluster("h100x256"))
    assert "collectives_differ" in {anomaly.kind for anomaly in found.anomalies}
    assert found.values["network_gather.infiniband"].value == pytest.approx(
        report.check["ag"] / report.check["ar"], rel=0.1
    )


@pytest.mark.report("nt319-44gbs")
def test_one_nic_is_recognised(report: Any) -> None:
    """A flat 44 GB/s over two nodes is one NIC's worth."""
    flat = {32 * MIB << i: report.check["busbw"] for i in range(10)}
    assert "one_nic" in kinds(table("all_reduce", flat, ranks=16, nodes=2, gpu=""))


def matrix(gpus: int, nics: int, near: Mapping[int, int], far: str) -> GpuTopology:
    """Write and read ``nvidia-smi topo -m``: all GPUs NV18, ``near`` maps GPUs to their PIX NIC."""
    devices = [*(f"GPU{i}" for i in range(gpus)), *(f"NIC{i}" for i in range(nics))]
    lines = ["\t" + "\t".join([*devices, "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"])]
    for row in range(gpus):
        links = ["X" if row == other else "NV18" for other in range(gpus)]
        links += ["PIX" if near.get(row) == nic else far for nic in range(nics)]
        lines.append("\t".join([f"GPU{row}", *links, "0-47", "0", "N/A"]))
    for nic in range(nics):
        links = ["PIX" if near.get(gpu) == nic else far for gpu in range(gpus)]
        links += ["X" if nic == other else "NODE" for other in range(nics)]
        lines.append("\t".join([f"NIC{nic}", *links]))
    found: GpuTopology = import_text("\n".join(lines), "topo.txt", FileKind.NVIDIA_TOPO).value
    return found


@pytest.mark.report("nccl1264-topo-10nic")
def test_nics_of_no_gpu_are_left_out(report: Any) -> None:
    """Ten NICs out of the GPUs' order, two near none: eight count, one for each GPU."""
    near = {0: 0, 1: 1, 2: 2, 3: 5, 4: 6, 5: 7, 6: 8, 7: 9}
    found = matrix(8, 10, near, "SYS")
    assert (found.nvlinks, found.nvlink_domain, found.nics) == (
        report.check["nvlinks"],
        8,
        report.check["gpu_nics"],
    )
    assert found.other_nics == ("NIC3", "NIC4")
    assert found.gpu_nics[3] == ("NIC5",)


@pytest.mark.report("nccl1357-4nic")
def test_one_gpu_does_not_add_up_the_nics(report: Any) -> None:
    """Four GPUs have a NIC: the node carries 1,600 Gbit/s, a single rank no more than one NIC does."""
    found = matrix(8, 6, {0: 0, 2: 1, 4: 2, 6: 3}, "SYS")
    cluster = load_cluster("h100x16")
    assert report.near(found.nics * cluster.nic_bytes_per_s * 8 / 1e9, "node_gbps")
    assert any("4 of 8 GPUs have no NIC of their own" in note for note in found.notes)
    half = replace(cluster, nics_per_node=found.nics)
    links = load_links(half.calibration)
    pair = topology_table(half, links, size_bytes=4e9, groups=[(2, 8)]).collectives
    assert all(row.bus_bytes_per_s <= half.nic_bytes_per_s for row in pair)


@pytest.mark.report("entrenar262-qwen3-4b")
def test_query_projection_has_its_own_width(report: Any) -> None:
    """32 heads of 128 over hidden 2560: 4096 x 2560 query weights, not hidden x hidden."""
    stated = report.case["model"]
    config = {
        "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "num_hidden_layers": stated["layers"],
        "hidden_size": stated["hidden"], "num_attention_heads": stated["heads"], "num_key_value_heads": stated["kv_heads"],
        "head_dim": stated["head_dim"], "intermediate_size": stated["ffn"], "vocab_size": stated["vocab"],
        "tie_word_embeddings": bool(stated["tied"]), "max_position_embeddings": 40960,
    }  # fmt: skip
    model = import_text(json.dumps(config), "config.json").value.model
    counts = attention_parameters(model)
    queries = (counts.sharded - counts.key_value) / 2  # queries and the output projection are equally large
    assert queries == report.check["q_proj"]
