"""The fastest layout of a question without the plan around it: no certificate, no reasons when there is none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutopt.optimizer.cost.estimate import estimate_row
from layoutopt.optimizer.solve.api import layout_of
from layoutopt.optimizer.solve.search.best_first import BestFirst, SearchOptions

if TYPE_CHECKING:
    from collections.abc import Callable

    from layoutopt.optimizer.cost.estimate import Estimate
    from layoutopt.optimizer.solve.inputs import Question
    from layoutopt.optimizer.specs.layout import Layout


def fastest_layout(
    question: Question, *, should_stop: Callable[[], bool] | None = None
) -> tuple[Layout, Estimate] | None:
    """Return the fastest layout that fits and its price, None when there is none (or the search was stopped before)."""
    source = question.costed_space()
    if source.space.empty is not None:
        return None
    options = question.options
    search = SearchOptions(
        time_limit_s=options.time_limit_s, workers=options.workers, gap=options.gap, seed=options.seed
    )
    best = BestFirst(source, search, should_stop=should_stop).run().best
    if best is None:
        return None
    layout = layout_of(source, best)
    return layout, estimate_row(source.cost, layout, best.layout, best.blocks, best.recomputed)
