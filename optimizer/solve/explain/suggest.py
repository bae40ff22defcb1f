"""What would make a question without any answer have one: memory savers, idle GPUs, the next batch. Each is tried."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from layoutopt.optimizer.frameworks.registry import parse_release, savers_of
from layoutopt.optimizer.solve.plan import Suggestion
from layoutopt.optimizer.solve.search.best_first import BestFirst
from layoutopt.optimizer.solve.search.result import SearchOptions
from layoutopt.optimizer.space.divisors import divisors

if TYPE_CHECKING:
    from collections.abc import Callable

    from layoutopt.optimizer.solve.inputs import Question
    from layoutopt.optimizer.space.options import SpaceOptions

IDLE = (0.1, 0.5)
"""Shares of the GPUs that may idle, the smaller one first."""

MOST_BATCHES = 8
"""Batches tried, the nearest first."""


def suggestions(question: Question, stopped: Callable[[], bool] | None = None) -> tuple[Suggestion, ...]:
    """Return one option of each kind that makes some layout run, all else left as it is, as far as ``stopped`` lets it."""
    found = (_saver(question, stopped), _idle(question, stopped), _batch(question, stopped))
    return tuple(one for one in found if one is not None)


def _saver(question: Question, stopped: Callable[[], bool] | None) -> Suggestion | None:
    """Name the first memory saver that is enough alone, or all of them together."""
    space, framework = question.options.space, question.options.framework
    known = savers_of(framework, parse_release(framework, space.software), question.workload.model)
    more = [saver for saver in known if saver not in space.allow]
    for tried in [*((saver,) for saver in more), tuple(more)]:
        if tried and runs(_with(question, replace(space, allow=(*space.allow, *tried))), stopped):
            return Suggestion(option="allow", value="+".join(tried), effect="a layout fits")
    return None


def _idle(question: Question, stopped: Callable[[], bool] | None) -> Suggestion | None:
    space = question.options.space
    for share in IDLE if space.allow_idle is None else ():
        if runs(_with(question, replace(space, allow_idle=share)), stopped):
            return Suggestion(
                option="allow_idle", value=f"{share:.0%}", effect="some GPUs left out, a layout runs"
            )
    return None


def _batch(question: Question, stopped: Callable[[], bool] | None) -> Suggestion | None:
    """Name the nearest larger batch under which a layout runs on all GPUs."""
    if (stopped is not None and stopped()) or question.costed_space().space.empty is None:
        return None  # the batch divides: it is not what stands in the way
    training = question.workload.training
    for batch in _larger_batches(training.global_batch, question.cluster.gpu_count):
        workload = replace(question.workload, training=replace(training, global_batch=batch))
        if runs(replace(question, workload=workload), stopped):
            return Suggestion(
                option="batch", value=str(batch), effect="the nearest larger batch that divides"
            )
    return None


def _larger_batches(batch: int, gpus: int) -> list[int]:
    """Return batches above one that some number of replicas divides, up to twice as large."""
    multiples = {-(-(batch + 1) // size) * size for size in divisors(gpus) if size > 1}
    return sorted(found for found in multiples if found <= 2 * batch)[:MOST_BATCHES]


def _with(question: Question, space: SpaceOptions) -> Question:
    return replace(question, options=replace(question.options, space=space))


def runs(question: Question, stopped: Callable[[], bool] | None = None) -> bool:
    """Whether a layout of a question is known to run; not once ``stopped`` says so."""
    if stopped is not None and stopped():
        return False
    source = question.costed_space()
    if source.space.empty is not None:
        return False
    return bool(BestFirst(source, SearchOptions(gap=1.0), should_stop=stopped).run().found)
