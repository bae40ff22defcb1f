"""A batch of layouts as a struct of arrays: what the cost model prices."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from layoutopt.optimizer.specs.layout import Recompute
    from layoutopt.optimizer.specs.vocabulary import Precision, Saver, Schedule

    IntArray = NDArray[np.int64]

DEGREES = ("tp", "cp", "pp", "vp", "dp", "ep", "etp", "micro_batch", "micro_batches")
CODES = ("sp", "zero", "hsdp_shard", "recompute", "order", "schedule", "precision")


@dataclass(frozen=True, slots=True, kw_only=True)
class Codebook:
    """What the small integers in a batch's code columns stand for.

    A recompute entry with granularity ``full`` means: whole layers, any number of them per stage,
    none included. ``orders`` are mesh orders, innermost axis first. A precision code also says which memory savers
    are in use: ``savers`` has an entry for each of ``precisions``, or none at all where nothing is saved.
    """

    recomputes: tuple[Recompute, ...]
    orders: tuple[str, ...]
    schedules: tuple[Schedule, ...]
    precisions: tuple[Precision, ...]
    savers: tuple[tuple[Saver, ...], ...] = ()

    @property
    def formats(self) -> tuple[tuple[Precision, tuple[Saver, ...]], ...]:
        """What each precision code stands for."""
        return tuple((precision, self.savers_of(code)) for code, precision in enumerate(self.precisions))

    def savers_of(self, precision: int) -> tuple[Saver, ...]:
        """Return the memory savers behind a precision code."""
        return self.savers[precision] if self.savers else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutBatch:
    """``n`` layouts without their stage splits, one int64 array of shape (n,) per column.

    ``sp`` is 0 or 1; ``hsdp_shard`` 0 means the whole data-parallel group; ``recompute``, ``order``,
    ``schedule`` and ``precision`` index into ``codebook``.
    """

    tp: IntArray
    cp: IntArray
    pp: IntArray
    vp: IntArray
    dp: IntArray
    ep: IntArray
    etp: IntArray
    micro_batch: IntArray
    micro_batches: IntArray
    sp: IntArray
    zero: IntArray
    hsdp_shard: IntArray
    recompute: IntArray
    order: IntArray
    schedule: IntArray
    precision: IntArray
    codebook: Codebook

    def __len__(self) -> int:
        return len(self.tp)

    def take(self, index: NDArray[Any]) -> LayoutBatch:
        """Return the rows selected by an index or mask array."""
        columns = {name: getattr(self, name)[index] for name in DEGREES + CODES}
        return replace(self, **columns)

    @classmethod
    def concat(cls, batches: list[LayoutBatch]) -> LayoutBatch:
        """Stack batches that share one codebook."""
        columns = {name: np.concatenate([getattr(b, name) for b in batches]) for name in DEGREES + CODES}
        return cls(codebook=batches[0].codebook, **columns)

    def table(self) -> NDArray[np.int64]:
        """Return all columns as an (n, 16) table in declaration order, e.g. for hashing."""
        names = [field.name for field in fields(self) if field.name != "codebook"]
        return np.stack([getattr(self, name) for name in names], axis=1)
