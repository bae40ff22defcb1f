"""Layouts as the rows of a batch."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from layoutopt.optimizer.cost.batch import batch_of
from layoutopt.optimizer.specs.stage_split import running_schedule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from layoutopt.optimizer.cost.batch import LayoutBatch
    from layoutopt.optimizer.specs.layout import Layout
    from layoutopt.optimizer.specs.vocabulary import Schedule


def row_of(layout: Layout) -> LayoutBatch:
    """Turn a layout into a batch of one; a pipeline without a named schedule gets the default one."""
    return rows_of((layout,))


def rows_of(layouts: Sequence[Layout]) -> LayoutBatch:
    """Turn layouts into one batch; pipelines without a named schedule get the default one."""
    return batch_of([replace(layout, schedule=schedule_of(layout)) for layout in layouts])


def schedule_of(layout: Layout) -> Schedule:
    """Return the schedule that runs: none without a pipeline, the default one where a pipeline names none."""
    return running_schedule(layout.schedule, layout.pp, layout.vp)
