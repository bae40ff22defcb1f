"""A single layout as a batch of one."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from layoutopt.optimizer.cost.batch import batch_of_one
from layoutopt.optimizer.specs.vocabulary import Schedule

if TYPE_CHECKING:
    from layoutopt.optimizer.cost.batch import LayoutBatch
    from layoutopt.optimizer.specs.layout import Layout


def default_schedule(pp: int, vp: int) -> Schedule:
    """Return the schedule that a layout has when none is named."""
    if pp == 1:
        return Schedule.NONE
    return Schedule.ONE_F_ONE_B if vp == 1 else Schedule.INTERLEAVED


def row_of(layout: Layout) -> LayoutBatch:
    """Turn a layout into a batch of one; a pipeline without a named schedule gets the default one."""
    named = layout.schedule if layout.pp > 1 else Schedule.NONE
    schedule = default_schedule(layout.pp, layout.vp) if named is Schedule.NONE else named
    return batch_of_one(replace(layout, schedule=schedule))
