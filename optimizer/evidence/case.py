"""A measured run as the cost model takes it, or the reason why it cannot be priced."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from layoutopt.optimizer.evidence.run import MeasuredRun
    from layoutopt.optimizer.frameworks.registry import Framework
    from layoutopt.optimizer.specs.cluster import ClusterSpec
    from layoutopt.optimizer.specs.layout import Layout
    from layoutopt.optimizer.specs.model import ModelSpec, TrainingSpec


class RunFamily(StrEnum):
    """Rows whose errors are comparable."""

    DENSE_A100 = "dense A100"
    DENSE_V100 = "dense V100"
    DENSE_HOPPER_16 = "dense 16-bit H100"
    DENSE_HOPPER_8 = "dense fp8 H100"
    DENSE_BLACKWELL = "dense Blackwell"
    DENSE_OTHER = "dense, other GPUs"
    MOE = "MoE"
    NANOTRON = "nanotron"


class SkipRow(Exception):
    """A row cannot be priced; the message is the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Skip:
    """A row that is not priced."""

    run: MeasuredRun
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A row with everything needed to price it.

    ``switches`` replace fields of the framework's preset. ``unstated`` names the columns that the source
    leaves empty and for which the framework's default was taken; ``assumed`` those filled from an
    assumptions file, and what stands in for a trainer, a precision or an extent of offloading without a model.
    ``complete``: no cell that decides the price is empty. ``memory_gb`` is the measured peak in 1e9 bytes;
    ``memory_known``: everything that decides memory is stated, so that the peak may be compared.
    """

    run: MeasuredRun
    framework: Framework
    software: str | None
    model: ModelSpec
    training: TrainingSpec
    cluster: ClusterSpec
    layout: Layout
    family: RunFamily
    switches: Mapping[str, Any] = field(default_factory=dict)
    unstated: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()
    complete: bool = True
    memory_gb: float | None = None
    memory_known: bool = True

    @property
    def measured_s(self) -> float | None:
        """Measured seconds per optimizer step, None for a run that reports none (out of memory)."""
        return self.run.step_s
