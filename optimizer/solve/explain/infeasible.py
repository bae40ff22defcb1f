"""Why nothing fits: what binds, the least memory any layout needs, the fewest GPUs that would do.

Deletion filter (Chinneck and Dravnieks 1991, "Locating minimal infeasible constraint sets in linear programs"): drop one
condition after the other and keep those without which the rest can be met. Every test is a search over the whole space.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from layoutopt.optimizer.frameworks.registry import parse_release, savers_of
from layoutopt.optimizer.solve.explain.least_memory import least_memory
from layoutopt.optimizer.solve.plan import Infeasibility, Suggestion
from layoutopt.optimizer.solve.search.best_first import BestFirst
from layoutopt.optimizer.solve.search.demands import NO_DEMANDS, Finished
from layoutopt.optimizer.solve.search.result import SearchOptions
from layoutopt.optimizer.space.divisors import divisors
from layoutopt.optimizer.specs.reference_fabric import resized
from layoutopt.optimizer.specs.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from layoutopt.optimizer.solve.inputs import Question
    from layoutopt.optimizer.solve.search.costed_space import CostedSpace
    from layoutopt.optimizer.space.options import SpaceOptions


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
    # Demands first: a layout that misses them may well fit in memory.
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
    # What the best layout without the demands misses is what a user has to give up.
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
        message=f"no layout meets {names}; the fastest without takes {format_seconds(best.step_time_s)} per step{why}",
        binding="requirement",
        conflict=minimal_conflict(question, stopped),
    )


def fewest_gpus(question: Question, stopped: Callable[[], bool] | None = None) -> int | None:
    """Return the smallest number of whole nodes' GPUs, of this kind, on which some layout fits; doubling, then halving.

    None where none fits up to the largest cluster, or where ``stopped`` ends it before it is known.
    """
    step = question.cluster.gpus_per_node
    # The given size is known not to fit: the search begins with twice as many.
    low, high = question.cluster.gpu_count, question.cluster.gpu_count * 2
    while high <= LARGEST_CLUSTER and not _fits(question, high, stopped):
        low, high = high, high * 2
    if high > LARGEST_CLUSTER:
        return None
    for _ in range(4):  # within a sixteenth of the interval: layouts need divisors, so feasibility has gaps
        # Whole nodes: nobody buys less.
        middle = (low + high) // 2 // step * step
        if not low < middle < high:
            break
        low, high = (low, middle) if _fits(question, middle, stopped) else (middle, high)
    # The last questions may have been answered no because the time was up.
    return None if stopped is not None and stopped() else high


def _fits(question: Question, gpus: int, stopped: Callable[[], bool] | None) -> bool:
    """Whether any layout fits on a larger or smaller cluster of the same kind."""
    return runs(replace(question, cluster=resized(question.cluster, gpus)), stopped)


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
    # One saver costs less speed than several, so that single ones come first.
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
    # One replica divides every batch and says nothing.
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
    # Any layout will do: a gap of 1 ends the search with the first.
    return bool(BestFirst(source, SearchOptions(gap=1.0), should_stop=stopped).run().found)


MEMORY = "memory"
EVERY_GPU = "every GPU used"
MOST_IDLE = 0.5
"""Share of the GPUs that may idle when it is tested whether using every one of them is what excludes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Condition:
    """A restriction by name: the option of the space it stands in and its axis; an empty option is memory."""

    name: str
    option: str = ""
    axis: str = ""


def minimal_conflict(question: Question, stopped: Callable[[], bool] | None = None) -> tuple[str, ...]:
    """Name a minimal set of conditions of a question that nothing meets; none where ``stopped`` ends it before.

    Conditions are the user's restrictions (``tp = 4``, ``pp <= 8``), that every GPU is used, and memory. Rules of the
    framework, the model and the batch hold throughout.
    """
    kept = list(_conditions(question.options.space))
    # A deletion filter: what is not needed for the contradiction goes, what is left is minimal.
    for condition in list(kept):
        rest = [other for other in kept if other is not condition]
        nothing = _nothing_meets(question, rest, stopped)
        if stopped is not None and stopped():
            return ()
        if nothing:
            kept = rest
    return tuple(condition.name for condition in kept)


def _conditions(space: SpaceOptions) -> Iterator[_Condition]:
    """List what can be dropped; what was asked for comes last, so that it is kept where it matters."""
    if space.allow_idle is None:
        yield _Condition(name=EVERY_GPU, option="allow_idle")
    yield _Condition(name=MEMORY)
    for axis, values in space.fix.items():
        listed = ", ".join(map(str, values))
        yield _Condition(
            name=f"{axis} = {listed}" if len(values) == 1 else f"{axis} in {listed}", option="fix", axis=axis
        )
    for axis, values in space.forbid.items():
        yield _Condition(name=f"{axis} not {', '.join(map(str, values))}", option="forbid", axis=axis)
    for option, sign in (("max", "<="), ("min", ">=")):
        for axis, value in getattr(space, option).items():
            yield _Condition(name=f"{axis} {sign} {value}", option=option, axis=axis)
    yield from _required(space)


def _required(space: SpaceOptions) -> Iterator[_Condition]:
    for text in space.require:
        yield _Condition(name=text, option="require", axis=text)


def _nothing_meets(question: Question, kept: list[_Condition], stopped: Callable[[], bool] | None) -> bool:
    """Whether no layout meets these conditions together, as far as that is known when ``stopped`` ends the search."""
    if stopped is not None and stopped():
        return True
    space = question.options.space
    names = {(condition.option, condition.axis) for condition in kept}
    changes: dict[str, Any] = {
        option: {axis: value for axis, value in getattr(space, option).items() if (option, axis) in names}
        for option in ("fix", "forbid", "max", "min")
    }
    changes["require"] = tuple(text for text in space.require if ("require", text) in names)
    # Dropping "every GPU" as a condition means that up to half of them may idle.
    idle = space.allow_idle if space.allow_idle is not None or ("allow_idle", "") in names else MOST_IDLE
    options = replace(question.options, space=replace(space, allow_idle=idle, **changes))
    source = replace(question, options=options).costed_space()
    if source.space.empty is not None:
        return True
    if ("", "") not in names:
        if not source.demands.any:
            return False
        # Memory is dropped as a condition by giving every GPU enough of it.
        source = replace(source, roomy=True)
    return not BestFirst(source, SearchOptions(gap=1.0), should_stop=stopped).run().found
