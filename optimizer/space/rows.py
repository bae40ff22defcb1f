"""A single layout as a batch of one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.cost.batch import Codebook, LayoutBatch
from layoutopt.optimizer.specs.vocabulary import Schedule

if TYPE_CHECKING:
    from layoutopt.optimizer.specs.layout import Layout


def default_schedule(pp: int, vp: int) -> Schedule:
    """Return the schedule that a layout has when none is named."""
    if pp == 1:
        return Schedule.NONE
    return Schedule.ONE_F_ONE_B if vp == 1 else Schedule.INTERLEAVED


def batch_of(layout: Layout) -> LayoutBatch:
    """Turn a layout into a batch of one; a pipeline without a named schedule gets the default one."""
    named = layout.schedule if layout.pp > 1 else Schedule.NONE
    schedule = default_schedule(layout.pp, layout.vp) if named is Schedule.NONE else named
    codebook = Codebook(
        recomputes=(layout.recompute,),
        orders=(layout.mesh_order,),
        schedules=(schedule,),
        precisions=(layout.precision,),
        savers=(layout.savers,),
    )
    degrees = {
        name: getattr(layout, name)
        for name in ("tp", "cp", "pp", "vp", "dp", "ep", "etp", "micro_batch", "micro_batches", "zero")
    }
    codes = {"recompute": 0, "order": 0, "schedule": 0, "precision": 0}
    values = degrees | codes | {"sp": int(layout.sp), "hsdp_shard": layout.hsdp_shard or 0}
    return LayoutBatch(
        codebook=codebook, **{name: np.array([v], dtype=np.int64) for name, v in values.items()}
    )
