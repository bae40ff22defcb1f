"""A step time that a point certainly reaches: the layout of a neighbouring size, adapted and priced there."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING

from layoutopt.optimizer.solve.judge import judge_layout
from layoutopt.optimizer.specs.errors import InputError
from layoutopt.optimizer.specs.vocabulary import Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator

    from layoutopt.optimizer.solve.inputs import Question
    from layoutopt.optimizer.specs.layout import Layout

SLACK = 1e-3
"""Relative distance kept from the priced step time. CP-SAT took up to 40 times longer with a limit within
1e-6 of the optimum (llama3-70b on 512 to 2,048 H100), where it tells apart layouts that hardly differ."""

GROWN_AXES = ("dp", "cp", "tp")
"""Axes over which more GPUs may be spread without touching the stages."""


def warm_start_s(question: Question, neighbour: Layout) -> float:
    """Return a step time that a valid, fitting layout reaches on the question's cluster; infinity if unknown.

    The layout of a neighbouring size is spread over the cluster by growing or shrinking one axis, then judged
    and priced like any given layout.
    """
    best = inf
    for layout in _adapted(question, neighbour):
        if not _allowed(question, layout):
            continue
        try:
            best = min(best, _priced_s(question, layout))
        except InputError:
            continue
    return best * (1 + SLACK)


def _adapted(question: Question, layout: Layout) -> Iterator[Layout]:
    """Yield the layout with one axis changed so that it uses every GPU, where degrees stay whole."""
    gpus, batch = question.cluster.gpu_count, question.workload.training.global_batch
    for axis in GROWN_AXES:
        degree, rest = divmod(getattr(layout, axis) * gpus, layout.gpus)
        if rest or degree < 1:
            continue
        changed = replace(layout, **{axis: degree})
        micro_batches, rest = divmod(batch, changed.dp * changed.micro_batch)
        if not rest and micro_batches:
            yield replace(
                changed, micro_batches=micro_batches, sp=changed.tp > 1 and (layout.sp or layout.tp == 1)
            )


def _allowed(question: Question, layout: Layout) -> bool:
    """Tell whether the restrictions of the space leave every degree; the neighbour met the others."""
    allows = question.options.space.allows
    degrees = ("tp", "cp", "pp", "vp", "dp", "ep", "etp", "zero", "micro_batch", "micro_batches")
    return all(allows(axis, getattr(layout, axis)) for axis in degrees)


def _priced_s(question: Question, layout: Layout) -> float:
    options = question.options
    judged = judge_layout(
        question.workload,
        question.cluster,
        layout,
        framework=options.framework,
        software=options.space.software,
        run_options=options.space.run,
        cost=options.cost,
        require=options.space.require,
        gpu_hour_cost=options.space.gpu_hour_cost,
    )
    if judged.estimate is None or judged.verdict not in (Verdict.FITS, Verdict.BORDERLINE):
        return inf
    return judged.estimate.step_time_s
