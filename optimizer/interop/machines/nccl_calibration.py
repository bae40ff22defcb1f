"""Collective benchmarks to constants of a cluster file's ``calibration``."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from layoutopt.optimizer.evidence.calibration import Sourced
from layoutopt.optimizer.interop.machines.nccl_fit import compare_collectives, find_anomalies, fit_collective
from layoutopt.optimizer.specs.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from layoutopt.optimizer.interop.machines.nccl_fit import Anomaly, CollectiveFit
    from layoutopt.optimizer.interop.machines.nccl_log import NcclTable
    from layoutopt.optimizer.specs.cluster import ClusterSpec

GATHERS = ("all_gather", "reduce_scatter")


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclCalibration:
    """Constants that measured collectives suggest, the fits behind them, and what to know first.

    ``values`` go into a cluster's ``calibration`` or as given constants into a calibration by runs;
    ``skipped`` says which tables or constants were left out and why.
    """

    values: dict[str, Sourced]
    fits: tuple[CollectiveFit, ...]
    anomalies: tuple[Anomaly, ...]
    skipped: tuple[str, ...]


def suggest_calibration(tables: Sequence[NcclTable], cluster: ClusterSpec) -> NcclCalibration:
    """Turn tables of collectives on ``cluster`` into constants of the network model.

    Inside a node all-gather and reduce-scatter give the share of NVLink that rings reach, all-reduce above it
    the gain of the switch. Between nodes all-reduce gives the share of the NICs, the others their ratio to
    it. Of several tables of a kind the one over most nodes counts. Wrong results, host times and values
    outside physical bounds are left out with the reason.
    """
    fits, skipped = _fits([_in_domain(table, cluster) for table in tables])
    found = [
        anomaly
        for table in tables
        for anomaly in find_anomalies(table, node_bytes_per_s=_used_bytes_per_s(table, cluster))
    ]
    suggested = _inside(fits, cluster) | _between(fits, cluster)
    values, outside = _within_bounds(suggested)
    return NcclCalibration(
        values=values,
        fits=tuple(fits),
        anomalies=(*found, *compare_collectives(fits)),
        skipped=(*skipped, *outside),
    )


def _in_domain(table: NcclTable, cluster: ClusterSpec) -> NcclTable:
    """Count nodes of one NVLink domain as one: between them nothing leaves NVLink."""
    within = table.nodes is not None and table.nodes > 1 and table.ranks <= cluster.nvlink_domain
    return replace(table, nodes=1) if within else table


def _used_bytes_per_s(table: NcclTable, cluster: ClusterSpec) -> float:
    """Nominal NIC bandwidth of the GPUs of a node that took part in a test."""
    here = table.ranks_per_node or cluster.gpus_per_node
    return cluster.nic_bytes_per_s * cluster.nics_per_node * min(1.0, here / cluster.gpus_per_node)


def _fits(tables: Sequence[NcclTable]) -> tuple[list[CollectiveFit], list[str]]:
    fits, skipped = [], []
    for table in tables:
        # A collective whose sums are wrong did not do its work: its speed is of something else.
        if table.failed:
            skipped.append(f"{table.collective} on {table.ranks} ranks: wrong results")
            continue
        try:
            fits.append(fit_collective(table))
        except InputError as error:
            skipped.append(f"{table.collective} on {table.ranks} ranks: {error.problems[0].what}")
    return fits, skipped


def _largest(fits: Sequence[CollectiveFit], names: Sequence[str], *, across: bool) -> list[CollectiveFit]:
    """The fits of some collectives, inside one node or across nodes, that span the most nodes and ranks."""
    fitting = [fit for fit in fits if fit.collective in names and fit.nodes and (fit.nodes > 1) == across]
    # The largest test is nearest to what is trained on.
    most = max(((fit.nodes or 0, fit.ranks) for fit in fitting), default=None)
    return [fit for fit in fitting if (fit.nodes, fit.ranks) == most]


def _sourced(value: float, fits: Sequence[CollectiveFit]) -> Sourced:
    shown = [f"{fit.collective} {fit.bus_bytes_per_s / 1e9:.0f} GB/s on {fit.ranks} ranks" for fit in fits]
    return Sourced(value=value, source="nccl-tests: " + ", ".join(shown))


def _mean_bus(fits: Sequence[CollectiveFit]) -> float:
    return sum(fit.bus_bytes_per_s for fit in fits) / len(fits)


def _inside(fits: Sequence[CollectiveFit], cluster: ClusterSpec) -> dict[str, Sourced]:
    """Constants of the NVLink domain."""
    family = cluster.gpu.generation.name
    gathers = _largest(fits, GATHERS, across=False)
    reduces = _largest(fits, ("all_reduce",), across=False)
    values: dict[str, Sourced] = {}
    if gathers:
        share = _mean_bus(gathers) / cluster.gpu.nvlink_bytes_per_s
        values[f"nvlink_fraction.{family}"] = _sourced(share, gathers)
    # Of one kind alone its own figure is taken; beside gathers, reductions tell what the switch adds.
    if reduces and not gathers:
        # in-switch sums and the share of the links cannot be told apart: their product is what was measured
        share = _mean_bus(reduces) / cluster.gpu.nvlink_bytes_per_s / _nvls_gain(cluster)
        values[f"nvlink_fraction.{family}"] = _sourced(share, reduces)
    if gathers and reduces and _mean_bus(reduces) > _mean_bus(gathers):
        gain = _mean_bus(reduces) / _mean_bus(gathers)
        values[f"nvls_gain.{family}"] = _sourced(gain, [*reduces, *gathers])
    return values


def _nvls_gain(cluster: ClusterSpec) -> float:
    """Return what all-reduce gains by sums in the switch; 1 where no switch sums."""
    from layoutopt.optimizer.evidence.parameters import known_parameters

    known = known_parameters().get(f"nvls_gain.{cluster.gpu.generation.name}")
    return known.value if known is not None else 1.0


def _between(fits: Sequence[CollectiveFit], cluster: ClusterSpec) -> dict[str, Sourced]:
    """Constants of the network: all-reduce's share of the NICs, and the others relative to it."""
    reduces = _largest(fits, ("all_reduce",), across=True)
    if not reduces:
        return {}
    reduce = reduces[0]
    share = reduce.bus_bytes_per_s / _nics_bytes_per_s(reduce, cluster)
    values = {f"network_fraction.{cluster.fabric}": _sourced(share, [reduce])}
    gathers = _largest(fits, GATHERS, across=True)
    exchanges = _largest(fits, ("alltoall",), across=True)
    if gathers:
        ratio = _mean_bus(gathers) / reduce.bus_bytes_per_s
        values[f"network_gather.{cluster.fabric}"] = _sourced(ratio, [*gathers, reduce])
    if exchanges:
        exchange = exchanges[0]
        ratio = _leaving_bytes_per_s(exchange) / _nics_bytes_per_s(exchange, cluster) / share
        values[f"network_all_to_all.{cluster.fabric}"] = _sourced(ratio, [exchange, reduce])
    return values


def _nics_bytes_per_s(fit: CollectiveFit, cluster: ClusterSpec) -> float:
    """Nominal NIC bandwidth of a node's ranks: all NICs, or the share of the GPUs that took part."""
    # A test with one rank a node has that GPU's NIC alone.
    used = min(1.0, fit.ranks / (fit.nodes or 1) / cluster.gpus_per_node)
    return cluster.nic_bytes_per_s * cluster.nics_per_node * used


def _leaving_bytes_per_s(fit: CollectiveFit) -> float:
    """What leaves a node in an all-to-all: its ranks' bus bandwidth, less what stays inside."""
    here = fit.ranks / (fit.nodes or 1)
    return fit.bus_bytes_per_s * here * (fit.ranks - here) / max(fit.ranks - 1, 1)


def _within_bounds(suggested: dict[str, Sourced]) -> tuple[dict[str, Sourced], list[str]]:
    from layoutopt.optimizer.evidence.parameters import known_parameters

    known = known_parameters()
    values, skipped = {}, []
    for name, entry in suggested.items():
        bounds = known[name].bounds if name in known else None
        if bounds is None:
            skipped.append(f"{name}: the network model has no such constant")
        elif not bounds[0] <= entry.value <= bounds[1]:
            skipped.append(f"{name} = {entry.value:.3g}: outside {bounds[0]:g} to {bounds[1]:g}")
        else:
            values[name] = entry
    return values, skipped
