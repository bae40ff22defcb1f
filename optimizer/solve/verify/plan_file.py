"""A plan as ``layoutopt solve --json`` writes it: what verification has to read before it can rebuild the rest."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from layoutopt.optimizer.solve.certificate import Certificate
from layoutopt.optimizer.solve.verify.plain_reader import PlainReader
from layoutopt.optimizer.specs.canonical import layout_from_plain

if TYPE_CHECKING:
    from collections.abc import Mapping

    from layoutopt.optimizer.specs.layout import Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class StatedPlan:
    """A whole plan. Without a layout (nothing fits, or stopped before one was found) the answer is None.

    ``alternatives`` are the layouts of the runners-up, ``plain`` is all that the plan states.
    """

    status: str
    step_time_s: float | None
    bound_s: float | None
    gap: float | None
    layout: Layout | None
    alternatives: tuple[Layout, ...]
    certificate: Certificate
    freer_gain: float | None
    inputs: Mapping[str, object]
    plain: dict[str, object]

    @property
    def record(self) -> dict[str, object]:
        """The certificate as written."""
        record = self.plain["certificate"]
        assert isinstance(record, dict)
        return record


def read_plan(plain: object, *, file: str = "") -> StatedPlan:
    """Read parsed JSON; ``InputError`` has one problem for each key that is missing or wrong."""
    reader = PlainReader(plain, file=file)
    answered = reader.has("layout")
    alternatives = [
        _layout(entry, "alternatives", index) for index, entry in enumerate(reader.entries("alternatives"))
    ]
    reader.optional_number("solve_time_s")
    plan = StatedPlan(
        status=reader.text("status"),
        step_time_s=reader.number("objective.step_time_s") if answered else None,
        bound_s=reader.optional_number("objective.bound_s"),
        gap=reader.number("objective.gap") if answered else None,
        layout=_layout(reader) if answered else None,
        alternatives=tuple(layout for layout in alternatives if layout is not None),
        certificate=Certificate.read(reader.under("certificate")),
        freer_gain=reader.optional_number("freer_gain"),
        inputs=reader.mapping("inputs"),
        plain=plain if isinstance(plain, dict) else {},
    )
    reader.finish()
    return plan


def _layout(reader: PlainReader, *where: str | int) -> Layout | None:
    """Read a layout; keys that a layout doesn't have state nothing."""
    path = (*where, "layout")
    return reader.read_with(
        partial(layout_from_plain, file=reader.file, path=path, unknown_allowed=True), "layout"
    )
