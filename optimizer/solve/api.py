"""Ask one question and get a plan: enumerate, search, prove, and write down how."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.cost.batch import SAME
from layoutopt.optimizer.cost.estimate import estimate
from layoutopt.optimizer.cost.objectives import REGRET, parse_objective
from layoutopt.optimizer.cost.quantities import GOALS
from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.frameworks.releases import date_remarks
from layoutopt.optimizer.frameworks.switches import acting
from layoutopt.optimizer.solve.certificate import (
    Status,
    build_certificate,
    proven_status,
    relative_gap,
    solver_word,
)
from layoutopt.optimizer.solve.explain.gap import what_binds, why_slower
from layoutopt.optimizer.solve.explain.infeasible import explain_infeasible
from layoutopt.optimizer.solve.explain.switch_worth import worth_of_switches
from layoutopt.optimizer.solve.inputs import Question, cost_model_digest
from layoutopt.optimizer.solve.judge import memory_verdict
from layoutopt.optimizer.solve.model.coefficients import rounding_s
from layoutopt.optimizer.solve.model.cp_model import SolverLimits
from layoutopt.optimizer.solve.plan import Alternative, Plan, SolveOptions
from layoutopt.optimizer.solve.search.best_by import Asked, best_by
from layoutopt.optimizer.solve.search.best_first import BestFirst
from layoutopt.optimizer.solve.search.result import SearchOptions
from layoutopt.optimizer.solve.search.second import choose_second
from layoutopt.optimizer.solve.search.space_size import size_of_shapes
from layoutopt.optimizer.space.stages import virtual_stages
from layoutopt.optimizer.specs.layout import Layout, Recompute
from layoutopt.optimizer.specs.vocabulary import Granularity, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from layoutopt.optimizer.cost.estimate import Estimate
    from layoutopt.optimizer.solve.certificate import Certificate
    from layoutopt.optimizer.solve.search.best_by import ObjectiveAnswer
    from layoutopt.optimizer.solve.search.costed_space import CostedSpace
    from layoutopt.optimizer.solve.search.result import Found, Progress, SearchResult
    from layoutopt.optimizer.solve.search.second import Second
    from layoutopt.optimizer.solve.search.space_size import SpaceSize
    from layoutopt.optimizer.space.enumeration import Space
    from layoutopt.optimizer.specs.cluster import ClusterSpec
    from layoutopt.optimizer.specs.workload import Workload

SPACE_S = 1.0
"""Seconds of building the space that a time limit leaves out: an answer within a second or two needs them for its search."""

COMFORT_S = 1.0
"""Seconds for stages of the answer's tuple that leave memory free."""

COMFORT_STEPS = 2.0
"""Steps of the answer that stages with memory free must stay below: recomputing everything takes less."""

COMFORT_COST, COMFORT_GAP = 0.02, 0.005
"""Layouts with memory free that cost more are searched for, to within so much of the fastest of them."""

DISTANCES = (0.02, 0.1, 0.5, 2.5)
"""How much slower than the best runners-up may be, one attempt after the other, until there are enough of them."""


def solve_layout(
    workload: Workload,
    cluster: ClusterSpec,
    options: SolveOptions | None = None,
    *,
    on_progress: Callable[[Progress], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> Plan:
    """Find the layout with the smallest estimated step time, and prove it.

    ``on_progress`` is called as the search goes on; ``should_stop`` is polled and ends it with the best so far.
    """
    start = time.perf_counter()
    question = Question(workload=workload, cluster=cluster, options=options or SolveOptions())
    source = question.costed_space()
    asked = question.options
    # A limit is for the search: building the space takes what it takes, but for a second.
    built_s = time.perf_counter() - start
    limited = replace(asked, time_limit_s=asked.time_limit_s - max(built_s - SPACE_S, 0.0))
    result = _search(source, limited, on_progress=on_progress, should_stop=should_stop)
    second: Second | None = None
    # A second goal is chosen among proven fastest layouts: after a stop nobody knows which these are.
    if asked.then is not None and result.complete and result.found:
        limits = solver_limits(asked, start, should_stop)
        result, second = choose_second(source, GOALS[asked.then], result, limits, within=asked.within)
    result, outcome = _in_objective(question, source, result, start, should_stop)
    step_s = _priced(source, result.best)[1].step_time_s if result.best else None
    status = _status(source, result, step_s, gap_target(asked))
    certificate = _certificate(question, source, result, status, step_s)

    def late() -> bool:
        """Tell whether the time is up or a stop was asked for."""
        up = time.perf_counter() - start > asked.time_limit_s
        return up or (should_stop is not None and should_stop())

    plan = _answer(question, source, result, status, certificate, late)
    left_s = asked.time_limit_s - (time.perf_counter() - start)
    roomy = _comfortable(question, source, result, plan, (max(left_s, 0.0), late))
    spent_s = time.perf_counter() - start
    ties = result.open_ties if result.complete else 0
    return replace(
        plan, then=second, outcome=outcome, comfortable=roomy, open_ties=ties, solve_time_s=spent_s
    )


def _comfortable(
    question: Question,
    source: CostedSpace,
    result: SearchResult,
    plan: Plan,
    limits: tuple[float, Callable[[], bool]],
) -> Alternative | None:
    """Return a layout whose memory is not borderline, where the fastest one's is; None without any.

    It is the fastest of the near-ties and of the answer's own tuple with other stages; where these cost much, of a search of
    its own. ``limits`` are the seconds of that search, and what stops both: then only constructed stages are looked at.
    """
    options, best = question.options, result.best
    # Only where time alone was asked for is memory to spare worth a second answer.
    plain = parse_objective(options.minimize).is_time and options.then is None and not options.one_model
    if not (plain and plan.verdict is Verdict.BORDERLINE and best is not None):
        return None
    assert plan.estimate is not None
    share = source.cost.preset.borderline_share
    # What is left free on request is left free here, too.
    roomy = replace(source, reserve=max(1 - share, options.reserve))
    stages = BestFirst(roomy, SearchOptions(time_limit_s=COMFORT_S), should_stop=limits[1]).solve_tuple(
        best.layout, COMFORT_STEPS * best.step_time_s
    )
    most_bytes = share * plan.estimate.memory.capacity_bytes
    known = [one for one in (stages, *result.found) if one is not None and one.peak_bytes <= most_bytes]
    least_s = min((one.step_time_s for one in known), default=np.inf)
    if least_s > (1 + COMFORT_COST) * best.step_time_s and not limits[1]():
        searched = SearchOptions(gap=COMFORT_GAP, upper_s=least_s, time_limit_s=limits[0])
        found = BestFirst(roomy, searched, should_stop=limits[1]).run().best
        known += [] if found is None else [found]
    if not known:
        return None
    return _alternative(_priced(source, min(known, key=lambda one: one.step_time_s)), _priced(source, best))


def _in_objective(
    question: Question,
    source: CostedSpace,
    result: SearchResult,
    start: float,
    should_stop: Callable[[], bool] | None,
) -> tuple[SearchResult, ObjectiveAnswer | None]:
    """Search on in the objective that was asked for; times and bound come back in seconds of the answer's step."""
    options = question.options
    objective = parse_objective(options.minimize)
    if objective.is_time or result.best is None:
        return result, None
    asked = Asked(
        source=source,
        options=search_options(options, DISTANCES[0] if options.near is None else options.near),
        limits=solver_limits(options, start, should_stop),
        samples=question.costs_under(options.samples, source.cost),
        should_stop=should_stop,
    )
    found, outcome = best_by(objective, asked, result)
    return _in_seconds(source, found, outcome), outcome


def _in_seconds(source: CostedSpace, result: SearchResult, outcome: ObjectiveAnswer) -> SearchResult:
    """Price an objective's answers in seconds; the bound is as far below the step as in the objective."""
    steps = [_priced(source, found)[1].step_time_s for found in result.found]
    priced = [replace(found, step_time_s=step_s) for found, step_s in zip(result.found, steps, strict=True)]
    # Faster ones are no runners-up in an objective that they lose.
    rest = sorted((one for one in priced[1:] if one.step_time_s >= steps[0]), key=lambda one: one.step_time_s)
    open_ = outcome.value - outcome.bound
    left = open_ / max(abs(outcome.value), 1e-30)
    # a regret is a share of a step, and may be 0: any rounding is all of it
    share = open_ if parse_objective(outcome.name).statistic == REGRET else left
    # The solver's rounding is in seconds of a step: what is smaller is no gap.
    gap = 0.0 if outcome.proven and share * steps[0] <= result.rounding_s else min(max(left, 0.0), 1.0)
    return replace(result, found=(priced[0], *rest), bound_s=steps[0] * (1 - gap), complete=outcome.proven)


def solver_limits(
    options: SolveOptions, start: float, should_stop: Callable[[], bool] | None
) -> Callable[[], SolverLimits]:
    """Return what gives the limits of one solve at the time that it begins."""
    return lambda: SolverLimits(
        time_limit_s=options.time_limit_s - (time.perf_counter() - start),
        workers=options.workers,
        seed=options.seed,
        should_stop=should_stop,
    )


def describe_space(workload: Workload, cluster: ClusterSpec, options: SolveOptions | None = None) -> Space:
    """Return the declared space of a question without searching it."""
    question = Question(workload=workload, cluster=cluster, options=options or SolveOptions())
    return question.costed_space().space


def freer_gain(
    workload: Workload,
    cluster: ClusterSpec,
    plan: Plan,
    options: SolveOptions,
    *,
    should_stop: Callable[[], bool] | None = None,
) -> float | None:
    """How much faster the optimum of framework ``any`` is, relative to a plan's step.

    None where either has no layout, or the search was stopped before its proof.
    """
    # Rules only forbid: what the freest trainer gains is the price of all of a framework's rules.
    asked = replace(options, framework=Framework.ANY, top=1)
    free = solve_layout(workload, cluster, asked, should_stop=should_stop)
    if plan.estimate is None or free.estimate is None or free.status is Status.STOPPED:
        return None
    return 1.0 - free.estimate.step_time_s / plan.estimate.step_time_s


def _search(
    source: CostedSpace,
    options: SolveOptions,
    *,
    on_progress: Callable[[Progress], None] | None,
    should_stop: Callable[[], bool] | None,
) -> SearchResult:
    """Search; where runners-up are wanted however slow, again and farther until there are enough of them."""
    deadline = time.perf_counter() + options.time_limit_s
    nearest, *farther = DISTANCES if options.near is None else (options.near,)
    asked = search_options(options, nearest)
    result = BestFirst(source, asked, on_progress=on_progress, should_stop=should_stop).run()
    # Wider step by step: a wide search prices many more tuples, and most questions need none.
    for near in () if options.one_model else farther:
        if len(result.found) >= options.top or not result.complete or result.best is None:
            break
        left = deadline - time.perf_counter()
        asked = replace(asked, near=near, time_limit_s=left, upper_s=result.best.step_time_s)
        wider = BestFirst(source, asked, should_stop=should_stop).run()
        if not wider.complete:
            break
        result = wider
    return result


def search_options(options: SolveOptions, near: float) -> SearchOptions:
    """Return how to search; runners-up may be slower by the share ``near``."""
    return SearchOptions(
        top=options.top,
        near=near,
        time_limit_s=options.time_limit_s,
        workers=options.workers,
        gap=options.gap,
        seed=options.seed,
        one_model=options.one_model,
        upper_s=options.warm_start_s,
    )


def gap_target(options: SolveOptions) -> float:
    """Return how far above the fastest layout the answer may be: as asked of the search, or for a second goal."""
    return max(options.gap, options.within)


def _status(source: CostedSpace, result: SearchResult, step_s: float | None, target: float) -> Status:
    """Say what a search proved of its answer, which takes ``step_s``."""
    if step_s is None:
        return Status.INFEASIBLE if result.complete else Status.STOPPED
    return proven_status(
        step_s,
        _stated_bound_s(result, step_s) or 0.0,
        rounding_s=rounding_s(source.counts),
        gap_target=target,
    )


def _certificate(
    question: Question, source: CostedSpace, result: SearchResult, status: Status, step_s: float | None
) -> Certificate:
    """Write down the space, what excluded each tuple, and what was proven of an answer that takes ``step_s``."""
    space = source.space
    return build_certificate(
        source,
        closed_form_size(source),
        inputs=question.to_plain(),
        cost_model=cost_model_digest(),
        solver_status=solver_word(status, answered=step_s is not None),
        step_time_s=step_s,
        bound_s=_stated_bound_s(result, step_s),
        removed_by_memory=result.by_memory,
        solved=result.solved,
        removed_by_rule={count.rule: count.tuples for count in space.counts.removed},
        gap_target=gap_target(question.options),
        rounding_s=result.rounding_s,
    )


def closed_form_size(source: CostedSpace) -> SpaceSize:
    """Count a space without expanding it."""
    blocks = int(np.sum(source.counts))
    return size_of_shapes(source.tuples_by_shape(), len(source.degrees), blocks, source.rule)


def _stated_bound_s(result: SearchResult, step_s: float | None) -> float | None:
    """Return the proven bound, None without one.

    It is not above the answer's price added up part by part, which rounds differently from the search's price.
    """
    if not np.isfinite(result.bound_s):
        return None
    if step_s is None:
        return result.bound_s
    # One in 1e12 is what sums in another order differ by; a larger excess is a fault, and stays visible.
    return min(result.bound_s, max(step_s, result.bound_s * (1 - 1e-12)))


def _answer(
    question: Question,
    source: CostedSpace,
    result: SearchResult,
    status: Status,
    certificate: Certificate,
    stopped: Callable[[], bool],
) -> Plan:
    """Turn what the search found into a plan; what would take long is left out once ``stopped`` says so."""
    plan = plan_of(question, source, result.found, status=status, certificate=certificate)
    if status is not Status.INFEASIBLE:
        return plan
    return replace(plan, infeasibility=explain_infeasible(question, source, stopped))


def plan_of(
    question: Question,
    source: CostedSpace,
    layouts: Sequence[Found],
    *,
    status: Status,
    certificate: Certificate,
) -> Plan:
    """Write down all that follows from layouts, the answer first, and from what was proven of them."""
    priced = [_priced(source, found) for found in layouts]
    layout, estimate = priced[0] if priced else (None, None)
    used = layout.gpus if layout else question.cluster.gpu_count
    return Plan(
        status=status,
        layout=layout,
        estimate=estimate,
        verdict=memory_verdict(estimate.memory) if estimate else None,
        bound_s=certificate.bound_s,
        gap=relative_gap(estimate.step_time_s if estimate else None, certificate.bound_s),
        alternatives=tuple(_alternative(pair, priced[0]) for pair in priced[1:]),
        certificate=certificate,
        infeasibility=None,
        binds=what_binds(estimate) if estimate else (),
        switches_worth=worth_of_switches(source.cost, *priced[0]) if priced else {},
        idle_gpus=question.cluster.gpu_count - used,
        inputs=question.to_plain(),
        warnings=(
            *question.workload.model.remarks,
            *date_remarks(question.options.framework.record, question.options.space.software),
        ),
        solve_time_s=0.0,
    )


def _priced(source: CostedSpace, found: Found) -> tuple[Layout, Estimate]:
    layout = layout_of(source, found)
    return layout, estimate(source.cost, layout)


def _alternative(pair: tuple[Layout, Estimate], best: tuple[Layout, Estimate]) -> Alternative:
    layout, estimate = pair
    return Alternative(
        layout=layout,
        estimate=estimate,
        slower=estimate.step_time_s / best[1].step_time_s - 1.0,
        why=why_slower(layout, estimate, *best),
    )


def layout_of(source: CostedSpace, found: Found) -> Layout:
    """Write a tuple with its stages as a layout, without what does nothing there.

    Whole-layer recomputation of no layer is called none.
    """
    row = found.layout
    value = {name: int(getattr(row, name)[0]) for name in SAME}
    codes = row.codebook
    recompute = codes.recomputes[int(row.recompute[0])]
    recomputed = found.blocks if recompute.group else found.recomputed
    if recompute.granularity is Granularity.FULL and not recomputed.any():
        recompute = Recompute()
    schedule = codes.schedules[int(row.schedule[0])]
    stages = virtual_stages(source.cost.model, value["pp"], value["vp"], found.blocks, recomputed, schedule)
    whole = Layout(
        sp=bool(row.sp[0]),
        hsdp_shard=int(row.hsdp_shard[0]) or None,
        recompute=recompute,
        schedule=schedule,
        mesh_order=codes.orders[int(row.order[0])],
        precision=codes.precisions[int(row.precision[0])],
        savers=codes.savers_of(int(row.precision[0])),
        switches=codes.switches_of(int(row.precision[0])),
        stages=stages,
        **value,
    )
    return replace(whole, switches=acting(whole.switches, whole, source.model))
