"""Questions asked backwards: how many GPUs, at what cost, which batch, and what a better machine would be worth.

Every answer is solved, not interpolated; what was tried is part of the answer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, inf
from typing import TYPE_CHECKING

from layoutopt.optimizer.cost.budget import training_budget
from layoutopt.optimizer.cost.factory import CostKind, build_cost_model
from layoutopt.optimizer.cost.flops import model_flops_per_token
from layoutopt.optimizer.cost.hardware import sustained_rates
from layoutopt.optimizer.cost.optimizers import moment_bytes
from layoutopt.optimizer.cost.parameters import model_parameters
from layoutopt.optimizer.plan.fault_plan import expected_wall_s, plan_faults
from layoutopt.optimizer.solve.api import solve_layout
from layoutopt.optimizer.solve.inputs import Question
from layoutopt.optimizer.solve.search.best_first import BestFirst
from layoutopt.optimizer.solve.search.result import SearchOptions
from layoutopt.optimizer.space.divisors import divisors
from layoutopt.optimizer.specs.errors import input_error
from layoutopt.optimizer.specs.loading import override_training
from layoutopt.optimizer.specs.units import DAY_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from layoutopt.optimizer.plan.options import PlanOptions
    from layoutopt.optimizer.solve.plan import Plan, SolveOptions
    from layoutopt.optimizer.specs.cluster import ClusterSpec
    from layoutopt.optimizer.specs.workload import Workload
    from layoutopt.optimizer.sweep.families import ClusterFamily

    Solve = Callable[[Workload, ClusterSpec, SolveOptions], Plan]

LARGEST = 1 << 17
"""Sizes above 131,072 GPUs are not tried."""

REFINEMENTS = 32
"""Sizes tried between a size that misses a deadline and its double that meets it."""

DOUBLINGS = 16
"""Times that a batch is doubled at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeAnswer:
    """What one size gives: ``days`` without failures, ``expected_days`` with them, ``cost`` of the expected days.

    All None where nothing fits. ``used_gpus`` train where the others had better stand idle, None: all of them.
    """

    gpus: int
    used_gpus: int | None = None
    step_time_s: float | None = None
    mfu_causal: float | None = None
    days: float | None = None
    expected_days: float | None = None
    cost: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FewestGpus:
    """The smallest size that will do, None when none was found up to the largest tried.

    No size below ``at_least`` can do, whatever the layout. ``step_gpus`` is the distance of the sizes tried last:
    between two of them smaller sizes may exist that do.
    """

    gpus: int | None
    at_least: int
    step_gpus: int
    tried: tuple[SizeAnswer, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchAnswer:
    """One global batch in sequences: step time, tokens/s, and the gain over half the batch (None for the first)."""

    global_batch: int
    step_time_s: float | None
    tokens_per_s: float | None
    gain: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LargestBatch:
    """The largest batch whose last doubling still gained ``worth`` in tokens/s, and every batch tried."""

    global_batch: int | None
    worth: float
    tried: tuple[BatchAnswer, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MarginalValue:
    """What ``more`` (0.1: 10% more) of one resource is worth: the step time re-solved, and the share saved.

    ``days_saved`` and ``cost_saved`` are None without a token count or a price.
    """

    resource: str
    more: float
    step_time_s: float
    saved: float
    days_saved: float | None
    cost_saved: float | None


def size_answer(
    workload: Workload, cluster: ClusterSpec, options: PlanOptions, *, solve: Solve = solve_layout
) -> SizeAnswer:
    """Solve one size and say how long the run takes and what it costs; raises ``InputError`` without a token count."""
    return answer_of(solve(workload, cluster, options.solve), workload, cluster, options)


def answer_of(plan: Plan, workload: Workload, cluster: ClusterSpec, options: PlanOptions) -> SizeAnswer:
    """Say how long the run takes under a plan and what it costs; raises ``InputError`` without a token count."""
    gpus, model = cluster.gpu_count, workload.model
    if plan.estimate is None or plan.layout is None:
        return SizeAnswer(gpus=gpus)
    step_time_s = plan.estimate.step_time_s
    budget = training_budget(model, workload.training, cluster, step_time_s=step_time_s, gpus=gpus)
    # One simulated run: the expected days below come from a formula, and nobody asks here how far runs spread.
    once, trained_s = replace(options, simulated_runs=1), budget.days * DAY_S
    faults = plan_faults(trained_s, model_parameters(model, with_mtp=True), plan.layout.gpus, cluster, once)
    expected_days = expected_wall_s([(trained_s, plan.layout)], model, cluster, faults) / DAY_S
    price = options.gpu_hour_cost
    return SizeAnswer(
        gpus=gpus,
        step_time_s=step_time_s,
        mfu_causal=plan.estimate.mfu_causal,
        days=budget.days,
        expected_days=expected_days,
        cost=None if price is None else expected_days * 24 * gpus * price,
    )


def fewest_that_fit(
    workload: Workload, family: ClusterFamily, options: SolveOptions, *, largest: int = LARGEST
) -> FewestGpus:
    """Find the smallest size on which some layout of the space fits: every divisor of a node, then every node.

    Sizes from the least memory that the optimizer state needs anywhere are tried one by one, so no smaller size
    of whole nodes fits.
    """
    first = family.stated()
    at_least, node = _least_for_states(workload, first, options), first.gpus_per_node
    found, tried = None, []
    for gpus in _whole_sizes(first, at_least, largest):
        if _fits(Question(workload=workload, cluster=family.at(gpus), options=options)):
            found = gpus
            break
        tried.append(SizeAnswer(gpus=gpus))
    return FewestGpus(gpus=found, at_least=at_least, step_gpus=node, tried=tuple(tried))


def _whole_sizes(cluster: ClusterSpec, at_least: int, largest: int) -> Iterator[int]:
    """Yield divisors of a node and multiples of it, ascending, from ``at_least`` on."""
    node = cluster.gpus_per_node
    yield from (gpus for gpus in divisors(node) if at_least <= gpus < node)
    yield from range(max(ceil(at_least / node), 1) * node, largest + 1, node)


def _least_for_states(workload: Workload, cluster: ClusterSpec, options: SolveOptions) -> int:
    """Bound the size from below: master weights and moments exist at least once, in the memory of all GPUs."""
    model, framework = workload.model, options.framework
    cost = build_cost_model(model, workload.training, cluster, framework=framework, kind=options.cost)
    moments = moment_bytes(cost.preset)
    states = model_parameters(model) * (cost.preset.master_bytes + min(moments.matrix, moments.other))
    return max(ceil(states / cluster.gpu.memory_bytes), 1)


def _fits(question: Question) -> bool:
    """Tell whether any layout of the space fits; the first one found ends the search."""
    source = question.costed_space()
    if source.space.empty is not None:
        return False
    return bool(BestFirst(source, SearchOptions(gap=1.0)).run().found)


def fewest_for_deadline(
    workload: Workload,
    family: ClusterFamily,
    options: PlanOptions,
    *,
    days: float,
    largest: int = LARGEST,
    solve: Solve = solve_layout,
) -> FewestGpus:
    """Find the smallest size whose expected run, failures included, takes at most ``days``.

    Powers of two of nodes, whose degrees are the most, are tried from the size on at which GPUs would do nothing
    but multiply; between the last that misses the deadline and the first that meets it up to 32 sizes are tried in
    ascending order. Raises ``InputError`` without a token count or for a deadline that is not above 0.
    """
    if not days > 0:
        raise input_error(f"{days} days", "above 0", key="days")
    first = family.stated()
    at_least, node = least_for_deadline(workload, first, days, options.solve), first.gpus_per_node
    tried: list[SizeAnswer] = []

    def meets(gpus: int) -> bool:
        """Solve a size and tell whether it meets the deadline."""
        tried.append(size_answer(workload, family.at(gpus), options, solve=solve))
        # A size without a layout meets no deadline.
        return (tried[-1].expected_days or days + 1) <= days

    # Below the bound nothing can meet the deadline, so that the interval is open there.
    low, high = at_least - 1, node
    while high < at_least:
        high *= 2
    while high <= largest and not meets(high):
        low, high = high, high * 2
    if high > largest:
        return FewestGpus(gpus=None, at_least=at_least, step_gpus=node, tried=never_slower(tried))
    step = max(ceil((high - low) / REFINEMENTS / node), 1) * node
    between = range((low // step + 1) * step, high, step)
    gpus = next((size for size in between if size >= at_least and meets(size)), high)
    return FewestGpus(gpus=gpus, at_least=at_least, step_gpus=step, tried=never_slower(tried))


def least_for_deadline(workload: Workload, cluster: ClusterSpec, days: float, options: SolveOptions) -> int:
    """Bound the size from below: model FLOPs of the run at the fastest rate of any multiplication.

    Raises ``InputError`` without a token count.
    """
    training = workload.training
    if not training.total_tokens:
        what = "a deadline needs the number of tokens"
        raise input_error(what, "total_tokens, e.g. 15.6e12", key="training")
    # Causal, the lesser count: kernels that skip the masked half do no more, and a bound must not count what they skip.
    per_token = model_flops_per_token(workload.model, training.sequence_length, causal=True)
    fastest = _fastest_flops_per_s(workload, cluster, options)
    return max(ceil(per_token * training.total_tokens / (fastest * days * DAY_S)), 1)


def _fastest_flops_per_s(workload: Workload, cluster: ClusterSpec, options: SolveOptions) -> float:
    """Return the most that a GPU multiplies in the formats that may be chosen; its peak where it has none of them."""
    formats = options.space.precisions or (workload.training.precision,)
    known = [one for one in formats if one in cluster.gpu.dense_flops]
    if not known or options.cost is not CostKind.FULL:
        return max(cluster.gpu.dense_flops.values())
    model = build_cost_model(workload.model, workload.training, cluster, framework=options.framework)
    rates = [sustained_rates(cluster.gpu, one, model.constants, model.preset) for one in known]
    return max(max(one.linear_flops_per_s, one.wide_flops_per_s, one.attention_flops_per_s) for one in rates)


def cost_by_size(
    workload: Workload,
    family: ClusterFamily,
    gpus: Sequence[int],
    options: PlanOptions,
    *,
    solve: Solve = solve_layout,
) -> tuple[SizeAnswer, ...]:
    """Answer every size; ``cheapest`` picks the best."""
    return never_slower([size_answer(workload, family.at(count), options, solve=solve) for count in gpus])


def never_slower(answers: Sequence[SizeAnswer]) -> tuple[SizeAnswer, ...]:
    """Return answers in their order, each no slower than a smaller size: on more GPUs its job runs, the others idle."""
    found: dict[int, SizeAnswer] = {}
    best: SizeAnswer | None = None
    for answer in sorted(answers, key=lambda one: one.gpus):
        if best is not None and (answer.expected_days or inf) > (best.expected_days or inf):
            answer = _with_idle(best, answer.gpus)
        elif answer.expected_days is not None:
            best = answer
        found[answer.gpus] = answer
    return tuple(found[answer.gpus] for answer in answers)


def _with_idle(smaller: SizeAnswer, gpus: int) -> SizeAnswer:
    """Return a smaller size's job on more GPUs, of which all are paid for."""
    share = smaller.gpus / gpus
    return replace(
        smaller,
        gpus=gpus,
        used_gpus=smaller.gpus,
        mfu_causal=None if smaller.mfu_causal is None else smaller.mfu_causal * share,
        cost=None if smaller.cost is None else smaller.cost / share,
    )


def cheapest(answers: Sequence[SizeAnswer], *, days: float | None = None) -> SizeAnswer | None:
    """Return the answer with the least cost, within a deadline if one is given; of equals the smaller size.

    Without a price GPU-days are compared.
    """

    def cost(answer: SizeAnswer) -> tuple[float, int]:
        """Rank answers by cost, GPU-hours where no price is known, then by GPUs."""
        spent = answer.cost if answer.cost is not None else (answer.expected_days or 0.0) * answer.gpus
        return spent, answer.gpus

    fitting = [answer for answer in answers if answer.expected_days is not None]
    in_time = [answer for answer in fitting if days is None or (answer.expected_days or 0.0) <= days]
    return min(in_time, key=cost, default=None)


def largest_useful_batch(
    workload: Workload,
    cluster: ClusterSpec,
    options: SolveOptions,
    *,
    worth: float = 0.02,
    most: int | None = None,
    solve: Solve = solve_layout,
) -> LargestBatch:
    """Double the global batch until a doubling gains less than ``worth`` in tokens/s, or passes ``most`` sequences.

    What a larger batch costs in learning is not modelled: give the largest that your model learns from as ``most``.
    """
    tried: list[BatchAnswer] = []
    best: int | None = None
    batch = workload.training.global_batch
    for _ in range(DOUBLINGS):
        asked = override_training(workload, global_batch=batch)
        estimate = solve(asked, cluster, options).estimate
        rate = None if estimate is None else asked.training.tokens_per_step / estimate.step_time_s
        earlier = tried[-1].tokens_per_s if tried else None
        answer = BatchAnswer(
            global_batch=batch,
            step_time_s=None if estimate is None else estimate.step_time_s,
            tokens_per_s=rate,
            gain=None if rate is None or earlier is None else rate / earlier - 1,
        )
        tried.append(answer)
        if rate is not None and (answer.gain is None or answer.gain >= worth):
            best = batch
        # Before the first batch that runs nothing was gained or lost: go on doubling.
        elif best is not None:
            break
        batch *= 2
        if most is not None and batch > most:
            break
    return LargestBatch(global_batch=best, worth=worth, tried=tuple(tried))


def improved(cluster: ClusterSpec, more: float) -> dict[str, ClusterSpec]:
    """Return the cluster with ``more`` of one resource at a time: memory, network, NVLink, FLOP/s, HBM bandwidth."""
    gpu, factor = cluster.gpu, 1 + more
    flops = {precision: rate * factor for precision, rate in gpu.dense_flops.items()}
    return {
        "memory": replace(cluster, gpu=replace(gpu, memory_bytes=gpu.memory_bytes * factor)),
        "network": replace(cluster, nic_bytes_per_s=cluster.nic_bytes_per_s * factor),
        "nvlink": replace(cluster, gpu=replace(gpu, nvlink_bytes_per_s=gpu.nvlink_bytes_per_s * factor)),
        "flops": replace(cluster, gpu=replace(gpu, dense_flops=flops)),
        "hbm": replace(cluster, gpu=replace(gpu, hbm_bytes_per_s=gpu.hbm_bytes_per_s * factor)),
    }


def marginal_values(
    workload: Workload,
    cluster: ClusterSpec,
    step_time_s: float,
    options: PlanOptions,
    *,
    more: float = 0.10,
    solve: Solve = solve_layout,
) -> tuple[MarginalValue, ...]:
    """Re-solve with more of each resource and compare with ``step_time_s``, the optimum on the cluster as it is.

    Raises ``InputError`` for an explicit graph, whose links state their own rates.
    """
    if cluster.graph is not None:
        what = f"{cluster.name} is an explicit graph"
        raise input_error(what, "a cluster described by levels", key="cluster")
    training, price = workload.training, options.gpu_hour_cost
    values = []
    for resource, better in improved(cluster, more).items():
        # Solved anew, not priced anew: with more memory another layout may be the fastest.
        estimate = solve(workload, better, options.solve).estimate
        if estimate is None:
            raise input_error(f"nothing fits with {more:.0%} more {resource}", key="cluster")
        after_s, days = estimate.step_time_s, None
        if training.total_tokens:
            days = (step_time_s - after_s) * training.total_tokens / training.tokens_per_step / DAY_S
        value = MarginalValue(
            resource=resource,
            more=more,
            step_time_s=after_s,
            saved=1 - after_s / step_time_s,
            days_saved=days,
            cost_saved=None if days is None or price is None else days * 24 * cluster.gpu_count * price,
        )
        values.append(value)
    return tuple(values)
