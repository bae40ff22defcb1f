"""Targets of exporters with one part changed at a time, whatever rules say, and what of their flags is on."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from checks.agreement import dense_model, dense_then_moe, workload_of
from layoutopt.optimizer.interop.launch.target import make_target
from layoutopt.optimizer.interop.records import CheckpointInterval
from layoutopt.optimizer.specs.layout import Layout, Recompute
from layoutopt.optimizer.specs.loading import load_cluster
from layoutopt.optimizer.specs.stage_split import build_stages
from layoutopt.optimizer.specs.vocabulary import (
    Granularity,
    Schedule,
)

if TYPE_CHECKING:
    from layoutopt.optimizer.interop.launch.target import Target
    from layoutopt.optimizer.specs.model import ModelSpec


DENSE, EXPERTS = dense_model(8), dense_then_moe(8, mtp_layers=0)
BASE = Layout(dp=8, micro_batch=2, micro_batches=3, zero=1)


def target(
    to: str = "megatron",
    release: tuple[int, ...] | None = None,
    model: ModelSpec = DENSE,
    preset: dict[str, Any] | None = None,
    training: dict[str, Any] | None = None,
    cluster: str = "h100x64",
    saving: bool = True,
    **layout: Any,
) -> Target:
    """A target with some of its parts changed, whatever rules say."""
    whole = replace(BASE, **layout)
    checkpoint = CheckpointInterval(interval_steps=100) if saving else None
    made = make_target(
        whole, workload_of(model, whole, **(training or {})), load_cluster(cluster), to, checkpoint=checkpoint
    )
    made = replace(made, preset=replace(made.preset, **(preset or {})), release=release or made.release)
    return replace(
        made,
        layout=replace(made.layout, **{name: value for name, value in layout.items() if name != "stages"}),
    )


def staged(layout: dict[str, Any], *counts: int, limit: int = 0, model: ModelSpec = DENSE) -> dict[str, Any]:
    """Settings of a layout with these layers on its stages."""
    schedule = Schedule.INTERLEAVED if layout.get("vp", 1) > 1 else Schedule.ONE_F_ONE_B
    return {
        **layout,
        "schedule": schedule,
        "stages": build_stages(model, counts, layout["pp"], schedule, limit),
    }


FULL = Recompute(granularity=Granularity.FULL)
OVERLAPS = {"ep_overlap": "batch"}


def on(flags: list[tuple[str, Any]]) -> dict[str, Any]:
    """Flags that are written, by name; a later one of the same name does not count."""
    found: dict[str, Any] = {}
    for name, value in flags:
        if value is not None and value is not False:
            found.setdefault(name, value)
    return found


def says(preset: dict[str, Any]) -> dict[str, Any]:
    """A preset's switches with words in place of members."""
    made = target()
    kind = type(made.preset.ep_overlap)
    return {name: kind(value) if name == "ep_overlap" else value for name, value in preset.items()}
