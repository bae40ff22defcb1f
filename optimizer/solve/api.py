"""Ask one question and get a plan: enumerate, search, prove, and write down how."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.cost.estimate import estimate_row
from layoutopt.optimizer.cost.quantities import GOALS
from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.solve.certificate import build_certificate, relative_gap
from layoutopt.optimizer.solve.explain.gap import what_binds, why_slower
from layoutopt.optimizer.solve.explain.infeasible import explain_infeasible
from layoutopt.optimizer.solve.inputs import Question, cost_model_digest, question_from_plain
from layoutopt.optimizer.solve.judge import memory_verdict
from layoutopt.optimizer.solve.model.cp_model import SolverLimits
from layoutopt.optimizer.solve.plan import Alternative, Infeasibility, Plan, SolveOptions
from layoutopt.optimizer.solve.search.best_first import BestFirst, SearchOptions
from layoutopt.optimizer.solve.search.second import choose_second
from layoutopt.optimizer.solve.search.space_size import size_of_shapes
from layoutopt.optimizer.solve.verify.claim import Rebuilt
from layoutopt.optimizer.solve.verify.claim import verify_plan as check_plan
from layoutopt.optimizer.solve.verify.plan_file import Status
from layoutopt.optimizer.space.stages import virtual_stages
from layoutopt.optimizer.specs.errors import input_error
from layoutopt.optimizer.specs.layout import Layout, Recompute
from layoutopt.optimizer.specs.vocabulary import Granularity

if TYPE_CHECKING:
    from collections.abc import Callable

    from layoutopt.optimizer.cost.estimate import Estimate
    from layoutopt.optimizer.solve.certificate import Certificate
    from layoutopt.optimizer.solve.search.best_first import Found, Progress, SearchResult
    from layoutopt.optimizer.solve.search.costed_space import CostedSpace
    from layoutopt.optimizer.solve.search.second import Second
    from layoutopt.optimizer.solve.verify.layout import PricedLayout
    from layoutopt.optimizer.solve.verify.report import VerifyReport
    from layoutopt.optimizer.space.enumeration import Space
    from layoutopt.optimizer.specs.cluster import ClusterSpec
    from layoutopt.optimizer.specs.workload import Workload

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
    result = _search(source, asked, on_progress=on_progress, should_stop=should_stop)
    second: Second | None = None
    if asked.then is not None and result.complete and result.found:
        limits = _solver_limits(asked, start, should_stop)
        result, second = choose_second(source, GOALS[asked.then], result, limits, within=asked.within)
    certificate = _certificate(question, source, result)
    plan = _answer(question, source, result, certificate)
    return replace(plan, then=second, solve_time_s=time.perf_counter() - start)


def _solver_limits(
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
    asked = replace(options, framework=Framework.ANY, top=1)
    free = solve_layout(workload, cluster, asked, should_stop=should_stop)
    if plan.estimate is None or free.estimate is None or free.status is not Status.OPTIMAL:
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
    asked = _search_options(options, nearest)
    result = BestFirst(source, asked, on_progress=on_progress, should_stop=should_stop).run()
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


def _search_options(options: SolveOptions, near: float) -> SearchOptions:
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


def _status(result: SearchResult) -> Status:
    if not result.complete:
        return Status.STOPPED
    return Status.OPTIMAL if result.best else Status.INFEASIBLE


def _certificate(question: Question, source: CostedSpace, result: SearchResult) -> Certificate:
    """Write down the space, what excluded each tuple, and what was proven."""
    space, status = source.space, _status(result)
    blocks = int(np.sum(source.counts))
    size = size_of_shapes(source.tuples_by_shape(), len(source.degrees), blocks, space.stage_rule)
    best = result.best
    solver = {Status.OPTIMAL: "OPTIMAL", Status.INFEASIBLE: "INFEASIBLE"}.get(
        status, "FEASIBLE" if best else "UNKNOWN"
    )
    return build_certificate(
        source,
        size,
        inputs=question.to_plain(),
        cost_model=cost_model_digest(),
        solver_status=solver,
        step_time_s=best.step_time_s if best else None,
        bound_s=_stated_bound_s(source, result),
        removed_by_memory=result.by_memory,
        solved=result.solved,
        removed_by_rule={count.rule: count.tuples for count in space.counts.removed},
        gap_target=max(question.options.gap, question.options.within),
        rounding_s=result.rounding_s,
    )


def _stated_bound_s(source: CostedSpace, result: SearchResult) -> float | None:
    """Return the proven bound, None without one.

    It is not above the answer's price added up part by part, which rounds differently from the search's price.
    """
    if not np.isfinite(result.bound_s):
        return None
    if result.best is None:
        return result.bound_s
    return min(result.bound_s, max(_priced(source, result.best)[1].step_time_s, result.bound_s * (1 - 1e-12)))


def _answer(question: Question, source: CostedSpace, result: SearchResult, certificate: Certificate) -> Plan:
    """Turn what the search found into a plan."""
    priced = [_priced(source, found) for found in result.found]
    layout, estimate = priced[0] if priced else (None, None)
    infeasibility: Infeasibility | None = None
    if _status(result) is Status.INFEASIBLE:
        infeasibility = explain_infeasible(question, source)
    used = layout.gpus if layout else question.cluster.gpu_count
    return Plan(
        status=_status(result),
        layout=layout,
        estimate=estimate,
        verdict=memory_verdict(estimate.memory) if estimate else None,
        bound_s=certificate.bound_s,
        gap=relative_gap(estimate.step_time_s if estimate else None, certificate.bound_s),
        alternatives=tuple(_alternative(pair, priced[0]) for pair in priced[1:]),
        certificate=certificate,
        infeasibility=infeasibility,
        binds=what_binds(source, result.found[0], estimate) if estimate else (),
        idle_gpus=question.cluster.gpu_count - used,
        inputs=question.to_plain(),
        warnings=(),
        solve_time_s=0.0,
    )


def _priced(source: CostedSpace, found: Found) -> tuple[Layout, Estimate]:
    layout = layout_of(source, found)
    return layout, estimate_row(source.cost, layout, found.layout, found.blocks, found.recomputed)


def _alternative(pair: tuple[Layout, Estimate], best: tuple[Layout, Estimate]) -> Alternative:
    layout, estimate = pair
    return Alternative(
        layout=layout,
        estimate=estimate,
        slower=estimate.step_time_s / best[1].step_time_s - 1.0,
        why=why_slower(layout, estimate, *best),
    )


def layout_of(source: CostedSpace, found: Found) -> Layout:
    """Write a tuple with its stages as a layout; whole-layer recomputation of no layer is called none."""
    row = found.layout
    value = {name: int(getattr(row, name)[0]) for name in _DEGREES}
    codes = row.codebook
    recompute = codes.recomputes[int(row.recompute[0])]
    if recompute.granularity is Granularity.FULL and not found.recomputed.any():
        recompute = Recompute()
    schedule = codes.schedules[int(row.schedule[0])]
    stages = virtual_stages(
        source.cost.model, value["pp"], value["vp"], found.blocks, found.recomputed, schedule
    )
    return Layout(
        sp=bool(row.sp[0]),
        hsdp_shard=int(row.hsdp_shard[0]) or None,
        recompute=recompute,
        schedule=schedule,
        mesh_order=codes.orders[int(row.order[0])],
        precision=codes.precisions[int(row.precision[0])],
        savers=codes.savers_of(int(row.precision[0])),
        stages=stages,
        **value,
    )


_DEGREES = ("tp", "cp", "pp", "vp", "dp", "ep", "etp", "micro_batch", "micro_batches", "zero")


def verify_plan(
    plain: object, *, file: str = "", workload: Workload | None = None, cluster: ClusterSpec | None = None
) -> VerifyReport:
    """Check a plan against a space rebuilt from its own inputs, or from a given workload and cluster.

    Raises InputError when the plan is malformed.
    """
    if not isinstance(plain, dict) or not isinstance(plain.get("inputs"), dict):
        raise input_error(
            "a plan is a mapping with inputs", "what solve --json wrote", key="inputs", file=file
        )
    question = question_from_plain(plain["inputs"], file=file)
    question = replace(question, workload=workload or question.workload, cluster=cluster or question.cluster)
    source = question.costed_space()

    def breakdown(priced: PricedLayout) -> dict[str, float]:
        empty = Layout(precision=priced.batch.codebook.precisions[int(priced.batch.precision[0])])
        fresh = estimate_row(source.cost, empty, priced.batch, priced.blocks, priced.recomputed)
        return {str(name): value for name, value in fresh.breakdown_s.items()}

    rebuilt = Rebuilt(
        space=source,
        runs=question.workload.model.runs,
        cost_model=cost_model_digest(),
        inputs=question.to_plain(),
        removed_by_rule={count.rule: count.tuples for count in source.space.counts.removed},
        breakdown=breakdown,
    )
    return check_plan(plain, rebuilt, file=file)
