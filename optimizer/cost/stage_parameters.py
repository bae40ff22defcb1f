"""Parameters of a pipeline rank: those of the model's ends, and an equal share of the blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.cost.matrices import other_mtp_parameters
from layoutopt.optimizer.cost.parameters import (
    embedding_parameters,
    head_parameters,
    mtp_parameters,
    padded_vocab,
)
from layoutopt.optimizer.cost.pipeline import schedule_of
from layoutopt.optimizer.cost.states import RankParameters, on_rank

if TYPE_CHECKING:
    from layoutopt.optimizer.cost.batch import LayoutBatch
    from layoutopt.optimizer.frameworks.preset import FrameworkPreset
    from layoutopt.optimizer.specs.model import ModelSpec


def end_parameters(
    model: ModelSpec, preset: FrameworkPreset, batch: LayoutBatch, *, folded: bool
) -> tuple[RankParameters, RankParameters]:
    """Parameters of the model's first and last end.

    Where they are on different ranks, tied or MTP stages hold an embedding of their own.
    """
    copy, head = table_parameters(model, preset, batch, folded=folded)
    first = _table(model, preset, batch) + on_rank(model, embedding_parameters(model, 0), batch, preset)
    last = on_rank(model, head_parameters(model, 0), batch, preset) + head + copy
    if model.mtp_layers:
        last = last + on_rank(model, mtp_parameters(model), batch, preset).scaled(model.mtp_layers)
        if not preset.splits_mtp_projection:
            # ``on_rank`` took the projection as split over tp: the rest of it is put back.
            others = 2.0 * model.hidden**2 * (1.0 - 1.0 / batch.tp)
            last = last + RankParameters(others, np.zeros(len(batch))).scaled(model.mtp_layers)
    return first, last


def holds_copy(model: ModelSpec, *, folded: bool) -> bool:
    """Whether the last end has an embedding of its own where it is on another rank than the first: tied, or for MTP."""
    return (model.tied_embeddings or model.mtp_layers > 0) and not folded


def table_parameters(
    model: ModelSpec, preset: FrameworkPreset, batch: LayoutBatch, *, folded: bool
) -> tuple[RankParameters, RankParameters]:
    """Parameters of the last end's own copy of the embedding, and of its output matrix where that is another one."""
    table = _table(model, preset, batch)
    # Folded, one rank has both ends and needs no copy.
    copy = np.where(batch.pp > 1, float(holds_copy(model, folded=folded)), 0.0)
    return table.scaled(copy), table.scaled(float(not model.tied_embeddings))


def _table(model: ModelSpec, preset: FrameworkPreset, batch: LayoutBatch) -> RankParameters:
    """Parameters of a rank's part of a matrix over the vocabulary."""
    # Padding depends on tp alone, of which a batch has few values.
    degrees = np.unique(batch.tp)
    vocab = np.array([padded_vocab(model.vocab, int(tp), preset.pad_vocab) for tp in degrees], float)
    rows = vocab[np.searchsorted(degrees, batch.tp)]
    return RankParameters(rows * model.hidden / batch.tp, np.zeros(len(batch)))


def other_end_parameters(
    model: ModelSpec,
    preset: FrameworkPreset,
    batch: LayoutBatch,
    ends: tuple[RankParameters, RankParameters],
) -> tuple[RankParameters, RankParameters]:
    """Of the parameters of both ends those in no matrix of a block: all but the MTP layers' matrices."""
    first, last = ends
    if model.mtp_layers:
        whole, other = (
            on_rank(model, counted(model), batch, preset)
            for counted in (mtp_parameters, other_mtp_parameters)
        )
        last = last - (whole - other).scaled(model.mtp_layers)
    return first, last


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanParameters:
    """Parameters of an equal share of the blocks, and what the first and the last distinct rank add."""

    blocks: RankParameters
    first: RankParameters
    last: RankParameters

    @property
    def fullest(self) -> RankParameters:
        """An equal share of the blocks with the larger end."""
        dense = np.maximum(self.first.dense, self.last.dense)
        return self.blocks + RankParameters(dense, np.maximum(self.first.expert, self.last.expert))


def mean_parameters(
    model: ModelSpec,
    preset: FrameworkPreset,
    batch: LayoutBatch,
    held: list[RankParameters],
    *,
    other: bool = False,
) -> MeanParameters:
    """Share the blocks out evenly; ``held`` are the parameters of one block of each kind on a rank.

    ``other``: they are those in no matrix, and those of the ends are to be so too.
    """
    ends = end_parameters(model, preset, batch, folded=schedule_of(batch).folded)
    if other:
        ends = other_end_parameters(model, preset, batch, ends)
    return shared_out(model, batch, held, ends)


def shared_out(
    model: ModelSpec,
    batch: LayoutBatch,
    held: list[RankParameters],
    ends: tuple[RankParameters, RankParameters],
) -> MeanParameters:
    """Share blocks out evenly, of which a rank has ``held`` of each kind, and place the ends."""
    schedule, zero = schedule_of(batch), np.zeros(len(batch))
    blocks = none = RankParameters(zero, zero)
    for run, block in zip(model.runs, held, strict=True):
        blocks = blocks + block.scaled(schedule.parameter_copies * run.count / batch.pp)
    first, last = ends
    if schedule.folded:
        first, last = first + last, none
    return MeanParameters(blocks=blocks, first=first, last=last)
