"""Seconds of rows whose TFLOP/s were counted in another way than their trainer counts."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

from layoutopt.optimizer.cost.flops import model_flops_per_token
from layoutopt.optimizer.specs.document import plain_yaml

if TYPE_CHECKING:
    from layoutopt.optimizer.evidence.run import MeasuredRun
    from layoutopt.optimizer.specs.model import ModelSpec

DERIVED = "tflops_gpu"
"""``measured_from`` of rows whose seconds are their model's FLOPs over stated TFLOP/s."""


def recounted(run: MeasuredRun, model: ModelSpec, sequence_length: float) -> MeasuredRun:
    """Return the row with the seconds that its TFLOP/s mean where its publication counts half of the attention square."""
    seconds = run.measured_step_s
    if run.measured_from != DERIVED or seconds is None or not _counts_half(run.source or ""):
        return run
    half, whole = (model_flops_per_token(model, sequence_length, causal=causal) for causal in (True, False))
    return replace(run, measured_step_s=seconds * half / whole)


def _counts_half(source: str) -> bool:
    return any(phrase in source for phrase in _phrases())


@cache
def _phrases() -> tuple[str, ...]:
    text = (
        resources.files("layoutopt.optimizer.evidence")
        .joinpath("flop_counts.yaml")
        .read_text(encoding="utf-8")
    )
    return tuple(entry["phrase"] for entry in plain_yaml(text))
