"""The terms of a batch with their breakdown: what ``StageTerms`` sums up and ``estimate`` prints."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import numpy as np

from layoutopt.optimizer.cost.terms import StageTerms

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from layoutopt.optimizer.cost.batch import LayoutBatch

    FloatArray = NDArray[np.float64]
    Named = dict[str, FloatArray]


def total(parts: Named, like: FloatArray) -> FloatArray:
    """Sum named arrays, broadcast to the shape of ``like``."""
    result = np.zeros_like(like)
    for value in parts.values():
        result = result + value
    return result


class Ends(StrEnum):
    """Where a schedule puts embedding and head: on the two end ranks, both on rank 0, or both on both end ranks."""

    APART = "apart"
    TOGETHER = "together"
    MIRRORED = "mirrored"


def placed(ends: Ends, first: Named, last: Named, *, shared: float) -> tuple[Named, Named]:
    """Return what rank 0 and rank p - 1 carry of the model's first and last end.

    ``shared`` is the part of both ends that each end rank of a mirrored schedule carries: half the
    micro-batches' time, all of the bytes.
    """
    if ends is Ends.APART:
        return first, last
    both = {name: first.get(name, 0.0) + last.get(name, 0.0) for name in {**first, **last}}
    if ends is Ends.TOGETHER:
        return both, {}
    part = {name: shared * value for name, value in both.items()}
    return part, part


@dataclass(frozen=True, slots=True, kw_only=True)
class TermParts:
    """Named components, each array (n, K) in ``layer_*`` and ``recompute_s`` and (n,) elsewhere. Seconds, bytes.

    ``first_*`` and ``last_*`` are what rank 0 and rank p - 1 carry.
    """

    batch: LayoutBatch
    layer_s: Named
    recompute_s: Named
    first_s: Named
    last_s: Named
    fixed_s: Named
    layer_states: Named
    first_states: Named
    last_states: Named
    layer_activation_bytes: FloatArray
    recomputed_activation_bytes: FloatArray
    common_bytes: Named
    recompute_transient_bytes: FloatArray
    capacity_bytes: FloatArray
    in_flight: FloatArray
    bubble_weight: FloatArray
    may_recompute: NDArray[np.bool_]

    def slower(self, factor: float) -> TermParts:
        """Return the parts with every time multiplied; 1 leaves them as they are."""
        if factor == 1.0:
            return self
        times = ("layer_s", "recompute_s", "first_s", "last_s", "fixed_s")
        scaled = {
            field: {part: factor * value for part, value in getattr(self, field).items()} for field in times
        }
        return replace(self, **scaled)

    def terms(self) -> StageTerms:
        """Sum the components."""
        rows, blocks = self.bubble_weight, self.layer_activation_bytes
        return StageTerms(
            pp=self.batch.pp,
            vp=self.batch.vp,
            micro_batches=self.batch.micro_batches,
            layer_s=total(self.layer_s, blocks),
            recompute_s=total(self.recompute_s, blocks),
            first_s=total(self.first_s, rows),
            last_s=total(self.last_s, rows),
            bubble_weight=self.bubble_weight,
            fixed_s=total(self.fixed_s, rows),
            layer_state_bytes=total(self.layer_states, blocks),
            layer_activation_bytes=self.layer_activation_bytes,
            recomputed_activation_bytes=self.recomputed_activation_bytes,
            first_bytes=total(self.first_states, rows),
            last_bytes=total(self.last_states, rows),
            common_bytes=total(self.common_bytes, rows),
            recompute_transient_bytes=self.recompute_transient_bytes,
            capacity_bytes=self.capacity_bytes,
            in_flight=self.in_flight,
            may_recompute=self.may_recompute,
        )


def scatter_terms(size: int, pieces: list[tuple[NDArray[np.int64], StageTerms]]) -> StageTerms:
    """Put the terms of disjoint row sets back into one batch of ``size`` rows, in-flight padded to the widest."""
    if len(pieces) == 1:
        return pieces[0][1]
    width = max(terms.in_flight.shape[1] for _, terms in pieces)
    values: dict[str, Any] = {}
    for field in fields(StageTerms):
        example = getattr(pieces[0][1], field.name)
        if field.name == "in_flight":
            out = np.zeros((size, width))
            for rows, terms in pieces:
                out[rows, : terms.in_flight.shape[1]] = terms.in_flight
        else:
            out = np.empty((size, *example.shape[1:]), dtype=example.dtype)
            for rows, terms in pieces:
                out[rows] = getattr(terms, field.name)
        values[field.name] = out
    return StageTerms(**values)
