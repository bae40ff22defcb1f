"""A plan as ``layoutopt solve --json`` writes it, read into typed records."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from layoutopt.optimizer.cost.batch import DEGREES
from layoutopt.optimizer.solve.certificate import Certificate
from layoutopt.optimizer.solve.verify.plain_reader import PlainReader
from layoutopt.optimizer.specs.layout import Recompute
from layoutopt.optimizer.specs.vocabulary import Granularity

if TYPE_CHECKING:
    from collections.abc import Mapping


class Status(StrEnum):
    """What a plan claims: proven best, best so far, or that nothing fits."""

    OPTIMAL = "optimal"
    STOPPED = "stopped"
    INFEASIBLE = "infeasible"


@dataclass(frozen=True, slots=True, kw_only=True)
class StatedStage:
    """One entry of ``layout.stages``; layers by kind, as written."""

    rank: int
    chunk: int
    layers: int
    kinds: dict[str, int]
    recomputed: int
    recomputed_kinds: dict[str, int]
    embedding: bool
    head: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StatedLayout:
    """A layout as written: degrees by name, modifiers by word. ``hsdp_shard`` 0 is the whole group."""

    degrees: dict[str, int]
    sp: bool
    zero: int
    hsdp_shard: int
    recompute: Recompute
    schedule: str
    mesh_order: str
    precision: str | None
    savers: tuple[str, ...]
    stages: tuple[StatedStage, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StatedEstimate:
    """What the plan says its layout costs."""

    step_time_s: float
    breakdown_s: dict[str, float]
    peak_bytes: float
    capacity_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StatedAlternative:
    """Another layout of the plan and its step time."""

    layout: StatedLayout
    step_time_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StatedPlan:
    """A whole plan. Without a layout (nothing fits, or stopped before one was found) the answer is None."""

    status: str
    step_time_s: float | None
    bound_s: float | None
    gap: float | None
    layout: StatedLayout | None
    estimate: StatedEstimate | None
    alternatives: tuple[StatedAlternative, ...] = field(default=())
    certificate: Certificate
    inputs: Mapping[str, object]


def read_plan(plain: object, *, file: str = "") -> StatedPlan:
    """Read parsed JSON; ``InputError`` has one problem for each key that is missing or wrong."""
    reader = PlainReader(plain, file=file)
    answered = reader.has("layout")
    plan = StatedPlan(
        status=reader.text("status"),
        step_time_s=reader.number("objective.step_time_s") if answered else None,
        bound_s=reader.optional_number("objective.bound_s"),
        gap=reader.number("objective.gap") if answered else None,
        layout=_layout(reader.under("layout")) if answered else None,
        estimate=_estimate(reader.under("estimate")) if answered else None,
        alternatives=tuple(_alternative(entry) for entry in reader.entries("alternatives")),
        certificate=Certificate.read(reader.under("certificate")),
        inputs=reader.mapping("inputs"),
    )
    reader.finish()
    return plan


def _layout(reader: PlainReader) -> StatedLayout:
    return StatedLayout(
        degrees={name: reader.integer(name) for name in DEGREES},
        sp=reader.flag("sp"),
        zero=reader.integer("zero"),
        hsdp_shard=reader.integer("hsdp_shard") if reader.has("hsdp_shard") else 0,
        recompute=_recompute(reader),
        schedule=reader.text("schedule"),
        mesh_order=reader.text("mesh_order"),
        precision=reader.text("precision") if reader.has("precision") else None,
        savers=tuple(sorted(reader.texts("savers"))) if reader.has("savers") else (),
        stages=tuple(_stage(entry) for entry in reader.entries("stages")),
    )


def _recompute(reader: PlainReader) -> Recompute:
    modules = tuple(sorted(reader.texts("recompute.modules")))
    granularity = reader.choice("recompute.granularity", [str(value) for value in Granularity])
    return Recompute(granularity=Granularity(granularity), modules=modules)


def _stage(reader: PlainReader) -> StatedStage:
    return StatedStage(
        rank=reader.integer("rank"),
        chunk=reader.integer("chunk"),
        layers=reader.integer("layers"),
        kinds=reader.integers("kinds"),
        recomputed=reader.integer("recomputed"),
        recomputed_kinds=reader.integers("recomputed_kinds") if reader.has("recomputed_kinds") else {},
        embedding=reader.flag("embedding"),
        head=reader.flag("head"),
    )


def _estimate(reader: PlainReader) -> StatedEstimate:
    return StatedEstimate(
        step_time_s=reader.number("step_time_s"),
        breakdown_s=reader.numbers("breakdown_s"),
        peak_bytes=reader.number("memory.peak_bytes"),
        capacity_bytes=reader.number("memory.capacity_bytes"),
    )


def _alternative(reader: PlainReader) -> StatedAlternative:
    return StatedAlternative(layout=_layout(reader.under("layout")), step_time_s=reader.number("step_time_s"))
