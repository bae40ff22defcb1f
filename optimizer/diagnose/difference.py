"""A measured step beside the predicted one, term by term: what differs, by how much, and its share of the gap."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

from layoutopt.optimizer.cost.components import Component
from layoutopt.optimizer.diagnose.parts import LABELS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from layoutopt.optimizer.diagnose.parts import Activity, Label
    from layoutopt.optimizer.diagnose.predicted import Expectation, PredictedStage
    from layoutopt.optimizer.diagnose.terms import RankTerms


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One term, seconds of a step in the mean of the profiled ranks. ``part`` None sums a component's parts."""

    component: Component
    part: Activity | None
    predicted_s: float
    measured_s: float
    gap_share: float | None

    @property
    def ratio(self) -> float | None:
        """Measured over predicted, None where nothing was predicted."""
        return self.measured_s / self.predicted_s if self.predicted_s > 0 else None

    @property
    def gap_s(self) -> float:
        """Seconds by which the term is longer than predicted."""
        return self.measured_s - self.predicted_s


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDifference:
    """Both steps and what sets them apart. Rows of components sum to both steps, ``parts`` divide them further."""

    predicted_s: float
    measured_s: float
    rows: tuple[Row, ...]
    parts: tuple[Row, ...]

    @property
    def gap_s(self) -> float:
        """Seconds by which the measured step is longer."""
        return self.measured_s - self.predicted_s

    def row(self, component: Component) -> Row:
        """Return a component's row."""
        return next(row for row in self.rows if row.component is component)


def difference(ranks: Sequence[RankTerms], expected: Expectation) -> StepDifference:
    """Compare measured ranks with what the plan says of their stages, in the mean over the ranks."""
    predicted = [expected.stages[expected.stage_of(terms.rank)] for terms in ranks]
    measured_s = fmean(terms.step_s for terms in ranks)
    gap_s = measured_s - expected.step_s

    def compared(component: Component, part: Activity | None) -> Row:
        was = fmean(stage.seconds(component, part) for stage in predicted)
        is_now = fmean(terms.seconds(component, part) for terms in ranks)
        share = (is_now - was) / gap_s if gap_s else None
        return Row(component=component, part=part, predicted_s=was, measured_s=is_now, gap_share=share)

    rows = tuple(compared(component, None) for component in Component)
    parts = tuple(
        compared(label.component, label.part) for label in _labels(ranks, predicted_labels(predicted))
    )
    return StepDifference(predicted_s=expected.step_s, measured_s=measured_s, rows=rows, parts=parts)


def predicted_labels(stages: Sequence[PredictedStage]) -> set[Label]:
    """Return every label that any stage's prediction has."""
    return {label for stage in stages for label in stage.labels_s}


def _labels(ranks: Sequence[RankTerms], predicted: set[Label]) -> list[Label]:
    measured = {label for terms in ranks for label in terms.labels_ns}
    return [label for label in LABELS if label in measured or label in predicted]
