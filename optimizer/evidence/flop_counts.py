"""Seconds of rows whose TFLOP/s were counted in another way than their trainer counts."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from layoutopt.optimizer.cost.flops import model_flops_per_token
from layoutopt.optimizer.specs.document import packaged

if TYPE_CHECKING:
    from layoutopt.optimizer.evidence.run import MeasuredRun
    from layoutopt.optimizer.specs.model import ModelSpec

DERIVED = "tflops_gpu"
"""``measured_from`` of rows whose seconds are their model's FLOPs over stated TFLOP/s."""


def is_recounted(run: MeasuredRun) -> bool:
    """Whether a row's seconds were derived by the whole attention square where its publication counts half of it."""
    # Seconds that the source states itself are right by any count.
    derived = run.measured_from == DERIVED and run.measured_step_s is not None
    return derived and any(
        entry["phrase"] in (run.source or "") for entry in packaged("evidence", "flop_counts")
    )


def recounted(run: MeasuredRun, model: ModelSpec, sequence_length: float) -> MeasuredRun:
    """Return the row with the seconds that its TFLOP/s mean by its publication's own count."""
    if run.measured_step_s is None or not is_recounted(run):
        return run
    half, whole = (model_flops_per_token(model, sequence_length, causal=causal) for causal in (True, False))
    return replace(run, measured_step_s=run.measured_step_s * half / whole)
