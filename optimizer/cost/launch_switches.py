"""Launch switches of the rows of a batch as arrays, so that layouts that differ in them alone are priced together."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from layoutopt.optimizer.frameworks.preset import EpOverlap
from layoutopt.optimizer.specs.vocabulary import CpComm, CudaGraph, Dispatcher

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray

    from layoutopt.optimizer.cost.batch import LayoutBatch
    from layoutopt.optimizer.frameworks.preset import FrameworkPreset
    from layoutopt.optimizer.specs.layout import Switches

    BoolArray = NDArray[np.bool_]
    IntArray = NDArray[np.int64]
    FloatArray = NDArray[np.float64]

DISPATCHERS, CP_KINDS = tuple(Dispatcher), tuple(CpComm)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSwitches:
    """Switches of the rows: arrays of shape (n,) each, or () where all rows have the same.

    ``overlap`` maps each way to hide expert traffic to whether it is in use. ``dispatcher`` indexes ``DISPATCHERS``;
    ``dispatchers`` are those among the rows, as are ``cp_kinds``, of which ``cp_kind`` indexes ``CP_KINDS``. ``cheapest``:
    the rows stand for every value at once, time takes the cheapest and memory the leanest, of ``kept_chunks`` parts of the
    loss.
    """

    overlap: dict[EpOverlap, BoolArray]
    delay_wgrad: BoolArray
    dispatcher: IntArray
    dispatchers: tuple[Dispatcher, ...]
    tp_overlap: BoolArray
    cp_kind: IntArray
    cp_kinds: tuple[CpComm, ...]
    graphs: dict[CudaGraph, BoolArray]
    loss_chunks: FloatArray
    kept_chunks: tuple[FloatArray, ...] = ()
    cheapest: bool = False

    def least_kept(self, price: Callable[[FloatArray], FloatArray]) -> FloatArray:
        """Price bytes (n,) by the parts of the loss, the least where rows stand for all."""
        least: FloatArray = np.minimum.reduce(
            [price(chunks) for chunks in self.kept_chunks or (self.loss_chunks,)]
        )
        return least

    def per_dispatcher(self, price: Callable[[Dispatcher], FloatArray]) -> FloatArray:
        """Choose each row's price (n,) by its dispatcher, the least where rows stand for all."""
        prices = [price(dispatcher) for dispatcher in self.dispatchers]
        own = [self.dispatcher == DISPATCHERS.index(dispatcher) for dispatcher in self.dispatchers]
        return self._own(own, prices)

    def per_cp_kind(self, prices: Sequence[FloatArray]) -> FloatArray:
        """Choose each row's price (n,) of those of ``cp_kinds``, the least where rows stand for all."""
        return self._own([self.cp_kind == CP_KINDS.index(kind) for kind in self.cp_kinds], prices)

    def _own(self, own: Sequence[BoolArray], prices: Sequence[FloatArray]) -> FloatArray:
        if self.cheapest or len(prices) == 1:
            least: FloatArray = np.minimum.reduce(prices)
            return least
        chosen: FloatArray = np.select(own, prices)
        return chosen

    @property
    def any_cp_kind(self) -> bool:
        """Whether the rows stand for several kinds of context parallelism at once."""
        return self.cheapest and len(self.cp_kinds) > 1

    @property
    def graph(self) -> BoolArray:
        """Whether anything is replayed from CUDA graphs, (n,) or ()."""
        return self.graphs[CudaGraph.PARTIAL] | self.graphs[CudaGraph.FULL]


def row_switches(preset: FrameworkPreset, batch: LayoutBatch, *, cheapest: bool = False) -> RowSwitches:
    """Return the switches of rows whose savers and other switches are in the preset.

    ``cheapest``: of all codes that differ from the rows' in switches alone, whatever the rows have.
    """
    book = batch.codebook
    # Most questions state none: one value for all rows costs no memory.
    if not any(book.switches):
        return of_preset(preset)
    if cheapest:
        # Rows that stand for every switch have one code, which names the group.
        codes = book.alike(int(batch.precision[0]))
        return _cheapest(preset, tuple(book.switches_of(code) for code in codes))
    used = np.unique(batch.precision).tolist()
    presets = [preset.switched(book.switches_of(code)) for code in used]
    return _of_presets(presets, np.searchsorted(used, batch.precision))


def of_preset(preset: FrameworkPreset) -> RowSwitches:
    """Return the switches of rows that state none."""
    return _of_presets([preset], np.zeros(0, dtype=np.int64))


def _of_presets(presets: list[FrameworkPreset], place: IntArray) -> RowSwitches:
    """Spread the fields of presets over rows; ``place`` is each row's among them."""

    def column(values: Iterable[Any]) -> NDArray[Any]:
        """Give every row its value, (n,), or () where all have the same."""
        listed = list(values)
        return np.array(listed)[place] if len(set(listed)) > 1 else np.array(listed[0])

    return RowSwitches(
        overlap={way: column(p.ep_overlap is way for p in presets) for way in EpOverlap},
        delay_wgrad=column(p.delay_wgrad for p in presets),
        dispatcher=column(DISPATCHERS.index(p.dispatcher) for p in presets),
        dispatchers=tuple(dict.fromkeys(p.dispatcher for p in presets)),
        tp_overlap=column(p.tp_overlap for p in presets),
        cp_kind=column(CP_KINDS.index(p.cp_comm) for p in presets),
        cp_kinds=tuple(dict.fromkeys(p.cp_comm for p in presets)),
        graphs={kind: column(p.cuda_graph is kind for p in presets) for kind in CudaGraph},
        loss_chunks=column(float(p.loss_chunks) for p in presets),
    )


@lru_cache(maxsize=64)
def _cheapest(preset: FrameworkPreset, choices: tuple[Switches, ...]) -> RowSwitches:
    """Return switches that hide and replay whatever a preset does with any of some switches."""
    presets = [preset.switched(switches) for switches in choices]
    return RowSwitches(
        overlap={way: np.array(any(p.ep_overlap is way for p in presets)) for way in EpOverlap},
        delay_wgrad=np.array(any(p.delay_wgrad for p in presets)),
        # Never read: where rows stand for all dispatchers the cheapest price is taken.
        dispatcher=np.array(0),
        dispatchers=tuple(dict.fromkeys(p.dispatcher for p in presets)),
        tp_overlap=np.array(any(p.tp_overlap for p in presets)),
        cp_kind=np.array(0),
        cp_kinds=tuple(dict.fromkeys(p.cp_comm for p in presets)),
        graphs={kind: np.array(any(p.cuda_graph is kind for p in presets)) for kind in CudaGraph},
        loss_chunks=np.array(float(min(p.loss_chunks for p in presets))),
        kept_chunks=tuple(np.array(float(chunks)) for chunks in sorted({p.loss_chunks for p in presets})),
        cheapest=True,
    )
