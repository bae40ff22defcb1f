"""What the recipe of a publication sets and its rows do not repeat."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING

from layoutopt.optimizer.evidence.table import read_cells
from layoutopt.optimizer.specs.document import packaged
from layoutopt.optimizer.specs.vocabulary import Dispatcher

if TYPE_CHECKING:
    from layoutopt.optimizer.evidence.notes import NoteFacts
    from layoutopt.optimizer.evidence.run import MeasuredRun


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedRecipe:
    """Cells by column, and the dispatcher, of the runs whose source, model, GPU and precision match; None matches any."""

    phrase: str
    model: str
    cells: dict[str, str]
    source: str
    precision: str | None = None
    gpu: str | None = None
    dispatcher: str | None = None

    def concerns(self, run: MeasuredRun) -> bool:
        """Whether a run followed this recipe."""
        named = self.phrase in (run.source or "") and self.model in (run.model or "")
        return named and self.precision in (None, run.precision) and self.gpu in (None, run.gpu)


def with_recipe(run: MeasuredRun, facts: NoteFacts) -> tuple[MeasuredRun, NoteFacts]:
    """Return the row, and what its notes say, with what they leave open and its recipe decides filled."""
    for recipe in _recipes():
        if recipe.concerns(run):
            values = read_cells(recipe.cells)[0]
            # What the row or its notes state stays: the recipe is what the run began with.
            run = replace(
                run, **{name: value for name, value in values.items() if getattr(run, name) is None}
            )
            if facts.dispatcher is None and recipe.dispatcher is not None:
                facts = replace(facts, dispatcher=Dispatcher(recipe.dispatcher))
    return run, facts


@cache
def _recipes() -> tuple[PublishedRecipe, ...]:
    return tuple(PublishedRecipe(**entry) for entry in packaged("evidence", "recipes"))
