"""A model together with how it is trained: one model file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from layoutopt.optimizer.specs.model import ModelSpec, TrainingSpec


MAX_COUNT = 1_000_000_000
"""Largest batch, sequence and GPU count: their divisors are listed, and larger ones have no use."""


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


def outside_batch(tokens: float, length: int) -> tuple[str, str] | None:
    """Return what is wrong with a batch of so many tokens in sequences of ``length``, and what is allowed; None: nothing."""
    if tokens > MAX_COUNT * length:
        return f"{tokens:.6g} tokens are out of range", f"up to {MAX_COUNT:,} sequences"
    if not round(tokens / length):
        what = f"{tokens:,.12g} tokens are less than half a sequence of {length:,}"
        return what, f"at least {length:,} = 1 sequence"
    return None


def rounding(name: str, tokens: float, length: int) -> Iterator[str]:
    """Say that a batch in tokens, called ``name``, was rounded to whole sequences, where it was."""
    sequences = round(tokens / length)
    if tokens != sequences * length:
        whole = f"{sequences:,} sequences of {length:,} = {sequences * length:,} tokens"
        yield f"{name} {tokens:,.12g} rounded to {whole}"
