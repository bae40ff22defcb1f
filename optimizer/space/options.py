"""What a user may ask of the declared space: fixed, limited and forbidden values, lists that open an axis."""

from __future__ import annotations

from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import TYPE_CHECKING

from layoutopt.optimizer.frameworks.switches import BY_NAME, read_switch
from layoutopt.optimizer.space.context import RunOptions
from layoutopt.optimizer.space.requirement import parse_requirement
from layoutopt.optimizer.specs.errors import InputError, Problem
from layoutopt.optimizer.specs.vocabulary import Precision, Saver, Schedule

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from layoutopt.optimizer.space.requirement import Requirement
    from layoutopt.optimizer.specs.layout import Recompute

Value = int | str
SWITCH_NAMES = tuple(BY_NAME)
NUMERIC_AXES = (
    "tp", "sp", "cp", "pp", "vp", "dp", "ep", "etp", "zero", "hsdp_shard", "micro_batch", "micro_batches",
)  # fmt: skip
NAMED_AXES = ("recompute", "mesh_order", "schedule", "precision", "savers", *SWITCH_NAMES)
HIGHEST_PRICE = 1e9
"""Of a GPU hour, in any currency: sums of what runs cost stay finite."""

MAX_VALUE = 10_000_000
"""Clusters have no more GPUs, and tables are as long as the largest value."""
_FROM_ZERO = ("sp", "zero", "hsdp_shard")


@dataclass(frozen=True, slots=True, kw_only=True)
class SpaceOptions:
    """Restrictions and extensions of the declared space; the default is the whole space of the framework.

    ``fix`` lists the only values of an axis, also ones beyond its default range; ``max`` and ``min`` bound
    numeric axes; ``forbid`` takes values out. Recomputation values are written ``none``, ``full`` or module
    names joined by ``+``. ``allow_idle`` is the share of GPUs, 0 to 1, that may stay unused; None uses all.
    ``precisions`` defaults to the workload's own, ``schedules`` to 1F1B and interleaved, ``recomputes`` to
    the useful sets of the model; ``allow`` names memory savers, of which every set is
    then tried. ``software`` is the framework's release, ``run`` its stated flags. ``require`` are comparisons that the
    layout has to meet, as text (``parse_requirement``); ``gpu_hour_cost`` is what a GPU hour costs in those about cost.
    """

    fix: Mapping[str, tuple[Value, ...]] = field(default_factory=dict)
    max: Mapping[str, int] = field(default_factory=dict)
    min: Mapping[str, int] = field(default_factory=dict)
    forbid: Mapping[str, tuple[Value, ...]] = field(default_factory=dict)
    allow_idle: float | None = None
    precisions: tuple[Precision, ...] | None = None
    schedules: tuple[Schedule, ...] | None = None
    allow: tuple[Saver, ...] = ()
    micro_batches: tuple[int, ...] | None = None
    recomputes: tuple[Recompute, ...] | None = None
    software: str | None = None
    run: RunOptions = field(default_factory=RunOptions)
    require: tuple[str, ...] = ()
    gpu_hour_cost: float | None = None

    def __post_init__(self) -> None:
        problems = [*self._unknown_axes(), *self._bad_values(), *self._bad_requirements()]
        if self.allow_idle is not None and not 0 <= self.allow_idle < 1:
            problems.append(
                _problem("allow_idle", f"{self.allow_idle} is no share of GPUs", "0 up to below 1")
            )
        if problems:
            raise InputError(*problems)

    def allows(self, axis: str, value: Value) -> bool:
        """Whether ``fix``, ``max``, ``min`` and ``forbid`` leave a value of an axis."""
        if axis in self.fix and value not in self.fix[axis]:
            return False
        # Words have no order: only numbers can lie between bounds.
        if isinstance(value, int) and not self.min.get(axis, value) <= value <= self.max.get(axis, value):
            return False
        return value not in self.forbid.get(axis, ())

    def limits(self, axis: str) -> bool:
        """Whether any restriction names the axis."""
        return any(axis in given for given in (self.fix, self.max, self.min, self.forbid))

    def _unknown_axes(self) -> Iterator[Problem]:
        for option, given, known in (
            ("fix", self.fix, NUMERIC_AXES + NAMED_AXES),
            ("forbid", self.forbid, NUMERIC_AXES + NAMED_AXES),
            ("max", self.max, NUMERIC_AXES),
            ("min", self.min, NUMERIC_AXES),
        ):
            for axis in given:
                if axis not in known:
                    near = get_close_matches(axis, known, n=1)
                    hint = f"did you mean {near[0]}?" if near else f"one of {', '.join(known)}"
                    yield _problem(option, f"no axis {axis!r}", hint)

    @property
    def requirements(self) -> tuple[Requirement, ...]:
        """The parsed requirements."""
        return tuple(map(parse_requirement, self.require))

    def _bad_requirements(self) -> Iterator[Problem]:
        for text in self.require:
            try:
                parse_requirement(text)
            except InputError as error:
                yield from error.problems
        if self.gpu_hour_cost is not None and not 0 <= self.gpu_hour_cost <= HIGHEST_PRICE:
            yield _problem(
                "gpu_hour_cost", f"{self.gpu_hour_cost:g} is no price", f"0 to {HIGHEST_PRICE:,.0f}"
            )

    def _bad_values(self) -> Iterator[Problem]:
        for option, given in (("fix", self.fix), ("forbid", self.forbid)):
            for axis, values in given.items():
                if axis in NUMERIC_AXES:
                    yield from _bad_numbers(option, axis, values)
        for option, bounds in (("max", self.max), ("min", self.min)):
            for axis, value in bounds.items():
                yield from _bad_numbers(option, axis, (value,))
        yield from _bad_numbers("micro_batches", "micro_batch", self.micro_batches or ())
        for name, vocabulary in (("schedule", Schedule), ("precision", Precision)):
            known = [entry.value for entry in vocabulary]
            for named in (*self.fix.get(name, ()), *self.forbid.get(name, ())):
                if str(named) not in known:
                    yield _problem(name, f"no {name} {named!r}", f"one of {', '.join(known)}")
        for name in SWITCH_NAMES:
            for text in (*self.fix.get(name, ()), *self.forbid.get(name, ())):
                try:
                    read_switch(name, text)
                except ValueError as error:
                    yield _problem(name, str(error), "")
        savers = ["none", *(saver.value for saver in Saver)]
        for named in (*self.fix.get("savers", ()), *self.forbid.get("savers", ())):
            if not set(str(named).split("+")) <= set(savers):
                yield _problem("savers", f"no memory savers {named!r}", f"{', '.join(savers)}, joined by +")


def _bad_numbers(option: str, axis: str, values: tuple[Value, ...]) -> Iterator[Problem]:
    """Yield a problem for every value that is no possible degree."""
    least = 0 if axis in _FROM_ZERO else 1
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            yield _problem(option, f"{axis} can't be {value}", f"integers from {least}")
        elif value > MAX_VALUE:
            yield _problem(option, f"{axis} can't be {value}", f"at most {MAX_VALUE}")


def _problem(key: str, what: str, allowed: str) -> Problem:
    return Problem(what=what, allowed=allowed, key=key)
