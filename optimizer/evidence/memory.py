"""Predicted against measured memory: verdicts on runs that ran or died, and the room that a risk of dying asks for."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import ceil
from statistics import NormalDist, fmean, stdev
from typing import TYPE_CHECKING

from layoutopt.optimizer.evidence.metrics import ErrorSummary, relative_error, summarize
from layoutopt.optimizer.specs.document import packaged
from layoutopt.optimizer.specs.errors import input_error
from layoutopt.optimizer.specs.vocabulary import Verdict

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from layoutopt.optimizer.evidence.case import Case
    from layoutopt.optimizer.evidence.predict import Prediction


NOT_STATED = "not stated"
_KINDS = ("allocated", "reserved", "nvidia-smi")


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRow:
    """One row's peak: measured and predicted bytes of the same kind."""

    id: str
    framework: str
    kind: str
    measured_bytes: float
    predicted_bytes: float

    @property
    def error(self) -> float:
        """Predicted over measured, less 1."""
        return relative_error(self.predicted_bytes, self.measured_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryReport:
    """Memory errors and verdicts.

    ``summary`` is over rows that say what their figure counts (``mem_kind``), state what decides memory and
    ran; ``by_kind`` adds rows of unstated kind, compared with reserved memory. ``died_but_fits`` and
    ``ran_but_does_not_fit`` are the ids whose verdict contradicts the run.
    """

    summary: ErrorSummary
    by_kind: Mapping[str, ErrorSummary]
    by_framework: Mapping[str, ErrorSummary]
    rows: tuple[MemoryRow, ...]
    died: int
    ran: int
    died_but_fits: tuple[str, ...]
    ran_but_does_not_fit: tuple[str, ...]


def verdict_of(prediction: Prediction) -> Verdict:
    """Judge a prediction by its peak over what the GPU leaves for tensors."""
    if prediction.allocated_bytes > prediction.capacity_bytes:
        return Verdict.DOES_NOT_FIT
    close = prediction.allocated_bytes > prediction.borderline_bytes
    return Verdict.BORDERLINE if close else Verdict.FITS


def compare_memory(pairs: Sequence[tuple[Case, Prediction]]) -> MemoryReport:
    """Compare peaks of rows that report one, and verdicts of all rows that state what decides memory."""
    # A verdict on assumed cells would judge the assumption.
    judged = [(case, prediction) for case, prediction in pairs if case.memory_known and not case.assumed]
    died = [pair for pair in judged if pair[0].run.oom]
    ran = [pair for pair in judged if not pair[0].run.oom]
    rows = [_row(case, prediction) for case, prediction in ran if case.memory_gb is not None]
    stated = [row for row in rows if row.kind != NOT_STATED]
    kinds = sorted({row.kind for row in rows})
    frameworks = sorted({row.framework for row in stated})
    return MemoryReport(
        summary=summarize([row.error for row in stated]),
        by_kind={kind: summarize([row.error for row in rows if row.kind == kind]) for kind in kinds},
        by_framework={
            name: summarize([row.error for row in stated if row.framework == name]) for name in frameworks
        },
        rows=tuple(rows),
        died=len(died),
        ran=len(ran),
        died_but_fits=_judged(died, Verdict.FITS),
        ran_but_does_not_fit=_judged(ran, Verdict.DOES_NOT_FIT),
    )


def _row(case: Case, prediction: Prediction) -> MemoryRow:
    kind = case.run.mem_kind if case.run.mem_kind in _KINDS else NOT_STATED
    predicted = {
        "allocated": prediction.allocated_bytes,
        "reserved": prediction.reserved_bytes,
        "nvidia-smi": prediction.device_bytes,
        # It lies between the other two, so that the guess is off by least.
        NOT_STATED: prediction.reserved_bytes,
    }
    return MemoryRow(
        id=case.run.id,
        framework=case.framework.value,
        kind=kind,
        measured_bytes=(case.memory_gb or 0.0) * 1e9,
        predicted_bytes=predicted[kind],
    )


def _judged(pairs: Sequence[tuple[Case, Prediction]], verdict: Verdict) -> tuple[str, ...]:
    return tuple(case.run.id for case, prediction in pairs if verdict_of(prediction) is verdict)


LEAST_RISK = 1e-6
"""Smaller chances are not told apart by some tens of runs."""


@cache
def peak_ratios() -> tuple[float, ...]:
    """Return measured over predicted peaks of allocated memory, in order, of runs that state all that decides them."""
    return tuple(sorted(map(float, packaged("evidence", "peak_ratios")["ratios"])))


def reserve_of_risk(risk: float) -> float:
    """Return the share of usable memory to leave free for a chance of at most ``risk`` of running out of it.

    The measured peak is above the predicted one by no more than the order statistic that leaves so much of n + 1 equally
    likely places above it, and by no more than a normal error of their mean and spread: the larger of the two counts.
    Raises ``InputError`` for a risk below ``LEAST_RISK`` or not below 1.
    """
    if not LEAST_RISK <= risk < 1:
        raise input_error(
            f"{risk:.3g} is no chance", f"{LEAST_RISK:g} up to below 1, e.g. 1%", key="oom_risk"
        )
    ratios = peak_ratios()
    # Ranks hold of any distribution but end at the largest ratio seen; the normal tail goes on beyond it.
    place = min(max(ceil((len(ratios) + 1) * (1 - risk)), 1), len(ratios))
    normal = NormalDist(fmean(ratios), stdev(ratios)).inv_cdf(1 - risk)
    return max(1 - 1 / max(ratios[place - 1], normal), 0.0)
