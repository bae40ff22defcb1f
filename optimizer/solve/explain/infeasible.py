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
    from layoutopt.optimizer.solve.inputs import Question
    from layoutopt.optimizer.solve.search.costed_space import CostedSpace

LARGEST_CLUSTER = 1 << 17
"""GPU counts above this are not tried when looking for the fewest that fit."""


def explain_infeasible(question: Question, source: CostedSpace) -> Infeasibility:
    """Explain a space without any layout that fits, with what would make one run."""
    return replace(_why(question, source), suggestions=suggestions(question))


def _why(question: Question, source: CostedSpace) -> Infeasibility:
    empty = source.space.empty
    if empty is not None:
        return Infeasibility(
            message=empty.message,
            binding=f"rule {empty.rule}" if empty.rule else "no axis value",
            conflict=minimal_conflict(question),
        )
    if source.demands.any:
        missed = _missed_demands(question, source)
        if missed is not None:
            return missed
    leanest = least_memory(source)
    if leanest is None:
        message = "the layers can't be split over the stages of any layout as the framework's rule asks"
        return Infeasibility(message=message, binding="stages", conflict=minimal_conflict(question))
    least, row = leanest.peak_bytes, leanest.layout
    capacity = float(source.terms(row).capacity_bytes[0])
    fewest = fewest_gpus(question)
    more = (
        f"{fewest:,} GPUs of this kind fit"
        if fewest
        else f"no size up to {LARGEST_CLUSTER:,} GPUs was found to fit"
    )
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
        conflict=(*minimal_conflict(question), *([f"{question.cluster.gpu_count:,} GPUs"] if fewest else [])),
    )


def _missed_demands(question: Question, source: CostedSpace) -> Infeasibility | None:
    """Say what the fastest layout misses; None where nothing fits whatever is demanded."""
    best = BestFirst(replace(source, demands=NO_DEMANDS), SearchOptions()).run().best
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
        conflict=minimal_conflict(question),
    )


def fewest_gpus(question: Question) -> int | None:
    """Return the smallest number of whole nodes' GPUs, of this kind, on which some layout fits; doubling, then halving."""
    step = question.cluster.gpus_per_node
    low, high = question.cluster.gpu_count, question.cluster.gpu_count * 2
    while high <= LARGEST_CLUSTER and not _fits(question, high):
        low, high = high, high * 2
    if high > LARGEST_CLUSTER:
        return None
    for _ in range(4):  # within a sixteenth of the interval: layouts need divisors, so feasibility has gaps
        middle = (low + high) // 2 // step * step
        if not low < middle < high:
            break
        low, high = (low, middle) if _fits(question, middle) else (middle, high)
    return high


def _fits(question: Question, gpus: int) -> bool:
    """Whether any layout fits on a larger or smaller cluster of the same kind."""
    return runs(replace(question, cluster=resized(question.cluster, gpus)))
