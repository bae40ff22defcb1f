"""A model together with how it is trained: one model file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from layoutopt.optimizer.specs.model import ModelSpec, TrainingSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What a model file holds.

    ``phases`` lists later or consecutive parts of the run that have another sequence length or batch, in
    order; ``phase_names`` names them. Without phases the run is ``training`` alone.
    """

    model: ModelSpec
    training: TrainingSpec
    phases: tuple[TrainingSpec, ...] = ()
    phase_names: tuple[str, ...] = ()
