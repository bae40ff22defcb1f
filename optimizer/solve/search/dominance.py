"""Tuples that can't beat one that is settled: they run the same operations, each as long or longer, in no less memory.

Launch switches, mesh orders and modifiers make many tuples of one shape. Stages that fit one of them fit every other whose
terms are nowhere larger, and are there as fast or faster; so what is proven of the other holds for it too.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from layoutopt.optimizer.cost.terms import FloatArray, StageTerms
    from layoutopt.optimizer.solve.search.one_tuple import Waiting

SHAPE = ("schedule", "pp", "vp", "folded", "micro_batches", "hops_overlap", "may_recompute")
"""Terms that decide which operations run in which order, and which stages there are."""

GROWING = (
    "forward_s", "backward_s", "wgrad_s", "hidden_forward_s", "hidden_backward_s", "recompute_s", "embedding_s", "head_s",
    "hop_s", "outside_s", "layer_state_bytes", "layer_activation_bytes", "recomputed_activation_bytes", "first_bytes",
    "last_bytes", "common_bytes", "recompute_transient_bytes",
)  # fmt: skip
"""Terms of which more never makes a step shorter or a rank smaller."""


@dataclass(slots=True)
class _Alike:
    """The settled tuples of one family and shape: their terms and the floors under their steps."""

    terms: list[FloatArray] = field(default_factory=list)
    floor_s: list[float] = field(default_factory=list)


@dataclass(slots=True)
class Settled:
    """What is proven of the tuples that were enumerated to the end."""

    _alike: dict[tuple[tuple[int, ...], ...], _Alike] = field(default_factory=dict)

    def add(self, item: Waiting, floor_s: float) -> None:
        """Note that no stages of a tuple are faster than ``floor_s`` seconds."""
        alike = self._alike.setdefault(_key(item), _Alike())
        alike.terms.append(_growing(item.terms))
        alike.floor_s.append(floor_s)

    def excludes(self, item: Waiting, below_s: float) -> bool:
        """Whether a settled tuple of the same family and shape proves that this one has nothing below a step time."""
        alike = self._alike.get(_key(item))
        if alike is None:
            return False
        least = np.array(alike.terms)[np.array(alike.floor_s) >= below_s]
        return bool((least <= _growing(item.terms)).all(axis=1).any())


def _key(item: Waiting) -> tuple[tuple[int, ...], ...]:
    return item.family, tuple(int(getattr(item.terms, name)[0]) for name in SHAPE)


def _growing(terms: StageTerms) -> FloatArray:
    """Return all of which more is worse; the rest of a backward, without the weight gradient, is an operation too."""
    parts = [getattr(terms, name)[0] for name in GROWING]
    for both in (terms.embedding_s, terms.head_s):
        parts.append(both[0, 1] - both[0, 2])
    parts += [terms.backward_s[0] - terms.wgrad_s[0], -terms.capacity_bytes[0]]
    parts.append(terms.in_flight[0, : int(terms.pp[0])])
    return np.concatenate([np.ravel(part) for part in parts])
