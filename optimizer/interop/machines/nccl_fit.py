"""Latency and bandwidth of a collective from its nccl-tests table, and what looks wrong in it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from layoutopt.optimizer.interop.machines.nccl_log import RING
from layoutopt.optimizer.specs.errors import input_error

if TYPE_CHECKING:
    from collections.abc import Sequence

    from layoutopt.optimizer.interop.machines.nccl_log import NcclRow, NcclTable

LINK_BYTES_PER_S = (
    # one-way NVLink bandwidth per GPU by device name, first match (NVIDIA data sheets)
    ("PCIe", None),
    ("GB200", 900e9),
    ("GB300", 900e9),
    ("B200", 900e9),
    ("B300", 900e9),
    ("H800", 200e9),
    ("A800", 200e9),
    ("H100", 450e9),
    ("H200", 450e9),
    ("H20", 450e9),
    ("A100", 300e9),
    ("V100", 150e9),
)
NIC_RATES_BIT_PER_S = (
    # line rates of the NICs that systems with these GPUs have (InfiniBand EDR, HDR, NDR, XDR and Ethernet)
    ("V100", (100e9,)),
    ("A800|A100", (200e9,)),
    ("GB300|B300", (800e9,)),
    ("", (200e9, 400e9)),
)

NIC_REACHED = (0.84, 0.98)
"""Share of its line rate that one NIC carries in a large collective (46-48 of 50 GB/s for 400 Gbit/s)."""

LARGE_BYTES = 32 * 2**20
CLIFF = 0.88
"""A larger message at less than this share of the smaller one's bandwidth is a cliff, not noise."""

FAR_BELOW = 0.10
PLATEAU = 0.85


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveFit:
    """time = latency_s + size_bytes * bus_factor / bus_bytes_per_s.

    ``error`` is the median relative error of the fit over the rows used, ``best_bus_bytes_per_s`` the
    largest bus bandwidth measured.
    """

    collective: str
    ranks: int
    nodes: int | None
    latency_s: float
    bus_bytes_per_s: float
    best_bus_bytes_per_s: float
    error: float
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Anomaly:
    """Something to know before planning with a measurement: a slug and one line."""

    kind: str
    message: str


def fit_collective(table: NcclTable) -> CollectiveFit:
    """Fit latency and bandwidth; a robust loss on relative errors keeps dips and protocol switches from
    deciding.

    Needs two sizes above zero that are apart by a factor of 4, and times of the GPU, not of the host. Raises
    ``InputError`` without them, and for one rank.
    """
    rows = [row for row in table.rows if row.size_bytes > 0 and row.time_s > 0]
    # -C 1 stops the clock when the calls have been queued, long before the data has moved.
    if table.cpu_time:
        raise input_error("times are the host's (-C 1)", "a run without -C", key=table.collective)
    if table.ranks < 2:
        raise input_error("one rank moves nothing", "at least two ranks", key=table.collective)
    # Sizes that are close together leave latency and bandwidth to trade against each other.
    if len(rows) < 2 or rows[-1].size_bytes < 4 * rows[0].size_bytes:
        allowed = "sizes apart by a factor of 4 or more"
        raise input_error("too few message sizes", allowed, key=table.collective)
    latency_s, bus = _solve(rows, table.bus_factor)
    times_s = [(latency_s + row.size_bytes * table.bus_factor / bus, row.time_s) for row in rows]
    errors = sorted(abs(fitted / measured - 1) for fitted, measured in times_s)
    return CollectiveFit(
        collective=table.collective,
        ranks=table.ranks,
        nodes=table.nodes,
        latency_s=latency_s,
        bus_bytes_per_s=bus,
        best_bus_bytes_per_s=max(row.busbw_bytes_per_s for row in rows),
        error=errors[len(errors) // 2],
        rows=len(rows),
    )


def _solve(rows: Sequence[NcclRow], factor: float) -> tuple[float, float]:
    import numpy as np
    from scipy.optimize import least_squares

    moved = np.array([row.size_bytes * factor for row in rows])
    time = np.array([row.time_s for row in rows])
    # Logarithms keep both above zero, and their steps even over nine decades.
    start = np.log([max(min(time[0], time[-1]), 1e-7), moved[-1] / time[-1]])

    def relative_error(point: np.ndarray) -> np.ndarray:
        """Return the log of fitted over measured times, (sizes,), for the logs of latency and bandwidth."""
        latency, bandwidth = np.exp(point)
        return np.asarray(np.log((latency + moved / bandwidth) / time))

    # relative errors: a microsecond at 8 bytes counts like a millisecond at 8 GiB
    bounds = (np.log([1e-8, 1e6]), np.log([10.0, 1e14]))
    result = least_squares(relative_error, start, loss="soft_l1", f_scale=0.05, bounds=bounds)
    latency, bandwidth = np.exp(result.x)
    return float(latency), float(bandwidth)


def find_anomalies(table: NcclTable, *, node_bytes_per_s: float | None = None) -> tuple[Anomaly, ...]:
    """Name what a planner must not take at face value.

    ``node_bytes_per_s`` is the nominal network bandwidth of one node, all its NICs together, where known.
    """
    large = [row for row in table.rows if row.size_bytes >= LARGE_BYTES]
    best = max((row.busbw_bytes_per_s for row in large), default=0.0)
    found = [
        *_wrong(table),
        *_in_switch(table, best),
        *_one_nic(table, large, best),
        *_below_nominal(table, best, node_bytes_per_s),
        *_two_nodes(table),
        *_cliffs(table),
    ]
    return tuple(found)


def _wrong(table: NcclTable) -> list[Anomaly]:
    message = f"{table.collective}: results are out of bounds, do not use this fabric"
    return [Anomaly(kind="wrong_results", message=message)] if table.failed else []


def link_bytes_per_s(gpu: str) -> float | None:
    """One-way NVLink bandwidth by device name; None for PCIe cards and unknown names."""
    for name, rate in LINK_BYTES_PER_S:
        if re.search(rf"\b{name}(?![0-9])", gpu, re.IGNORECASE):
            return rate
    return None


def _in_switch(table: NcclTable, best: float) -> list[Anomaly]:
    link = link_bytes_per_s(table.gpu)
    if table.collective != "all_reduce" or link is None or best <= link:
        return []
    message = (
        f"all_reduce: {best / 1e9:.0f} GB/s is above the {link / 1e9:.0f} GB/s of a link: "
        "the switch reduces (NVLS or SHARP), from which all-gather and reduce-scatter do not gain"
    )
    return [Anomaly(kind="in_switch_reduction", message=message)]


def _one_nic(table: NcclTable, large: Sequence[NcclRow], best: float) -> list[Anomaly]:
    across = table.nodes is not None and table.nodes > 1 and (table.ranks_per_node or 1) > 1
    # all-to-all spreads over every NIC, so its bandwidth per GPU says nothing about how many are used
    if not across or table.collective == "alltoall" or len(large) < 2:
        return []
    # A link that is full stays so for all larger messages; a network that is only slow goes on growing.
    flat = sum(row.busbw_bytes_per_s >= PLATEAU * best for row in large) >= len(large) / 2
    for rate in _nic_rates(table.gpu):
        if flat and NIC_REACHED[0] <= best / (rate / 8) <= NIC_REACHED[1]:
            message = (
                f"{table.collective}: {best / 1e9:.1f} GB/s over {table.nodes} nodes is one NIC's worth "
                f"({rate / 1e9:.0f} Gbit/s): the other NICs of the node look unused"
            )
            return [Anomaly(kind="one_nic", message=message)]
    return []


def _nic_rates(gpu: str) -> tuple[float, ...]:
    return next(rates for pattern, rates in NIC_RATES_BIT_PER_S if re.search(pattern, gpu))


def _below_nominal(table: NcclTable, best: float, node_bytes_per_s: float | None) -> list[Anomaly]:
    across = table.nodes is not None and table.nodes > 1
    if not across or node_bytes_per_s is None or best >= FAR_BELOW * node_bytes_per_s:
        return []
    message = (
        f"{table.collective}: {best / 1e9:.1f} GB/s is below {FAR_BELOW:.0%} of the node's "
        f"{node_bytes_per_s / 1e9:.0f} GB/s: the network looks misconfigured, repair it before planning"
    )
    return [Anomaly(kind="below_nominal", message=message)]


def _two_nodes(table: NcclTable) -> list[Anomaly]:
    if table.nodes != 2 or table.collective != "all_reduce" or (table.ranks_per_node or 1) < 2:
        return []
    message = (
        "all_reduce: two nodes run special algorithms; measure four or more before planning larger groups"
    )
    return [Anomaly(kind="two_nodes", message=message)]


def _cliffs(table: NcclTable) -> list[Anomaly]:
    found = []
    # Below a MiB latency rules, and bandwidth jumps where NCCL changes its protocol.
    rows = [row for row in table.rows if row.size_bytes >= 2**20]
    for small, large in pairwise(rows):
        if large.size_bytes > small.size_bytes and large.busbw_bytes_per_s < CLIFF * small.busbw_bytes_per_s:
            message = (
                f"{table.collective}: bandwidth falls from {small.busbw_bytes_per_s / 1e9:.0f} to "
                f"{large.busbw_bytes_per_s / 1e9:.0f} GB/s between "
                f"{small.size_bytes >> 20} and {large.size_bytes >> 20} MiB"
            )
            found.append(Anomaly(kind="cliff", message=message))
    return found


def compare_collectives(fits: Sequence[CollectiveFit]) -> tuple[Anomaly, ...]:
    """Say where collectives differ on the same ranks: one bandwidth must not stand for all."""
    reduce = {fit.ranks: fit for fit in fits if fit.collective == "all_reduce"}
    found = []
    for fit in fits:
        reference = reduce.get(fit.ranks)
        if reference is None or fit.collective not in RING:
            continue
        share = fit.bus_bytes_per_s / reference.bus_bytes_per_s
        if share < PLATEAU:
            message = (
                f"{fit.collective} reaches {share:.0%} of all_reduce's bus bandwidth on {fit.ranks} ranks: "
                "calibrate each collective on its own"
            )
            found.append(Anomaly(kind="collectives_differ", message=message))
    return tuple(found)
