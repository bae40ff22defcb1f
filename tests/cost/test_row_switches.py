"""Launch switches of many rows: each row has its own, and rows that stand for all have the best of them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.cost.batch import batch_of
from layoutopt.optimizer.cost.launch_switches import DISPATCHERS, of_preset, row_switches
from layoutopt.optimizer.frameworks.preset import EpOverlap, load_preset
from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.specs.layout import Layout, Switches
from layoutopt.optimizer.specs.vocabulary import CudaGraph, Dispatcher

if TYPE_CHECKING:
    from numpy.typing import NDArray

PRESET = load_preset(Framework.MEGATRON)
CHOICES = (
    Switches(dispatcher=Dispatcher.DEEPEP, ep_overlap=True, loss_chunks=4),
    Switches(dispatcher=Dispatcher.ALLTOALL, ep_overlap=False, loss_chunks=1, cuda_graph=CudaGraph.FULL),
    Switches(dispatcher=Dispatcher.HYBRIDEP, tp_overlap=True, loss_chunks=2, cuda_graph=CudaGraph.PARTIAL),
)
PLACES = (0, 1, 2, 1, 0)
LAYOUTS = [replace(Layout(dp=8, ep=8), switches=CHOICES[place]) for place in PLACES]
PRICE = {dispatcher: 10.0 * (1 + number) for number, dispatcher in enumerate(DISPATCHERS)}


def _price(dispatcher: Dispatcher) -> NDArray[np.float64]:
    return np.full(len(PLACES), PRICE[dispatcher])


def test_every_row_is_priced_by_its_own_switches() -> None:
    """Dispatcher, overlap, graphs and parts of the loss are those of the row."""
    found = row_switches(PRESET, batch_of(LAYOUTS))
    own = [PRESET.switched(CHOICES[place]) for place in PLACES]
    assert found.per_dispatcher(_price).tolist() == [PRICE[one.dispatcher] for one in own]
    assert found.loss_chunks.tolist() == [one.loss_chunks for one in own]
    assert np.broadcast_to(found.tp_overlap, len(own)).tolist() == [one.tp_overlap for one in own]
    for way in EpOverlap:
        assert np.broadcast_to(found.overlap[way], len(own)).tolist() == [
            one.ep_overlap is way for one in own
        ]
    graphs = [one.cuda_graph in (CudaGraph.PARTIAL, CudaGraph.FULL) for one in own]
    assert np.broadcast_to(found.graph, len(own)).tolist() == graphs


def test_rows_that_stand_for_all_have_the_best_of_each() -> None:
    """The least price of any dispatcher, whatever hides traffic, and the parts of the loss with the least of each."""
    found = row_switches(PRESET, batch_of(LAYOUTS), cheapest=True)
    own = [PRESET.switched(one) for one in CHOICES]
    assert set(found.per_dispatcher(_price).tolist()) == {min(PRICE[one.dispatcher] for one in own)}
    assert float(found.loss_chunks) == 1.0
    assert bool(found.tp_overlap) and bool(found.graph)
    assert float(found.least_kept(lambda chunks: 12.0 / chunks)) == 3.0


def test_rows_without_switches_are_those_of_the_preset() -> None:
    """One price for all of them, without a column of its own."""
    found = row_switches(PRESET, batch_of([Layout(dp=8), Layout(dp=8)]))
    assert found.dispatchers == of_preset(PRESET).dispatchers == (PRESET.dispatcher,)
    assert found.per_dispatcher(_price).tolist() == _price(PRESET.dispatcher).tolist()
    assert float(found.loss_chunks) == PRESET.loss_chunks
