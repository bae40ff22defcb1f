"""Why nothing fits: what binds, the least memory any layout needs, the fewest GPUs that would do."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.solve.explain.conflict import minimal_conflict
from layoutopt.optimizer.solve.explain.least_memory import least_memory
from layoutopt.optimizer.solve.explain.suggest import runs, suggestions
from layoutopt.optimizer.solve.plan import Infeasibility
from layoutopt.optimizer.solve.search.best_first import BestFirst
from layoutopt.optimizer.solve.search.demands import NO_DEMANDS, Finished
from layoutopt.optimizer.solve.search.result import SearchOptions
from layoutopt.optimizer.specs.cluster_part import resized

if TYPE_CHECKING:
    from collections.abc import Callable

    from layoutopt.optimizer.solve.inputs import Question
    from layoutopt.optimizer.solve.search.costed_space import CostedSpace

LARGEST_CLUSTER = 1 << 17
"""GPU counts above this are not tried when looking for the fewest that fit."""


CUT_SHORT = "the time was up before all was known of why, and of what would fit"
"""What is said of an explanation that is not all there is to say."""


def explain_infeasible(
    question: Question, source: CostedSpace, stopped: Callable[[], bool] | None = None
) -> Infeasibility:
    """Explain a space without any layout that fits, with what would make one run.

    Once ``stopped`` says so, what is not known yet is left out, and that is said.
    """
    why = _why(question, source, stopped)
    found = replace(why, suggestions=suggestions(question, stopped))
    if stopped is None or not stopped():
        return found
    return replace(found, message=f"{found.message}; {CUT_SHORT}", cut_short=True)


def _why(question: Question, source: CostedSpace, stopped: Callable[[], bool] | None) -> Infeasibility:
    empty = source.space.empty
    if empty is not None:
        return Infeasibility(
            message=empty.message,
            binding=f"rule {empty.rule}" if empty.rule else "no axis value",
            conflict=minimal_conflict(question, stopped),
        )
    if source.demands.any:
        missed = _missed_demands(question, source, stopped)
        if missed is not None:
            return missed
    leanest = least_memory(source, stopped=stopped)
    if leanest is None and stopped is not None and stopped():
        asked = ", and meets what is demanded" if source.demands.any else ""
        return Infeasibility(
            message=f"no layout has memory and layers enough for its stages{asked}", binding="not known"
        )
    if leanest is None:
        message = "the layers can't be split over the stages of any layout as the framework's rule asks"
        return Infeasibility(message=message, binding="stages", conflict=minimal_conflict(question, stopped))
    least, row = leanest.peak_bytes, leanest.layout
    capacity = float(source.terms(row).capacity_bytes[0])
    fewest = fewest_gpus(question, stopped)
    if fewest is None and stopped is not None and stopped():
        more = "more GPUs were not tried to the end"
    elif fewest is None:
        more = f"no size up to {LARGEST_CLUSTER:,} GPUs was found to fit"
    else:
        more = f"{fewest:,} GPUs of this kind fit"
    degrees = ", ".join(f"{name} {int(getattr(row, name)[0])}" for name in ("tp", "cp", "pp", "ep", "zero"))
    return Infeasibility(
        message=(
            f"no layout fits in memory: the leanest ({degrees}) needs {least / 1e9:.1f} GB on its fullest rank, "
            f"{capacity / 1e9:.1f} GB are usable; {more}"
        ),
        binding="memory",
        least_bytes=least,
        capacity_bytes=capacity,
        fewest_gpus=fewest,
        conflict=_with_size(question, minimal_conflict(question, stopped), fewest),
    )


def _with_size(question: Question, conflict: tuple[str, ...], fewest: int | None) -> tuple[str, ...]:
    """Add the number of GPUs to what excludes every layout, where more of them would do."""
    return (*conflict, f"{question.cluster.gpu_count:,} GPUs") if conflict and fewest else conflict


def _missed_demands(
    question: Question, source: CostedSpace, stopped: Callable[[], bool] | None
) -> Infeasibility | None:
    """Say what the fastest layout misses; None where nothing fits whatever is demanded."""
    free = replace(source, demands=NO_DEMANDS)
    best = BestFirst(free, SearchOptions(), should_stop=stopped).run().best
    if best is None:
        return None
    row = best.layout
    finished = Finished(
        batch=row, ranks=best.blocks.shape[1],
        blocks=best.blocks.sum(axis=0)[None], recomputed=best.recomputed.sum(axis=0)[None],
        step_s=np.array([best.step_time_s]), peak_bytes=np.array([best.peak_bytes]),
    )  # fmt: skip
    wanted = [required.text for required in source.demands.requirements]
    told = list(source.demands.explained(finished))
    own = source.demands.constrain is not None
    names = ", ".join([*wanted, *(["the given function"] if own else [])])
    why = f" ({'; '.join(told)})" if told else ""
    return Infeasibility(
        message=f"no layout meets {names}; the fastest without takes {best.step_time_s:.5g} s per step{why}",
        binding="requirement",
        conflict=minimal_conflict(question, stopped),
    )


def fewest_gpus(question: Question, stopped: Callable[[], bool] | None = None) -> int | None:
    """Return the smallest number of whole nodes' GPUs, of this kind, on which some layout fits; doubling, then halving.

    None where none fits up to the largest cluster, or where ``stopped`` ends it before it is known.
    """
    step = question.cluster.gpus_per_node
    low, high = question.cluster.gpu_count, question.cluster.gpu_count * 2
    while high <= LARGEST_CLUSTER and not _fits(question, high, stopped):
        low, high = high, high * 2
    if high > LARGEST_CLUSTER:
        return None
    for _ in range(4):  # within a sixteenth of the interval: layouts need divisors, so feasibility has gaps
        middle = (low + high) // 2 // step * step
        if not low < middle < high:
            break
        low, high = (low, middle) if _fits(question, middle, stopped) else (middle, high)
    return None if stopped is not None and stopped() else high


def _fits(question: Question, gpus: int, stopped: Callable[[], bool] | None) -> bool:
    """Whether any layout fits on a larger or smaller cluster of the same kind."""
    return runs(replace(question, cluster=resized(question.cluster, gpus)), stopped)
