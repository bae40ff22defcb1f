"""A batch of layouts as a struct of arrays: what the cost model prices."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from layoutopt.optimizer.specs.layout import Switches
from layoutopt.optimizer.topology.counting import distinct_rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from layoutopt.optimizer.specs.layout import Layout, Recompute
    from layoutopt.optimizer.specs.vocabulary import Precision, Saver, Schedule

    IntArray = NDArray[np.int64]
    Format = tuple[Precision, tuple[Saver, ...], Switches]
    from collections.abc import Iterator


NOTHING_STATED = Switches()

TOGETHER = (
    "ep_overlap",
    "delay_wgrad",
    "shared_expert_overlap",
    "dispatcher",
    "tp_overlap",
    "cp_kind",
    "cuda_graph",
    "loss_chunks",
)
"""Switches in which rows priced together may differ; the others are fields of their one preset."""


@lru_cache(maxsize=1024)
def priced_apart(switches: Switches) -> Switches:
    """Return what rows priced together have to share of their switches."""
    return replace(switches, **dict.fromkeys(TOGETHER)) if switches else switches


@lru_cache(maxsize=256)
def _groups(formats: tuple[Format, ...]) -> tuple[int, ...]:
    """Number formats so that those that differ only in switches ``TOGETHER`` have one number."""
    shared = [(*entry[:2], priced_apart(entry[2])) for entry in formats]
    distinct = _distinct(shared)
    # Numbers of first occurrence: a batch's codes keep their order.
    return tuple(distinct.index(entry) for entry in shared)


DEGREES = ("tp", "cp", "pp", "vp", "dp", "ep", "etp", "micro_batch", "micro_batches")
CODES = ("sp", "zero", "hsdp_shard", "recompute", "order", "schedule", "precision")


@dataclass(frozen=True, kw_only=True)
class Codebook:
    """What the small integers in a batch's code columns stand for.

    A recompute entry with granularity ``full`` means: whole layers, any number of them per stage,
    none included. ``orders`` are mesh orders, innermost axis first. A precision code also says which memory savers
    and launch switches are in use: ``savers`` and ``switches`` have an entry for each of ``precisions``, or none at all
    where nothing is saved or stated.
    """

    recomputes: tuple[Recompute, ...]
    orders: tuple[str, ...]
    schedules: tuple[Schedule, ...]
    precisions: tuple[Precision, ...]
    savers: tuple[tuple[Saver, ...], ...] = ()
    switches: tuple[Switches, ...] = ()

    @cached_property
    def formats(self) -> tuple[Format, ...]:
        """What each precision code stands for."""
        return tuple(
            (precision, self.savers_of(code), self.switches_of(code))
            for code, precision in enumerate(self.precisions)
        )

    @cached_property
    def groups(self) -> IntArray:
        """Number codes (P,) so that those that differ only in switches ``TOGETHER`` have one number."""
        return np.array(_groups(self.formats), dtype=np.int64)

    def alike(self, code: int) -> tuple[int, ...]:
        """Return the precision codes of the same group as one, itself among them."""
        groups = self.groups
        return tuple(np.flatnonzero(groups == groups[code]).tolist())

    def switches_of(self, precision: int) -> Switches:
        """Return the launch switches behind a precision code."""
        return self.switches[precision] if self.switches else NOTHING_STATED

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
        """Return the rows selected by an index or mask array by an index (k,) or mask (n,)."""
        rows = self.tp[index]
        # Large batches are mostly taken whole, and comparing costs less than copying sixteen columns.
        if len(rows) == len(self) > FEW_ROWS and (index == np.arange(len(self))).all():
            return self
        columns: dict[str, Any] = {
            name: np.broadcast_to(column[:1], rows.shape) if _is_one_value(column) else column[index]
            for name, column in ((name, getattr(self, name)) for name in DEGREES + CODES)
        }
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


def compact(column: IntArray) -> IntArray:
    """Return a column (n,) that stores its value once where all rows share it: then it is a view without strides."""
    if len(column) and (column == column[0]).all():
        # Copied: a view of the old column would keep all of it in memory.
        return np.broadcast_to(column[:1].copy(), column.shape)
    return column


FEW_ROWS = 1 << 12
"""Batches of so many rows are copied without asking whether all of them are taken."""


def _is_one_value(column: IntArray) -> bool:
    """Whether a column repeats one stored value: rows taken from it need no memory either."""
    return column.strides == (0,) and len(column) > 0


SAME = (*DEGREES, "zero")
"""Columns that hold a layout's own values; the others hold codes."""


def batch_of(layouts: Sequence[Layout]) -> LayoutBatch:
    """Turn layouts into one batch with a codebook of their choices."""
    # A precision code names savers and switches too: fewer columns, and few combinations are ever asked for.
    formats = _distinct((layout.precision, layout.savers, layout.switches) for layout in layouts)
    books = {name: _distinct(getattr(layout, name) for layout in layouts) for name in _BOOKS.values()}
    codes = {
        code: [books[name].index(getattr(layout, name)) for layout in layouts]
        for code, name in _BOOKS.items()
    }
    codes["precision"] = [
        formats.index((layout.precision, layout.savers, layout.switches)) for layout in layouts
    ]
    codes["sp"] = [int(layout.sp) for layout in layouts]
    codes["hsdp_shard"] = [layout.hsdp_shard or 0 for layout in layouts]
    values = {name: [getattr(layout, name) for layout in layouts] for name in SAME}
    return LayoutBatch(
        codebook=Codebook(
            recomputes=books["recompute"],
            orders=books["mesh_order"],
            schedules=books["schedule"],
            precisions=tuple(precision for precision, _, _ in formats),
            savers=tuple(savers for _, savers, _ in formats),
            switches=tuple(switches for _, _, switches in formats),
        ),
        **{name: np.array(column, dtype=np.int64) for name, column in (values | codes).items()},
    )


def batch_of_one(layout: Layout) -> LayoutBatch:
    """Turn a layout into a batch with one row and a codebook of its own choices."""
    return batch_of((layout,))


_BOOKS = {"recompute": "recompute", "order": "mesh_order", "schedule": "schedule"}
"""Columns of codes, with the field of a layout that each codes."""


def _distinct(values: Iterable[Any]) -> tuple[Any, ...]:
    return tuple(dict.fromkeys(values))


def homogeneous(batch: LayoutBatch, columns: list[IntArray]) -> Iterator[tuple[IntArray, LayoutBatch]]:
    """Split a batch into rows that are alike in some columns (n,); yields their positions (k,) and themselves."""
    # Codes that select other code paths are priced apart; everything else is array arithmetic.
    first, inverse = distinct_rows(columns)
    for group in range(len(first)):
        rows = np.flatnonzero(inverse == group)
        yield rows, batch.take(rows) if len(first) > 1 else batch
