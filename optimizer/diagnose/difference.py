"""A measured step beside the predicted one, term by term: what differs, by how much, and its share of the gap."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Generic, TypeVar

from layoutopt.optimizer.cost.components import Component
from layoutopt.optimizer.diagnose.parts import LABELS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from layoutopt.optimizer.cost.components import Hue
    from layoutopt.optimizer.diagnose.parts import Activity, Label
    from layoutopt.optimizer.diagnose.predicted import Expectation, PredictedStage
    from layoutopt.optimizer.diagnose.terms import RankTerms


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared(ABC):
    """One term, seconds of a step in the mean of the measured ranks, and its share of the whole gap."""

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

    @property
    @abstractmethod
    def words(self) -> str:
        """The term's name for people."""

    @property
    @abstractmethod
    def hue(self) -> Hue:
        """The term's colour on pages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row(Compared):
    """A component's term; ``part`` None sums its parts."""

    component: Component
    part: Activity | None

    @property
    def words(self) -> str:
        """The part's name, or the component's."""
        return self.part.words if self.part else self.component.words

    @property
    def hue(self) -> Hue:
        """The component's colour."""
        return self.component.record.hue


Term = TypeVar("Term", bound=Compared)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDifference(Generic[Term]):
    """Both steps and what sets them apart. ``rows`` sum to both steps, ``parts`` divide them further."""

    predicted_s: float
    measured_s: float
    rows: tuple[Term, ...]
    parts: tuple[Term, ...] = ()

    @property
    def gap_s(self) -> float:
        """Seconds by which the measured step is longer."""
        return self.measured_s - self.predicted_s


def share_of(term_s: float, gap_s: float) -> float | None:
    """Return which share of a step's gap a term's is, None of no gap."""
    return term_s / gap_s if gap_s else None


def difference(ranks: Sequence[RankTerms], expected: Expectation) -> StepDifference[Row]:
    """Compare measured ranks with what the plan says of their stages, in the mean over the ranks."""
    # Each rank beside its own stage: of a profile of one stage the other stages' plan says nothing.
    predicted = [expected.of(terms.rank) for terms in ranks]
    measured_s = fmean(terms.step_s for terms in ranks)
    gap_s = measured_s - expected.step_s

    def compared(component: Component, part: Activity | None) -> Row:
        """Compare one term."""
        was = fmean(stage.seconds(component, part) for stage in predicted)
        is_now = fmean(terms.seconds(component, part) for terms in ranks)
        share = share_of(is_now - was, gap_s)
        return Row(component=component, part=part, predicted_s=was, measured_s=is_now, gap_share=share)

    rows = tuple(compared(component, None) for component in Component)
    parts = tuple(compared(label.component, label.part) for label in _labels(ranks, predicted))
    return StepDifference(predicted_s=expected.step_s, measured_s=measured_s, rows=rows, parts=parts)


def _labels(ranks: Sequence[RankTerms], predicted: Sequence[PredictedStage]) -> list[Label]:
    """Return every label that was measured or that any stage's prediction has."""
    known = {label for terms in ranks for label in terms.labels_ns}
    known |= {label for stage in predicted for label in stage.labels_s}
    return [label for label in LABELS if label in known]
