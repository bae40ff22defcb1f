"""The declared axes in words, as ``solve --space`` prints them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from layoutopt.optimizer.space.recompute_sets import recompute_text
from layoutopt.optimizer.space.savers import savers_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from layoutopt.optimizer.space.axes import Axes

_LONG = 16
"""From so many values on only the first three and the last are written out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisRow:
    """One axis: its name, its range in words, how many values it has."""

    axis: str
    range_text: str
    values: int


def axes_table(axes: Axes) -> tuple[AxisRow, ...]:
    """Describe every declared axis."""
    ctx = axes.ctx
    domain, blocks, batch = ctx.cluster.nvlink_domain, ctx.blocks, ctx.training.global_batch
    fewest, most = axes.gpus
    total = f"{most:,}" if fewest == most else f"{fewest:,} to {most:,}"
    sets = [savers_text(chosen) for chosen in axes.savers]
    savers = [_row("savers", sets, "memory savers")] if any(axes.savers) else []
    recomputes = [recompute_text(recompute) for recompute in axes.recomputes]
    return (
        _row("tp", axes.tp, f"NVLink domain of {domain}"),
        _row("sp", sorted({sp for tp in axes.tp for sp in axes.sp_of(tp)}), "follows tp"),
        _row("cp", axes.cp, "at least two tokens per rank"),
        _row("pp", axes.pp, f"at most {blocks + 2} stages: {blocks} blocks, empty ends"),
        _row("vp", sorted({vp for pp in axes.pp for vp in axes.vp_of(pp)}), "at least one block per chunk"),
        _row("dp", _data_degrees(axes), f"{total} GPUs / (tp*cp*pp)"),
        _row("ep", axes.ep, "divisors of the experts" if ctx.experts else "no experts"),
        _row(
            "etp",
            sorted({etp for tp in axes.tp for etp in axes.etp_of(tp)}),
            "divisors of tp" if ctx.experts else "",
        ),
        _row("micro_batch", axes.micro_batch, f"divisors of the batch of {batch:,}"),
        _row("zero", axes.zero, "with the level that shard groups tile"),
        _row("recompute", recomputes, "full: any number of layers, none included"),
        _row("mesh_order", axes.orders, "innermost first"),
        _row("schedule", [schedule.value for schedule in axes.schedules], "as pp and vp allow"),
        _row("precision", [precision.value for precision in axes.precisions], ""),
        *savers,
    )


def _data_degrees(axes: Axes) -> list[int]:
    """Return the data-parallel degrees that the other ranges leave."""
    if axes.dp is not None:
        return list(axes.dp)
    gpus = axes.gpus[1]
    model = {tp * cp * pp for tp in axes.tp for cp in axes.cp for pp in axes.pp}
    degrees = (gpus // product for product in model if gpus % product == 0)
    return sorted({dp for dp in degrees if axes.options.allows("dp", dp)})


def _row(axis: str, values: Iterable[object], note: str) -> AxisRow:
    """Describe one axis: its values, shortened when there are many, and what bounds them."""
    texts = [str(value) for value in values]
    shown = ", ".join(texts) if len(texts) <= _LONG else f"{', '.join(texts[:3])}, ..., {texts[-1]}"
    return AxisRow(axis=axis, range_text=f"{shown} ({note})" if note else shown, values=len(texts))
