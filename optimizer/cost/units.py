"""What a batch's rows are put together from: one micro-batch on one block of each kind and on the ends."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.cost.data_parallel import DpContext, fsdp_layer_s
from layoutopt.optimizer.cost.pipeline import MeanStage

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from layoutopt.optimizer.cost.components import Component
    from layoutopt.optimizer.cost.ends import EndUnit
    from layoutopt.optimizer.cost.layer_units import BlockUnit
    from layoutopt.optimizer.cost.states import RankParameters

    FloatArray = NDArray[np.float64]
    IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Units:
    """Per-micro-batch units of every row of a batch: one block per kind, embedding, head and MTP layer."""

    blocks: list[BlockUnit]
    embedding: EndUnit
    head: EndUnit
    mtp: EndUnit | None
    inverse: IntArray

    def take(self, index: IntArray) -> Units:
        """Return the units of some rows, by their positions (k,)."""
        return self if len(index) == len(self.inverse) else replace(self, inverse=self.inverse[index])

    def blocks_of(self, name: str) -> FloatArray:
        """Gather one array of every block kind, (n, K)."""
        return np.stack([getattr(block, name) for block in self.blocks], axis=1)[self.inverse]

    def mean_stage(self, share: FloatArray) -> MeanStage:
        """Sum up blocks, (n, K) of each kind, into one stage."""
        names = [field.name for field in fields(MeanStage)]
        return MeanStage(**{name: (self.blocks_of(name) * share).sum(axis=1) for name in names})

    def parts_of(self, name: str) -> dict[Component, FloatArray]:
        """Gather one dictionary of arrays of every block kind, (n, K) each."""
        first = getattr(self.blocks[0], name)
        return {
            part: np.stack([getattr(block, name)[part] for block in self.blocks], axis=1)[self.inverse]
            for part in first
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatchUnits:
    """Units of a batch's rows; exposed FSDP and host traffic of a block of each kind, (n, K); one hop's seconds (n,)."""

    units: Units
    exposed_forward_s: FloatArray
    exposed_backward_s: FloatArray
    hop_s: FloatArray


def fsdp_s(
    dp: DpContext, units: Units, held: list[RankParameters], cover: float = 1.0
) -> tuple[FloatArray, FloatArray]:
    """Exposed FSDP traffic of one block of each kind, forward and backward, (n, K) each; ``cover`` scales what hides it."""
    forward, backward = (cover * units.blocks_of(f"cover_{way}_s") for way in ("forward", "backward"))
    each = [fsdp_layer_s(dp, held[k], forward[:, k], backward[:, k]) for k in range(len(held))]
    return np.stack([f for f, _ in each], axis=1), np.stack([b for _, b in each], axis=1)
