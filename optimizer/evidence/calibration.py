"""What a calibration found: constants for a cluster file, with what they rest on."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from layoutopt.optimizer.evidence.case import Case
    from layoutopt.optimizer.evidence.metrics import ErrorSummary
    from layoutopt.optimizer.specs.cluster import Observation


@dataclass(frozen=True, slots=True, kw_only=True)
class Sourced:
    """A constant's value and where it comes from."""

    value: float
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFit:
    """One run: seconds measured, predicted before and after, its weight (below 1: down-weighted)."""

    case: Case
    measured_s: float
    before_s: float
    after_s: float
    weight: float
    outlier: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A further constant that was tried; errors are the mean \\|log ratio\\| of left-out runs."""

    name: str
    value: float
    left_out_without: float
    left_out_with: float
    accepted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """The result of calibrating a cluster with its own runs.

    ``values`` maps constants to their new value and source; ``left_out`` is the mean \\|log ratio\\| of runs
    predicted from the others (None for a single run). ``observations`` are what the runs read with the new constants: they
    condition what is believed of the others. ``warnings`` say what the runs could not settle.
    """

    values: Mapping[str, Sourced]
    runs: tuple[RunFit, ...]
    before: ErrorSummary
    after: ErrorSummary
    left_out: float | None
    trials: tuple[Trial, ...]
    warnings: tuple[str, ...]
    observations: tuple[Observation, ...] = ()

    @property
    def constants(self) -> dict[str, float]:
        """Values by name, as a cluster file's ``calibration`` holds them."""
        return {name: entry.value for name, entry in self.values.items()}

    def provenance(self) -> dict[str, Any]:
        """Return what the values rest on, in plain form for the cluster file."""
        return {
            "values": {name: asdict(entry) for name, entry in self.values.items()},
            "runs": [
                {
                    "id": run.case.run.id,
                    "source": run.case.run.source,
                    "measured_s": run.measured_s,
                    "before_s": run.before_s,
                    "after_s": run.after_s,
                    "weight": run.weight,
                    "outlier": run.outlier,
                }
                for run in self.runs
            ],
            "error": {
                "mape_before": self.before.mape,
                "mape_after": self.after.mape,
                "left_out_log_error": self.left_out,
            },
            "tried": [asdict(trial) for trial in self.trials],
            "warnings": list(self.warnings),
        }
