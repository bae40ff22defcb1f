"""nccl-tests: every column generation, the fit, and the anomalies worth naming."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layoutopt.optimizer.interop.machines.nccl_calibration import suggest_calibration
from layoutopt.optimizer.interop.machines.nccl_fit import (
    compare_collectives,
    find_anomalies,
    fit_collective,
    link_bytes_per_s,
)
from layoutopt.optimizer.interop.machines.nccl_log import NcclRow, NcclTable, bus_factor, import_nccl_tests
from layoutopt.optimizer.interop.sources import import_path
from layoutopt.optimizer.specs.errors import InputError
from layoutopt.optimizer.specs.loading import load_cluster

SAMPLES = Path(__file__).parent / "samples"
MIB = 2**20


def table(
    busbw: list[float],
    *,
    ranks: int = 16,
    nodes: int = 2,
    gpu: str = "NVIDIA H100 80GB HBM3",
    collective: str = "all_reduce",
    first: int = MIB,
) -> NcclTable:
    """A table with the given bus bandwidths in GB/s at sizes that double from ``first``."""
    factor = bus_factor(collective, ranks)
    rows = []
    for index, gbs in enumerate(busbw):
        size = first * 2**index
        rows.append(
            NcclRow(
                size_bytes=size,
                time_s=size * factor / (gbs * 1e9),
                algbw_bytes_per_s=gbs * 1e9 / factor,
                busbw_bytes_per_s=gbs * 1e9,
            )
        )
    return NcclTable(collective=collective, ranks=ranks, nodes=nodes, gpu=gpu, rows=tuple(rows))


def kinds(measured: NcclTable, **keys: float) -> set[str]:
    """Slugs of the anomalies found."""
    return {anomaly.kind for anomaly in find_anomalies(measured, **keys)}


def test_prefixed_log_of_the_second_generation() -> None:
    """Launcher prefixes are stripped; ranks, nodes and the collective come out; the law is recovered."""
    (got,) = import_path(SAMPLES / "nccl_all_reduce.txt").value
    assert (got.collective, got.ranks, got.nodes, len(got.rows)) == ("all_reduce", 32, 4, 7)
    fit = fit_collective(got)
    assert fit.latency_s == pytest.approx(80e-6, rel=0.02)
    assert fit.bus_bytes_per_s == pytest.approx(365e9, rel=0.01)


def test_first_generation_without_redop() -> None:
    """The old all-gather has eleven columns and no collective's name anywhere."""
    (got,) = import_nccl_tests((SAMPLES / "nccl_old_columns.txt").read_text())
    assert (got.collective, got.ranks, got.nodes, got.gpu) == ("all_gather", 8, 1, "A100-SXM4-80GB")
    assert got.rows[-1].size_bytes == 4 * 2**30
    assert fit_collective(got).bus_bytes_per_s == pytest.approx(230e9, rel=0.01)


def test_two_tests_with_intervals_and_time_stamps() -> None:
    """One log, two tables; 21 columns and a two-token stamp do not shift anything."""
    first, second = import_nccl_tests((SAMPLES / "nccl_two_tests_intervals.txt").read_text())
    assert (first.collective, second.collective) == ("reduce_scatter", "alltoall")
    assert fit_collective(first).latency_s == pytest.approx(50e-6, rel=0.02)
    assert fit_collective(second).bus_bytes_per_s == pytest.approx(40e9, rel=0.01)
    assert second.nodes == 2


def test_json_output() -> None:
    """JSON has no device lines: the ranks follow from the bandwidth ratio."""
    (got,) = import_nccl_tests((SAMPLES / "nccl.json").read_text(), "all_reduce.json")
    assert (got.collective, got.ranks, got.nodes) == ("all_reduce", 16, None)
    assert fit_collective(got).bus_bytes_per_s == pytest.approx(400e9, rel=0.01)


def test_zero_sizes_and_replayed_half() -> None:
    """A zero-byte row is no data point; a blank first half leaves the in-place one."""
    text = (
        "#  Rank  0 Group  0 Pid 1 on a device  0 [0x10] NVIDIA H100\n"
        "#  Rank  1 Group  0 Pid 2 on b device  0 [0x10] NVIDIA H100\n"
        "# size count type redop root time algbw busbw #wrong time algbw busbw #wrong\n"
        "0 0 float sum -1 14.2 0.00 0.00 0 14.2 0.00 0.00 0\n"
        "1048576 262144 float sum -1 50.0 20.97 20.97 0\n"
        "67108864 16777216 float sum -1 1400.0 47.93 47.93 0 1400.0 47.93 47.93 0\n"
    )
    (got,) = import_nccl_tests(text)
    assert (got.collective, [row.size_bytes for row in got.rows]) == ("all_reduce", [0, MIB, 64 * MIB])
    assert fit_collective(got).rows == 2


def test_wide_numbers_go_exponential() -> None:
    """Times without decimals and in exponential notation are numbers."""
    text = (
        "#  Rank  0 Group  0 Pid 1 on a device  0 [0x10] V\n"
        "#  Rank  1 Group  0 Pid 2 on a device  1 [0x10] V\n"
        "# size count type redop root time algbw busbw #wrong time algbw busbw #wrong\n"
        "1048576 1 float sum -1 123456 0.01 0.01 0 1.23e+05 0.01 0.01 0\n"
    )
    (got,) = import_nccl_tests(text, collective="all_reduce")
    assert (
        import_nccl_tests(text, collective="AllReduce")
        == import_nccl_tests(text, collective="all-reduce")
        == (got,)
    )
    assert got.rows[0].time_s == pytest.approx(0.123456)


def test_ambiguous_log_asks_for_its_name() -> None:
    """Two ranks and a ratio of one could be several collectives with a root; it is not guessed."""
    text = "# size count type redop root time algbw busbw #wrong\n4096 1 float none 0 9.0 0.4 0.3 0\n"
    with pytest.raises(InputError, match="which collective"):
        import_nccl_tests(text)


def test_host_times_are_not_fitted() -> None:
    """-C 1 prints host time under cputime: it says nothing of the network."""
    text = (SAMPLES / "nccl_all_reduce.txt").read_text().replace("time   algbw", "cputime   algbw")
    (got,) = import_nccl_tests(text)
    with pytest.raises(InputError, match="times are the host's"):
        fit_collective(got)


@settings(max_examples=60)
@given(
    alpha_us=st.floats(5, 500),
    gbs=st.floats(5, 900),
    dip=st.integers(2, 9),
    depth=st.floats(0.7, 1.0),
    noise=st.lists(st.floats(0.98, 1.02), min_size=13, max_size=13),
)
def test_fit_recovers_the_law_through_noise_and_one_dip(
    alpha_us: float, gbs: float, dip: int, depth: float, noise: list[float]
) -> None:
    """Bandwidth within 10%, latency within 15%, although one size is up to 30% slow."""
    factor = bus_factor("all_reduce", 32)
    rows = []
    for index, wobble in enumerate(noise):
        size = 2**12 * 4**index
        time_s = (alpha_us * 1e-6 + size * factor / (gbs * 1e9)) * wobble / (depth if index == dip else 1.0)
        busbw = size * factor / time_s
        rows.append(
            NcclRow(size_bytes=size, time_s=time_s, algbw_bytes_per_s=busbw / factor, busbw_bytes_per_s=busbw)
        )
    fit = fit_collective(NcclTable(collective="all_reduce", rows=tuple(rows), ranks=32))
    assert fit.latency_s == pytest.approx(alpha_us * 1e-6, rel=0.15)
    assert fit.bus_bytes_per_s == pytest.approx(gbs * 1e9, rel=0.1)


def test_h20_two_nodes_with_a_dip() -> None:
    """NVIDIA/nccl#1244: about 115 us, 343 GB/s, and a dip at 128 MiB that must be named and not fitted."""
    measured = table([16, 30, 62, 107, 155, 211, 269, 227, 245, 313, 343], gpu="NVIDIA H20")
    fit = fit_collective(measured)
    assert fit.latency_s == pytest.approx(115e-6, rel=0.15)
    assert fit.bus_bytes_per_s == pytest.approx(343e9, rel=0.15)
    dips = [anomaly.message for anomaly in find_anomalies(measured) if anomaly.kind == "cliff"]
    assert dips == ["all_reduce: bandwidth falls from 269 to 227 GB/s between 64 and 128 MiB"]


def test_one_nic_of_eight() -> None:
    """NVIDIA/nccl-tests#319: a flat 44 GB/s over two nodes is one 400 Gbit/s NIC; all-to-all at 45 is not."""
    flat = [30, 38, 42, 43, 44, 44, 44.3, 44.3, 44.3, 44.3, 44.3, 44.3]
    assert "one_nic" in kinds(table(flat, gpu="HGX"))
    assert "one_nic" not in kinds(table(flat, collective="alltoall"))
    assert "one_nic" not in kinds(table([gbs * 8 for gbs in flat]))
    assert "one_nic" not in kinds(table(flat, nodes=16))


def test_in_switch_reduction() -> None:
    """NVIDIA/nccl-tests#290: 476 GB/s in one node is above a link's 450; a bridged PCIe pair has none."""
    assert kinds(table([470, 474, 476] * 3, ranks=8, nodes=1)) == {"in_switch_reduction"}
    assert kinds(table([115.9] * 8, ranks=2, nodes=1, gpu="NVIDIA H100 PCIe")) == set()
    assert link_bytes_per_s("NVIDIA H20") == 450e9 and link_bytes_per_s("NVIDIA GB200") == 900e9


def test_far_below_nominal() -> None:
    """NVIDIA/nccl#1454: 14 GB/s where a node has four 400 Gbit/s NICs is a misconfigured network."""
    measured = table([10, 12, 13, 14, 14, 14, 14, 14], ranks=2400, nodes=300)
    assert "below_nominal" in kinds(measured, node_bytes_per_s=200e9)
    assert "below_nominal" not in kinds(measured, node_bytes_per_s=100e9)


def test_wrong_results_and_two_nodes() -> None:
    """Failed checks come first; two nodes are not a basis for larger groups."""
    text = (SAMPLES / "nccl_all_reduce.txt").read_text().replace("values : 0 OK", "values : 3 FAILED")
    (got,) = import_nccl_tests(text)
    assert find_anomalies(got)[0].kind == "wrong_results"
    assert "two_nodes" in kinds(table([470] * 8))


def test_collectives_differ() -> None:
    """NVIDIA/nccl#1218: all-gather at 200 beside all-reduce at 340 must be calibrated on its own."""
    reduce = fit_collective(table([340] * 8, ranks=256, nodes=32))
    gather = fit_collective(table([200] * 8, ranks=256, nodes=32, collective="all_gather"))
    assert [anomaly.kind for anomaly in compare_collectives([reduce, gather])] == ["collectives_differ"]
    assert compare_collectives([reduce]) == ()


def test_calibration_from_a_whole_set() -> None:
    """NVLink's share and the switch's gain in a node, the NICs' share and the ratios to it between."""
    cluster = load_cluster("h100x256")
    inside: dict[str, Any] = {"ranks": 8, "nodes": 1}
    across: dict[str, Any] = {"ranks": 32, "nodes": 4}
    tables = [
        table([360] * 12, collective="all_gather", **inside),
        table([364] * 12, collective="reduce_scatter", **inside),
        table([476] * 12, **inside),
        table([365.6] * 12, **across),
        table([470] * 12),  # two nodes: not the basis
        table([240] * 12, collective="all_gather", **across),
        table([44] * 12, collective="alltoall", **across),
        replace(table([1] * 12, collective="alltoall", **across), failed=True),
    ]
    result = suggest_calibration(tables, cluster)
    values = {name: entry.value for name, entry in result.values.items()}
    assert values["nvlink_fraction.hopper"] == pytest.approx(362 / 450, rel=0.01)
    assert values["nvls_gain.hopper"] == pytest.approx(476 / 362, rel=0.01)
    assert values["network_fraction.infiniband"] == pytest.approx(365.6 / 400, rel=0.01)
    assert values["network_gather.infiniband"] == pytest.approx(240 / 365.6, rel=0.01)
    leaving = 44 * 8 * 24 / 31
    assert values["network_all_to_all.infiniband"] == pytest.approx(leaving / 365.6, rel=0.01)
    assert "alltoall on 32 ranks: wrong results" in result.skipped
    assert {"in_switch_reduction", "two_nodes"} <= {anomaly.kind for anomaly in result.anomalies}
    assert (
        result.values["network_fraction.infiniband"].source == "nccl-tests: all_reduce 366 GB/s on 32 ranks"
    )


def test_one_rank_per_node_is_held_to_its_own_nic() -> None:
    """One GPU of each node reaches one NIC's worth, which is not far below what it could; half a NIC's tenth is."""
    cluster = load_cluster("h100x256")
    alone: dict[str, Any] = {"ranks": 4, "nodes": 4}
    good, bad = (suggest_calibration([table([bus] * 12, **alone)], cluster) for bus in (39, 4))
    assert "below_nominal" not in {anomaly.kind for anomaly in good.anomalies}
    assert "below_nominal" in {anomaly.kind for anomaly in bad.anomalies}


def test_calibration_outside_physics_is_left_out() -> None:
    """14 GB/s on a node of 400 GB/s is a fault, not a constant."""
    result = suggest_calibration([table([14] * 12, ranks=32, nodes=4)], load_cluster("h100x256"))
    assert result.values == {}
    assert any("network_fraction.infiniband" in line for line in result.skipped)
    assert "below_nominal" in {anomaly.kind for anomaly in result.anomalies}
