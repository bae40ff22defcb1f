"""Virtual stages from numbers of layers, in the form every answer of the project has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutopt.optimizer.interop.layer_runs import kinds_of
from layoutopt.optimizer.specs.layout import VirtualStage
from layoutopt.optimizer.specs.vocabulary import Schedule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from layoutopt.optimizer.specs.layout import Layout
    from layoutopt.optimizer.specs.model import ModelSpec

V_SHAPED = (Schedule.ZB_V, Schedule.DUALPIPE_V)
"""Schedules whose second chunk runs from the last rank back to the first."""


def model_order(pp: int, vp: int, schedule: Schedule) -> list[int]:
    """Indices of ``Layout.stages`` (chunk * pp + rank) in the order in which the layers pass through them."""
    order: list[int] = []
    for chunk in range(vp):
        ranks = range(pp)
        backwards = schedule in V_SHAPED and chunk % 2 == 1
        order += [chunk * pp + rank for rank in (reversed(ranks) if backwards else ranks)]
    return order


def even_counts(layers: int, stages: int) -> list[int]:
    """Layers of each stage, in model order, as even as can be.

    When layers do not divide, embedding and loss count as one layer each if that divides (Llama 3's and
    Megatron-LM's account-for-* split), else the stages in the middle hold one layer more.
    """
    if layers % stages and stages > 1 and (layers + 2) % stages == 0:
        share = (layers + 2) // stages
        return [share - (index in (0, stages - 1)) for index in range(stages)]
    base, extra = divmod(layers, stages)
    begin = (stages - extra) // 2
    return [base + (begin <= index < begin + extra) for index in range(stages)]


def build_stages(
    counts: Sequence[int],
    *,
    pp: int,
    vp: int,
    model: ModelSpec | None,
    schedule: Schedule = Schedule.NONE,
    recomputed: Sequence[int] = (),
    mtp_stage: int | None = None,
) -> tuple[VirtualStage, ...]:
    """Build ``Layout.stages`` from decoder layers per stage.

    ``counts`` and ``recomputed`` (empty: none) are in model order. ``mtp_stage`` is the position of the MTP
    layers in model order, None for the last. Without a model the kinds are left empty.
    """
    order = model_order(pp, vp, schedule)
    mtp_layers = model.mtp_layers if model else 0
    mtp_at = len(order) - 1 if mtp_stage is None else mtp_stage
    stages: list[VirtualStage | None] = [None] * len(order)
    first = 0
    for position, (index, layers) in enumerate(zip(order, counts, strict=True)):
        stages[index] = VirtualStage(
            rank=index % pp,
            chunk=index // pp,
            layers=layers,
            kinds=kinds_of(model.runs, first, layers) if model else {},
            recomputed=recomputed[position] if recomputed else 0,
            embedding=position == 0,
            head=position == len(order) - 1,
            mtp=mtp_layers if position == mtp_at else 0,
        )
        first += layers
    return tuple(stage for stage in stages if stage is not None)


def with_stages(layout: Layout, model: ModelSpec) -> tuple[VirtualStage, ...]:
    """Return a layout's stages, or the most even split where it names none."""
    if layout.stages:
        return layout.stages
    counts = even_counts(model.layers, layout.pp * layout.vp)
    full = layout.recompute.granularity.value == "full"
    return build_stages(
        counts,
        pp=layout.pp,
        vp=layout.vp,
        model=model,
        schedule=layout.schedule,
        recomputed=counts if full else (),
    )
