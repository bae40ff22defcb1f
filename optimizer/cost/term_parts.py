"""The terms of a batch with their breakdown: what ``StageTerms`` sums up and ``estimate`` prints."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from layoutopt.optimizer.cost.components import Component, Place
from layoutopt.optimizer.cost.terms import StageTerms
from layoutopt.optimizer.specs.vocabulary import Schedule

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from layoutopt.optimizer.cost.batch import LayoutBatch

    FloatArray = NDArray[np.float64]
    Named = dict[str, FloatArray]
    Times = dict[Component, FloatArray]

Name = TypeVar("Name", bound=str)
OF_ORDER = (Component.PP, Component.BUBBLE)
"""What the order of operations itself brings, in closed form: the exact step has its own."""


def total(parts: Named | Times, like: FloatArray) -> FloatArray:
    """Sum named arrays, broadcast to the shape of ``like``."""
    result = np.zeros_like(like)
    for value in parts.values():
        result = result + value
    return result


def placed(
    first: dict[Name, FloatArray], last: dict[Name, FloatArray], *, folded: bool
) -> tuple[dict[Name, FloatArray], dict[Name, FloatArray]]:
    """Return what the first and the last distinct rank carry of the model's two ends, (n,) each."""
    if not folded:
        return first, last
    return {name: np.add(first.get(name, 0.0), last.get(name, 0.0)) for name in {**first, **last}}, {}


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationTimes:
    """What a schedule's operations take, as ``StageTerms`` holds it; ``schedule`` is shared by all rows.

    ``hops_overlap`` (n,): when transfers run beside compute, a ``HopOverlap``.
    """

    schedule: Schedule
    hops_overlap: NDArray[np.int64]
    forward_s: FloatArray
    backward_s: FloatArray
    wgrad_s: FloatArray
    hidden_forward_s: FloatArray
    hidden_backward_s: FloatArray
    embedding_s: FloatArray
    head_s: FloatArray
    hop_s: FloatArray

    def slower(self, factor: float) -> OperationTimes:
        """Multiply every time."""
        times = {field.name: getattr(self, field.name) for field in fields(self)}
        return OperationTimes(**{name: factor * v if name.endswith("_s") else v for name, v in times.items()})

    def columns(self) -> dict[str, Any]:
        """Return the columns of ``StageTerms``."""
        result = {field.name: getattr(self, field.name) for field in fields(self)}
        rows = len(self.hop_s)
        result["schedule"] = np.full(rows, list(Schedule).index(self.schedule))
        return result


@dataclass(frozen=True, slots=True, kw_only=True)
class TermParts:
    """Named components, each array (n, K) in ``layer_*`` and ``recompute_s`` and (n,) elsewhere. Seconds, bytes.

    ``first_*`` and ``last_*`` are what the first and the last distinct rank carry. ``ranks``, ``chunks`` and ``folded``
    are those of ``StageTerms``.
    """

    batch: LayoutBatch
    ranks: NDArray[np.int64]
    chunks: NDArray[np.int64]
    folded: bool
    layer_s: Times
    recompute_s: Times
    first_s: Times
    last_s: Times
    fixed_s: Times
    layer_states: Named
    first_states: Named
    last_states: Named
    layer_activation_bytes: FloatArray
    recomputed_activation_bytes: FloatArray
    common_bytes: Named
    flight_bytes: FloatArray
    recompute_transient_bytes: FloatArray
    capacity_bytes: FloatArray
    in_flight: FloatArray
    bubble_weight: FloatArray
    may_recompute: NDArray[np.bool_]
    operations: OperationTimes

    def __post_init__(self) -> None:
        """Raise TypeError where a component's seconds are not at its record's place: the exact step would miss them."""
        piped = (*self.layer_s, *self.recompute_s, *self.first_s, *self.last_s)
        strays = [part for part in piped if part.record.place is not Place.PIPELINE]
        strays += [
            part for part in self.fixed_s if part.record.place is Place.PIPELINE and part not in OF_ORDER
        ]
        if strays:
            raise TypeError(
                f"component {strays[0]}: its record says {strays[0].record.place}, its seconds are elsewhere"
            )

    def slower(self, factor: float) -> TermParts:
        """Return the parts with every time multiplied; 1 leaves them as they are."""
        if factor == 1.0:
            return self
        times = ("layer_s", "recompute_s", "first_s", "last_s", "fixed_s")
        scaled: dict[str, Any] = {
            field: {part: factor * value for part, value in getattr(self, field).items()} for field in times
        }
        return replace(self, operations=self.operations.slower(factor), **scaled)

    def grouped(self) -> TermParts:
        """Return the parts with recomputation in groups of layers inside of every block: all layers are recomputed then."""
        entries = self.batch.codebook.recomputes
        if not any(entry.group for entry in entries):
            return self
        rows = np.array([entry.group > 0 for entry in entries])[self.batch.recompute]
        always = rows[:, None]
        again = {part: np.where(always, value, 0.0) for part, value in self.recompute_s.items()}
        times = {part: value + again.get(part, 0.0) for part, value in self.layer_s.items()}
        times |= {part: value for part, value in again.items() if part not in times}
        backward = self.operations.backward_s + total(again, self.layer_activation_bytes)
        transient = np.where(rows, self.recompute_transient_bytes, 0.0)
        return replace(
            self,
            layer_s=times,
            recompute_s={part: np.where(always, 0.0, value) for part, value in self.recompute_s.items()},
            layer_activation_bytes=np.where(
                always, self.recomputed_activation_bytes, self.layer_activation_bytes
            ),
            common_bytes=self.common_bytes | {"recompute_transient": transient},
            recompute_transient_bytes=self.recompute_transient_bytes - transient,
            may_recompute=self.may_recompute & ~rows,
            operations=replace(self.operations, backward_s=backward),
        )

    def outside(self) -> Times:
        """Return the parts of a step before and after the pipeline."""
        return {part: s for part, s in self.fixed_s.items() if part.record.place is Place.OUTSIDE}

    def terms(self) -> StageTerms:
        """Sum the components."""
        rows, blocks = self.bubble_weight, self.layer_activation_bytes
        return StageTerms(
            pp=self.ranks,
            vp=self.chunks,
            folded=np.full(len(rows), self.folded),
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
            flight_bytes=self.flight_bytes,
            recompute_transient_bytes=self.recompute_transient_bytes,
            capacity_bytes=self.capacity_bytes,
            in_flight=self.in_flight,
            may_recompute=self.may_recompute,
            group=groups_of(self.batch),
            outside_s=total(self.outside(), rows),
            **self.operations.columns(),
        )


def groups_of(batch: LayoutBatch) -> NDArray[np.int64]:
    """Return how many layers of each row (n,) are recomputed from one saved input."""
    of_entry = np.array([max(entry.group, 1) for entry in batch.codebook.recomputes], dtype=np.int64)
    return of_entry[batch.recompute]


def scatter_terms(size: int, pieces: list[tuple[NDArray[np.int64], StageTerms]]) -> StageTerms:
    """Put terms of disjoint row sets (k,) back into one batch of ``size`` rows, in-flight padded to the widest."""
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
