"""What of a model is trained: all of it, all but frozen parts, or adapters alone; and what work and states that leaves.

A frozen matrix is multiplied forward and for its input's gradient, not for its own, and has neither gradients nor optimizer
state. Activations are counted as where all is trained: autograd leaves out inputs that only a weight's gradient needs, which
fused layers keep, so that they are an upper bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.cost.adapters import (
    adapted_flops_per_token,
    adapter_parameters,
    adapter_work,
    frozen_bytes,
)
from layoutopt.optimizer.cost.flops import mixer_linear_flops, model_flops_per_token
from layoutopt.optimizer.cost.matrices import Held, matrix_parameters, mixer_matrices, mlp_block_matrices
from layoutopt.optimizer.cost.parameters import Parameters, block_parameters, layer_parts
from layoutopt.optimizer.cost.stage_parameters import (
    end_parameters,
    other_end_parameters,
    table_parameters,
)
from layoutopt.optimizer.cost.states import RankParameters, on_rank
from layoutopt.optimizer.specs.vocabulary import FrozenPart

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from layoutopt.optimizer.cost.batch import LayoutBatch
    from layoutopt.optimizer.cost.matrices import Matrix
    from layoutopt.optimizer.cost.work import ComputeContext, Keys, Work
    from layoutopt.optimizer.frameworks.preset import FrameworkPreset
    from layoutopt.optimizer.specs.model import LayerShape, ModelSpec, Run, TrainingSpec

WORK_OF = {
    FrozenPart.MLP: ("mlp", "shared_experts"),
    FrozenPart.EXPERTS: ("experts",),
    FrozenPart.ROUTER: ("router",),
}
"""Parts of a layer's work that have a part's weights, beside its mixer's, all of which are ``attention``."""


def trains_all(training: TrainingSpec) -> bool:
    """Whether no weight is frozen."""
    return training.adapter is None and not training.frozen


def is_frozen(training: TrainingSpec, part: FrozenPart) -> bool:
    """Whether a part's weights stay as they are; under adapters all do."""
    return training.adapter is not None or part in training.frozen


def trained_parameters(model: ModelSpec, training: TrainingSpec, run: Run) -> Parameters:
    """Count the trained parameters of one block of a run."""
    if training.adapter is not None:
        return adapter_parameters(model, training.adapter, run)
    whole = block_parameters(model, run)
    for shape in run.block:
        for part, counted in layer_parts(model, shape).items():
            whole = whole - counted if part in training.frozen else whole
    return whole


def trained_others(model: ModelSpec, training: TrainingSpec, run: Run) -> Parameters:
    """Count of the trained parameters of one block those in no matrix; an adapter's all count so."""
    whole = trained_parameters(model, training, run)
    if training.adapter is not None:
        return whole
    return whole - matrix_parameters(
        matrix
        for shape in run.block
        for part, matrix in _matrices(model, shape)
        if part not in training.frozen
    )


def _matrices(model: ModelSpec, shape: LayerShape) -> Iterator[tuple[FrozenPart, Matrix]]:
    """Yield the matrices of a layer with the part that each belongs to."""
    for matrix in mixer_matrices(model, shape):
        yield FrozenPart.ATTENTION, matrix
    for matrix in mlp_block_matrices(model, shape):
        yield FrozenPart.EXPERTS if matrix.held is Held.EXPERT else FrozenPart.MLP, matrix


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedShare:
    """Shares that are trained: of the blocks' dense and expert parameters, and of the embedding."""

    dense: float = 1.0
    expert: float = 1.0
    embedding: float = 1.0

    def of(self, held: RankParameters, embedding: RankParameters | None = None) -> RankParameters:
        """Return the trained ones of a rank's parameters, ``embedding`` of them in the embedding."""
        found = RankParameters(self.dense * held.dense, self.expert * held.expert)
        if embedding is None:
            return found
        # The embedding was counted at the share of the blocks: put its own in place.
        return found + RankParameters((self.embedding - self.dense) * embedding.dense, 0.0 * embedding.expert)


def trained_share(model: ModelSpec, training: TrainingSpec) -> TrainedShare:
    """Return what shares of the parameters are trained."""
    if trains_all(training):
        return TrainedShare()
    whole = _summed(model, {run: block_parameters(model, run) for run in model.runs})
    trained = _summed(model, {run: trained_parameters(model, training, run) for run in model.runs})
    return TrainedShare(
        dense=(trained.total - trained.expert) / (whole.total - whole.expert),
        expert=trained.expert / whole.expert if whole.expert else 1.0,
        embedding=float(not is_frozen(training, FrozenPart.EMBEDDING)),
    )


def _summed(model: ModelSpec, counts: Mapping[Run, Parameters]) -> Parameters:
    """Add up blocks of all runs."""
    total = Parameters()
    for run in model.runs:
        one = counts[run]
        total += Parameters(
            sharded=run.count * one.sharded,
            replicated=run.count * one.replicated,
            expert=run.count * one.expert,
        )
    return total


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedParts:
    """Parameters on a rank where not all are trained: of one block of each kind, and of both ends of the model.

    ``others`` and ``end_others`` are the trained ones in no matrix of a block, ``frozen_bytes`` those of a frozen weight
    of a block, None for as many as of a trained one. ``output``: the output matrix is trained.
    """

    blocks: list[RankParameters]
    others: list[RankParameters]
    frozen: list[RankParameters]
    ends: tuple[RankParameters, RankParameters]
    end_others: tuple[RankParameters, RankParameters]
    output: bool
    frozen_bytes: float | None = None


def trained_parts(
    model: ModelSpec,
    training: TrainingSpec,
    preset: FrameworkPreset,
    batch: LayoutBatch,
    held: list[RankParameters],
    *,
    folded: bool,
) -> TrainedParts | None:
    """Return what is trained of blocks, of which ranks have ``held``, and of the model's ends; None where all is."""
    if trains_all(training):
        return None
    none = RankParameters(np.zeros(len(batch)), np.zeros(len(batch)))
    blocks = [on_rank(model, trained_parameters(model, training, run), batch, preset) for run in model.runs]
    others = [on_rank(model, trained_others(model, training, run), batch, preset) for run in model.runs]
    output = not is_frozen(training, FrozenPart.OUTPUT)
    if training.adapter is not None:
        stored = frozen_bytes(training.adapter, preset)
        return TrainedParts(
            blocks=blocks,
            others=others,
            frozen=held,
            # Adapters leave both ends of the model as they are.
            ends=(none, none),
            end_others=(none, none),
            output=output,
            frozen_bytes=stored,
        )
    first, last = end_parameters(model, preset, batch, folded=folded)
    copy, head = table_parameters(model, preset, batch, folded=folded)
    if is_frozen(training, FrozenPart.EMBEDDING):
        # A tied embedding has a copy beside the head, which is frozen with it.
        first, last = none, last - copy
    ends = (first, last if output else last - head)
    return TrainedParts(
        blocks=blocks,
        others=others,
        frozen=[one - trained for one, trained in zip(held, blocks, strict=True)],
        ends=ends,
        end_others=other_end_parameters(model, preset, batch, ends),
        output=output,
    )


def trained_work(
    ctx: ComputeContext, keys: Keys, shape: LayerShape, mixer: Mapping[str, Work], parts: dict[str, Work]
) -> dict[str, Work]:
    """Return the parts of a layer as they are trained: without gradients of frozen weights, with what adapters do.

    ``mixer`` are those of ``parts`` that belong to the layer's mixer.
    """
    training = ctx.training
    if trains_all(training):
        return parts
    names = {name for part, words in WORK_OF.items() if is_frozen(training, part) for name in words}
    names |= set(mixer) if is_frozen(training, FrozenPart.ATTENTION) else set()
    found = {name: work.without_wgrad() if name in names else work for name, work in parts.items()}
    if training.adapter is None:
        return found
    return found | {"adapters": adapter_work(ctx, keys, shape, training.adapter)}


def trained_flops_per_token(
    model: ModelSpec, training: TrainingSpec, sequence_length: float, *, causal: bool
) -> float:
    """Forward and backward FLOPs per token without gradients of frozen weights."""
    if training.adapter is not None:
        return adapted_flops_per_token(model, sequence_length, training.adapter, causal=causal)
    # A frozen matrix saves the third of its FLOPs that its own gradient takes.
    frozen = 2.0 * model.hidden * model.vocab * (FrozenPart.OUTPUT in training.frozen)
    for run in model.runs:
        frozen += run.count * sum(_frozen_flops(model, shape, training) for shape in run.block)
    return model_flops_per_token(model, sequence_length, causal=causal) - frozen


def _frozen_flops(model: ModelSpec, shape: LayerShape, training: TrainingSpec) -> float:
    """Forward FLOPs per token of a layer's frozen weights, experts as routed to."""
    moe, found = model.moe, 0.0
    if FrozenPart.ATTENTION in training.frozen:
        found += mixer_linear_flops(model, shape)
    for part, matrix in _matrices(model, shape):
        if part is FrozenPart.ATTENTION:  # counted above, with what stands in no matrix
            continue
        routed = moe.top_k / moe.experts if moe is not None and part is FrozenPart.EXPERTS else 1.0
        found += 2.0 * matrix.elements * matrix.count * routed * (part in training.frozen)
    if moe is not None and FrozenPart.ROUTER in training.frozen:
        found += 2.0 * layer_parts(model, shape).get(FrozenPart.ROUTER, Parameters()).total
    return found
