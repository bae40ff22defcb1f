"""What to buy or rent: for every GPU, network and precision the smallest size that trains in time, with days and cost.

Sizes and batches are free. Days are expected ones, failures and checkpoints included; the cost is that of all GPUs for those
days, with the energy's where it is not in the GPU's price.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, inf
from typing import TYPE_CHECKING

from layoutopt.optimizer.cost.budget import gpu_power_w
from layoutopt.optimizer.evidence.band import calibrated_by_runs, error_band
from layoutopt.optimizer.solve.api import solve_layout
from layoutopt.optimizer.specs.errors import input_error
from layoutopt.optimizer.specs.loading import override_training
from layoutopt.optimizer.specs.units import DAY_S, HOUR_S
from layoutopt.optimizer.sweep.families import network_gbit_per_s, with_network
from layoutopt.optimizer.sweep.inverse import (
    LARGEST,
    SizeAnswer,
    answer_of,
    least_for_deadline,
    never_slower,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from layoutopt.optimizer.plan.options import PlanOptions
    from layoutopt.optimizer.solve.plan import Plan
    from layoutopt.optimizer.specs.cluster import ClusterSpec
    from layoutopt.optimizer.specs.layout import Layout
    from layoutopt.optimizer.specs.vocabulary import Precision
    from layoutopt.optimizer.specs.workload import Workload
    from layoutopt.optimizer.sweep.families import ClusterFamily
    from layoutopt.optimizer.sweep.inverse import Solve

ODD_PARTS = (1, 3, 5, 9, 15)
"""Nodes are tried in these multiples of powers of two, at most a quarter apart: others divide into few layouts."""

MOST_BETWEEN = 6
"""Sizes tried at most between the smallest of the usual sizes that is in time and the next smaller usual one."""

FIRST_SHARE = 0.35
"""Share of the GPUs' peak at which the first size tried would just do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What may be bought: a family of clusters with a network rate per GPU (Gbit/s; None: its own) and prices.

    ``gpu_hour_cost`` and ``kwh_cost`` in one currency, None where not stated. ``gpu_hours_per_failure`` and ``pue`` replace
    the family's own.
    """

    family: ClusterFamily
    network_gbit_per_s: float | None = None
    gpu_hour_cost: float | None = None
    kwh_cost: float | None = None
    gpu_hours_per_failure: float | None = None
    pue: float | None = None

    def at(self, gpus: int) -> ClusterSpec:
        """Return the machine with so many GPUs."""
        cluster = with_network(self.family.at(gpus), self.network_gbit_per_s)
        failures = cluster.failures
        if self.gpu_hours_per_failure is not None:
            failures = replace(failures, gpu_hours_per_failure=self.gpu_hours_per_failure)
        return replace(cluster, failures=failures, pue=self.pue if self.pue is not None else cluster.pue)


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """The smallest size of one machine that trains in time, in one precision.

    ``days`` are expected ones, ``days_80`` the interval of four fifths of such runs, ``cost`` the sum of ``gpu_cost`` and
    ``energy_cost``, None without prices. ``cluster`` is None, and so are all figures, where no size up to the largest does;
    ``reason`` says why.
    """

    gpu: str
    network_gbit_per_s: float
    precision: Precision
    gpus: int | None = None
    global_batch: int | None = None
    step_time_s: float | None = None
    mfu_causal: float | None = None
    days: float | None = None
    days_80: tuple[float, float] | None = None
    energy_kwh: float | None = None
    gpu_cost: float | None = None
    energy_cost: float | None = None
    layout: Layout | None = None
    cluster: ClusterSpec | None = None
    reason: str = ""
    tried: tuple[SizeAnswer, ...] = ()

    @property
    def cost(self) -> float | None:
        """All that the run costs."""
        known = [one for one in (self.gpu_cost, self.energy_cost) if one is not None]
        return sum(known) if known else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Solved:
    """One size with its best batch."""

    workload: Workload
    cluster: ClusterSpec
    plan: Plan
    answer: SizeAnswer


def offers(
    workload: Workload,
    machines: Sequence[Machine],
    precisions: Sequence[Precision],
    options: PlanOptions,
    *,
    days: float,
    batches: tuple[int, int],
    sizes: Sequence[int] | None = None,
    solve: Solve = solve_layout,
) -> tuple[Offer, ...]:
    """Return an offer per machine and precision, in their order.

    ``batches`` are the smallest and the largest global batch allowed, sequences; ``sizes`` the numbers of GPUs that may be
    bought, ascending, None: whole nodes that divide well. Raises ``InputError`` without a token count, for a deadline that
    is not above 0, for batches that are no range, and for sizes that a machine does not come in.
    """
    if not days > 0:
        raise input_error(f"{days:g} days", "above 0", key="days")
    if not 0 < batches[0] <= batches[1]:
        raise input_error(f"batches from {batches[0]} to {batches[1]}", "first <= last, above 0", key="batch")
    asked = [override_training(workload, precision=precision) for precision in precisions]
    return tuple(
        _offer(one, machine, options, days, batches, sizes, solve) for machine in machines for one in asked
    )


def cheapest_offer(found: Sequence[Offer]) -> Offer | None:
    """Return the offer with the least cost, of GPU-days where no price is stated; None where none trains in time."""
    priced = all(one.cost is not None for one in found if one.gpus)
    return min(
        (one for one in found if one.gpus),
        key=lambda one: (one.cost or 0.0) if priced else (one.days or 0.0) * (one.gpus or 0),
        default=None,
    )


def _offer(
    workload: Workload,
    machine: Machine,
    options: PlanOptions,
    days: float,
    batches: tuple[int, int],
    sizes: Sequence[int] | None,
    solve: Solve,
) -> Offer:
    first = machine.family.stated()
    solved: dict[int, _Solved] = {}

    def days_at(gpus: int) -> float | None:
        """Return the days of a size's best batch, solved once."""
        if gpus not in solved:
            solved[gpus] = _best_batch(workload, machine.at(gpus), options, batches, solve)
        return solved[gpus].answer.expected_days

    at_least = least_for_deadline(workload, first, days, options.solve)
    buyable = list(_sizes(first) if sizes is None else sizes)
    found = _smallest(buyable, at_least, days, days_at)
    if found is not None and sizes is None:
        between = sizes_between(buyable, found, at_least, first.gpus_per_node)
        found = next((gpus for gpus in between if (days_at(gpus) or inf) <= days), found)
    tried = never_slower([solved[gpus].answer for gpus in sorted(solved)])
    network = network_gbit_per_s(with_network(first, machine.network_gbit_per_s))
    precision = workload.training.precision
    nothing = Offer(gpu=machine.family.name, network_gbit_per_s=network, precision=precision, tried=tried)
    if found is None:
        return replace(nothing, reason=_reason(solved, at_least, buyable[-1]))
    return _filled(nothing, solved[found], machine, options)


def _reason(solved: Mapping[int, _Solved], at_least: int, most: int) -> str:
    """Say why no size is done in time: the fastest that was tried, what no layout meets, or more GPUs than are tried."""
    if not solved:
        bound = f"{at_least:,} GPUs that did nothing but multiply would take as long"
        return f"{bound}, at most {most:,} are tried"
    timed = [one for one in solved.values() if one.answer.expected_days is not None]
    if timed:
        best = min(timed, key=lambda one: one.answer.expected_days or 0.0)
        took = f"take {best.answer.expected_days:.3g} days"
        return f"{best.answer.gpus:,} GPUs, the fastest of {len(solved)} sizes tried, {took}"
    why = solved[max(solved)].plan.infeasibility
    return why.message if why is not None else "no size tried has a layout"


def _sizes(cluster: ClusterSpec) -> Iterator[int]:
    """Yield sizes of whole nodes, ascending, whose odd parts divide into layouts."""
    node = cluster.gpus_per_node
    nodes = {odd << power for odd in ODD_PARTS for power in range(18)}
    yield from (count * node for count in sorted(nodes) if count * node <= LARGEST)


def _smallest(
    sizes: Sequence[int], at_least: int, days: float, days_at: Callable[[int], float | None]
) -> int | None:
    """Return the smallest of the sizes that is done in time, none below ``at_least`` tried; None where none is found.

    Days fall as GPUs grow, but for sizes that divide badly: the search narrows from what each size took, and every smaller
    size than it found is tried too.
    """
    took: dict[int, float] = {}

    def in_time(gpus: int) -> bool:
        """Tell whether a size is done in time; endless without a layout."""
        taken = days_at(gpus)
        took[gpus] = inf if taken is None else taken
        return took[gpus] <= days

    found = _narrowed(sizes, at_least, days, in_time, took)
    smaller = (gpus for gpus in sizes if gpus >= at_least and gpus not in took)
    return next((gpus for gpus in smaller if (found is None or gpus < found) and in_time(gpus)), found)


def sizes_between(sizes: Sequence[int], found: int, at_least: int, node: int) -> list[int]:
    """Return sizes of whole nodes between ``found`` and the next smaller of ``sizes``, ascending, ``at_least`` or more.

    At most six: of more those with the highest power of two in their nodes, which divide into the most layouts; of equal
    ones the smaller.
    """
    below = max((gpus for gpus in sizes if gpus < found), default=0)
    nodes = range(max(below // node + 1, ceil(at_least / node)), ceil(found / node))
    return sorted(count * node for count in sorted(nodes, key=lambda n: -(n & -n))[:MOST_BETWEEN])


def _narrowed(
    sizes: Sequence[int],
    at_least: int,
    days: float,
    in_time: Callable[[int], bool],
    took: Mapping[int, float],
) -> int | None:
    """Return the smallest size in time if none is slower than a smaller one; ``took`` holds what tried ones took."""
    low, high = next((i for i, gpus in enumerate(sizes) if gpus >= at_least), len(sizes)), len(sizes)
    # Runs reach a share of the peak; the bound assumes all of it.
    wanted = at_least / FIRST_SHARE
    while low < high:
        place = next((i for i in range(low, high) if sizes[i] >= wanted), high - 1)
        if in_time(sizes[place]):
            high = place
        else:
            low = place + 1
        # Days fall about as GPUs grow, which points near the size sought.
        taken = took[sizes[place]]
        wanted = sizes[place] * (2.0 if taken == inf else taken / days)
    return sizes[high] if high < len(sizes) else None


def _best_batch(
    workload: Workload,
    cluster: ClusterSpec,
    options: PlanOptions,
    batches: tuple[int, int],
    solve: Solve,
) -> _Solved:
    """Solve a size for the batches that divide well over it and return the one that is done first."""
    found = [
        _solved(override_training(workload, global_batch=batch), cluster, options, solve)
        for batch in _batches(cluster.gpu_count, batches)
    ]
    return min(found, key=lambda one: one.answer.expected_days or inf)


def _batches(gpus: int, batches: tuple[int, int]) -> list[int]:
    """Return the smallest batch, and the largest whose odd part is that of the GPUs: what data parallelism divides."""
    smallest, largest = batches
    # Powers of two divide almost anything; what has to match is the odd part.
    odd = gpus // (gpus & -gpus)
    fitting = odd << max((largest // odd).bit_length() - 1, 0)
    return sorted({smallest, fitting if smallest <= fitting <= largest else smallest})


def _solved(workload: Workload, cluster: ClusterSpec, options: PlanOptions, solve: Solve) -> _Solved:
    plan = solve(workload, cluster, options.solve)
    answer = answer_of(plan, workload, cluster, options)
    return _Solved(workload=workload, cluster=cluster, plan=plan, answer=answer)


def _filled(offer: Offer, one: _Solved, machine: Machine, options: PlanOptions) -> Offer:
    """Add to an offer what its size takes."""
    answer, training, cluster = one.answer, one.workload.training, one.cluster
    days = answer.expected_days or 0.0
    band = error_band(one.workload, cluster, training.precision, framework=options.solve.framework)
    # The share by which a step may be off is that of the days: they are steps of one length.
    low, high = band.intervals_s(days, calibrated=calibrated_by_runs(cluster))["80"]
    gpu_hours = days * DAY_S / HOUR_S * answer.gpus
    energy_kwh = gpu_hours * gpu_power_w(cluster) / 1e3
    return replace(
        offer,
        gpus=answer.gpus,
        global_batch=training.global_batch,
        step_time_s=answer.step_time_s,
        mfu_causal=answer.mfu_causal,
        days=days,
        days_80=(low, high),
        energy_kwh=energy_kwh,
        gpu_cost=None if machine.gpu_hour_cost is None else gpu_hours * machine.gpu_hour_cost,
        energy_cost=None if machine.kwh_cost is None else energy_kwh * machine.kwh_cost,
        layout=one.plan.layout,
        cluster=cluster,
    )
