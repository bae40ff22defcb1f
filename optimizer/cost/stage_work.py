"""What each virtual stage of one layout does with one micro-batch: the cost model's parts, stage by stage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.cost.batch import batch_of_one
from layoutopt.optimizer.cost.pipeline import lone_share, schedule_of
from layoutopt.optimizer.cost.stage_counts import stage_blocks

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from layoutopt.optimizer.cost.cost_model import CostModel
    from layoutopt.optimizer.cost.ends import EndUnit
    from layoutopt.optimizer.cost.units import Units
    from layoutopt.optimizer.specs.layout import Layout

    FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageWorks:
    """Seconds and bytes of every entry of a layout's stage list, (pp*vp,) each.

    Forward, backward for inputs and for weights, exposed communication and recomputation included. ``hidden_*`` is
    traffic that shows only where no other micro-batch runs beside: in a share ``alone`` of the passes, where schedules pair
    no passes; else it is 1. ``activation_bytes`` of the layers on the GPU,
    without the ends, stay from a micro-batch's forward to its backward. ``hop_s`` is one exposed transfer between
    neighbouring stages.
    """

    forward_s: FloatArray
    dgrad_s: FloatArray
    wgrad_s: FloatArray
    hidden_forward_s: FloatArray
    hidden_backward_s: FloatArray
    alone: float
    activation_bytes: FloatArray
    hop_s: float


def stage_works(cost: CostModel, layout: Layout) -> StageWorks:
    """Price every virtual stage of a layout with explicit stages.

    Raises InputError when a stage cuts a block or names an unknown kind.
    """
    batch = batch_of_one(layout)
    priced, on_host = cost.micro_batch_units(batch), cost.saving(batch).preset.offload_activations
    units, scale = priced.units, cost.constants["time_scale"]
    blocks, again = (counts.astype(np.float64) for counts in stage_blocks(layout, cost.model))
    repeat = np.sum(list(units.parts_of("recompute_parts_s").values()), axis=0)[0]
    forward, backward, wgrad = (units.blocks_of(name)[0] for name in ("forward_s", "backward_s", "wgrad_s"))
    times = {
        "forward_s": blocks @ (forward + priced.exposed_forward_s[0]),
        "dgrad_s": blocks @ (backward - wgrad + priced.exposed_backward_s[0]) + again @ repeat,
        "wgrad_s": blocks @ wgrad,
        "hidden_forward_s": blocks @ units.blocks_of("hidden_forward_s")[0],
        "hidden_backward_s": blocks @ units.blocks_of("hidden_backward_s")[0],
    }
    kept = units.blocks_of("kept_bytes")[0]
    inputs = np.minimum(units.blocks_of("checkpoint_bytes")[0], kept)
    group = max(layout.recompute.group, 1)
    # A group saves one input, what is left over of a stage one of its own.
    saved = -(-again.sum(axis=1) // group) * inputs.max() if group > 1 else again @ inputs
    held = ((blocks - again) @ kept + saved) * (not on_host)
    _add_ends(cost, layout, units, times)
    return StageWorks(
        **{name: scale * value for name, value in times.items()},
        alone=1.0 if schedule_of(batch).pairs else float(lone_share(batch)[0]),
        activation_bytes=held,
        hop_s=float(priced.hop_s[0]) * scale,
    )


def _add_ends(cost: CostModel, layout: Layout, units: Units, times: dict[str, FloatArray]) -> None:
    """Add embedding, head and MTP layers to the stages that hold them."""
    for entry, stage in enumerate(layout.stages):
        ends: list[tuple[float, EndUnit]] = []
        ends += [(1.0, units.embedding)] if stage.embedding else []
        ends += [(1.0, units.head)] if stage.head else []
        if stage.head and units.mtp is not None:
            ends.append((float(cost.model.mtp_layers), units.mtp))
        for count, unit in ends:
            total, forward, wgrad = (float(v[0]) for v in (unit.total_s, unit.forward_s, unit.wgrad_s))
            times["forward_s"][entry] += count * forward
            times["dgrad_s"][entry] += count * (total - forward - wgrad)
            times["wgrad_s"][entry] += count * wgrad
