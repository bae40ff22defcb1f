"""Tuples that can't beat one that is settled: they run the same operations, each as long or longer, in no less memory.

Launch switches, mesh orders and modifiers make many tuples of one shape. Stages that fit one of them fit every other whose
terms are nowhere larger, and are there as fast or faster; so what is proven of the other holds for it too. What is proven
of the least terms of several holds for all of them, whether or not any tuple has these: most are excluded together.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.cost.relaxed import elementwise_best

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from layoutopt.optimizer.cost.terms import FloatArray, StageTerms
    from layoutopt.optimizer.solve.search.one_tuple import Waiting

    Key = tuple[tuple[int, ...], ...]

FEWEST = 2
"""Tuples that are looked at together at least."""

SHAPE = ("schedule", "pp", "vp", "folded", "micro_batches", "hops_overlap", "may_recompute", "group")
"""Terms that decide which operations run in which order, and which stages there are."""

GROWING = (
    "forward_s", "backward_s", "wgrad_s", "hidden_forward_s", "hidden_backward_s", "recompute_s", "embedding_s", "head_s",
    "hop_s", "outside_s", "layer_state_bytes", "layer_activation_bytes", "recomputed_activation_bytes", "first_bytes",
    "last_bytes", "common_bytes", "flight_bytes", "recompute_transient_bytes",
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

    _alike: dict[Key, _Alike] = field(default_factory=dict)

    def add(self, item: Waiting, floor_s: float) -> None:
        """Note that no stages of a tuple are faster than ``floor_s`` seconds."""
        alike = self._alike.setdefault(shape_key(item), _Alike())
        alike.terms.append(_growing(item.terms))
        alike.floor_s.append(floor_s)

    def excludes(self, item: Waiting, below_s: float) -> bool:
        """Whether a settled tuple of the same family and shape proves that this one has nothing below a step time."""
        alike = self._alike.get(shape_key(item))
        if alike is None:
            return False
        # Only tuples that are settled down to this step time prove anything below it.
        least = np.array(alike.terms)[np.array(alike.floor_s) >= below_s]
        return bool((least <= _growing(item.terms)).all(axis=1).any())


@dataclass(slots=True)
class AlikeTuples:
    """The waiting tuples of every shape, and what is proven of the least terms of all that wait at a time.

    ``nothing_below`` tells whether stages with some terms are proven to take so many seconds or longer.
    """

    nothing_below: Callable[[StageTerms, float], bool]
    _waiting: dict[Key, list[Waiting]] = field(default_factory=dict)
    _least: Settled = field(default_factory=Settled)
    _open_s: dict[Key, float] = field(default_factory=dict)

    def add(self, item: Waiting) -> None:
        """Note that a tuple waits."""
        self._waiting.setdefault(shape_key(item), []).append(item)

    def excludes(self, item: Waiting, below_s: float, decided: set[bytes]) -> bool:
        """Whether a tuple has nothing below a step time, as have all of its shape that wait and are not ``decided``."""
        if self._least.excludes(item, below_s):
            return True
        key = shape_key(item)
        # What a quick look left open at a smaller time it leaves open here.
        if self._open_s.get(key, np.inf) <= below_s:
            return False
        alike = [
            other
            for other in self._waiting.get(key, ())
            if other.bound_s < below_s and other.key not in decided
        ]
        if len(alike) < FEWEST:
            return False
        least = least_terms(alike)
        if not self.nothing_below(least, below_s):
            self._open_s[key] = below_s
            return False
        self._least.add(replace(item, terms=least), below_s)
        return self._least.excludes(item, below_s)


def least_terms(items: Sequence[Waiting]) -> StageTerms:
    """Return terms under which no stages take longer, or more memory, than with any of some tuples of one shape."""
    every, ranks = [item.terms for item in items], int(items[0].terms.pp[0])
    every = [replace(terms, in_flight=terms.in_flight[:, :ranks]) for terms in every]
    best, ends = elementwise_best(every), {}
    for name in ("embedding_s", "head_s"):
        parts = [getattr(terms, name) for terms in every]
        least = getattr(best, name).copy()
        least[:, 1] = _least_backward([one[:, 1] for one in parts], [one[:, 2] for one in parts])
        ends[name] = least
    backward_s = _least_backward([one.backward_s for one in every], [one.wgrad_s for one in every])
    return replace(best, backward_s=backward_s, **ends)


def _least_backward(backward_s: list[FloatArray], wgrad_s: list[FloatArray]) -> FloatArray:
    """Return a backward no longer than any, as is what remains of it without the least weight gradient, when rounded too."""
    rest = np.min([both - own for both, own in zip(backward_s, wgrad_s, strict=True)], axis=0)
    whole = rest + np.min(wgrad_s, axis=0)
    least: FloatArray = np.maximum(whole - 2 * np.spacing(whole), 0.0)
    return least


def shape_key(item: Waiting) -> Key:
    """Return what tuples that run the same operations have in common."""
    return item.family, tuple(int(getattr(item.terms, name)[0]) for name in SHAPE)


def _growing(terms: StageTerms) -> FloatArray:
    """Return all of which more is worse; the rest of a backward, without the weight gradient, is an operation too."""
    parts = [getattr(terms, name)[0] for name in GROWING]
    for both in (terms.embedding_s, terms.head_s):
        parts.append(both[0, 1] - both[0, 2])
    parts += [terms.backward_s[0] - terms.wgrad_s[0], -terms.capacity_bytes[0]]
    parts.append(terms.in_flight[0, : int(terms.pp[0])])
    return np.concatenate([np.ravel(part) for part in parts])
