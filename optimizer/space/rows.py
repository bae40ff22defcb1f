"""Layouts as the rows of a batch."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from layoutopt.optimizer.cost.batch import batch_of
from layoutopt.optimizer.specs.vocabulary import Schedule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from layoutopt.optimizer.cost.batch import LayoutBatch
    from layoutopt.optimizer.specs.layout import Layout


def default_schedule(pp: int, vp: int) -> Schedule:
    """Return the schedule that a layout has when none is named."""
    if pp == 1:
        return Schedule.NONE
    # What Megatron-LM runs by default with one chunk, and with several.
    return Schedule.ONE_F_ONE_B if vp == 1 else Schedule.INTERLEAVED


def row_of(layout: Layout) -> LayoutBatch:
    """Turn a layout into a batch of one; a pipeline without a named schedule gets the default one."""
    return rows_of((layout,))


def rows_of(layouts: Sequence[Layout]) -> LayoutBatch:
    """Turn layouts into one batch; pipelines without a named schedule get the default one."""
    return batch_of([replace(layout, schedule=schedule_of(layout)) for layout in layouts])


def schedule_of(layout: Layout) -> Schedule:
    """Return the schedule that runs: none without a pipeline, the default one where a pipeline names none."""
    named = layout.schedule if layout.pp > 1 else Schedule.NONE
    return default_schedule(layout.pp, layout.vp) if named is Schedule.NONE else named
