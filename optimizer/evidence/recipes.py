"""What the recipe of a measured run's publication sets and the row does not repeat."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

from layoutopt.optimizer.evidence.table import read_cells
from layoutopt.optimizer.specs.document import plain_yaml

if TYPE_CHECKING:
    from layoutopt.optimizer.evidence.run import MeasuredRun


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedRecipe:
    """Cells by column of the runs whose source, model and precision match; no precision matches any."""

    phrase: str
    model: str
    cells: dict[str, str]
    source: str
    precision: str | None = None

    def concerns(self, run: MeasuredRun) -> bool:
        """Whether a run followed this recipe."""
        named = self.phrase in (run.source or "") and self.model in (run.model or "")
        return named and self.precision in (None, run.precision)


def with_recipe(run: MeasuredRun) -> MeasuredRun:
    """Return the row with the empty cells that its recipe decides filled."""
    for recipe in _recipes():
        if recipe.concerns(run):
            values = read_cells(recipe.cells)[0]
            run = replace(
                run, **{name: value for name, value in values.items() if getattr(run, name) is None}
            )
    return run


@cache
def _recipes() -> tuple[PublishedRecipe, ...]:
    text = (
        resources.files("layoutopt.optimizer.evidence").joinpath("recipes.yaml").read_text(encoding="utf-8")
    )
    return tuple(PublishedRecipe(**entry) for entry in plain_yaml(text))
