"""A minimal set of restrictions that exclude each other: drop any one of them and some layout runs.

Deletion filter (Chinneck and Dravnieks 1991, "Locating minimal infeasible constraint sets in linear programs"): drop one
condition after the other and keep those without which the rest can be met. Every test is a search over the whole space.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from layoutopt.optimizer.solve.search.best_first import BestFirst
from layoutopt.optimizer.solve.search.result import SearchOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from layoutopt.optimizer.solve.inputs import Question
    from layoutopt.optimizer.space.options import SpaceOptions

MEMORY = "memory"
EVERY_GPU = "every GPU used"
IDLE = 0.5
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
    idle = space.allow_idle if space.allow_idle is not None or ("allow_idle", "") in names else IDLE
    options = replace(question.options, space=replace(space, allow_idle=idle, **changes))
    source = replace(question, options=options).costed_space()
    if source.space.empty is not None:
        return True
    if ("", "") not in names:
        if not source.demands.any:
            return False
        source = replace(source, roomy=True)
    return not BestFirst(source, SearchOptions(gap=1.0), should_stop=stopped).run().found
