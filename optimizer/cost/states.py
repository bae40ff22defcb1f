"""Bytes of weights, gradients and optimizer state per parameter, and how ranks share the parameters.

Schemes: NVIDIA/Megatron-LM docs dist_optimizer.md and megatron_fsdp.md, pytorch/torchtitan docs/fsdp.md,
Rajbhandari et al. 2020 (ZeRO) section 3. Dense weights shard over dp*cp ranks, experts over expert data parallelism.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.cost.pipeline import schedule_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from layoutopt.optimizer.cost.batch import LayoutBatch
    from layoutopt.optimizer.cost.optimizers import MomentBytes
    from layoutopt.optimizer.cost.parameters import Parameters
    from layoutopt.optimizer.frameworks.preset import FrameworkPreset
    from layoutopt.optimizer.specs.model import ModelSpec

    FloatArray = NDArray[np.float64]
    BoolArray = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class RankParameters:
    """Parameters that one rank holds, arrays (n,): the dense ones and the expert ones."""

    dense: FloatArray
    expert: FloatArray

    def __add__(self, other: RankParameters) -> RankParameters:
        return RankParameters(self.dense + other.dense, self.expert + other.expert)

    def __sub__(self, other: RankParameters) -> RankParameters:
        return RankParameters(self.dense - other.dense, self.expert - other.expert)

    def scaled(self, factor: FloatArray | float) -> RankParameters:
        """Multiply both counts by a factor, (n,) or one for all."""
        return RankParameters(self.dense * factor, self.expert * factor)


def on_rank(
    model: ModelSpec, counts: Parameters, batch: LayoutBatch, preset: FrameworkPreset
) -> RankParameters:
    """Split counts over tp and over experts' ranks; key-value heads may repeat when tp exceeds their number."""
    tp = batch.tp.astype(np.float64)
    repeats = model.mla is None and preset.repeats_keys
    repeated = np.maximum(tp / max(model.common_kv_heads, 1), 1.0) if repeats else 1.0
    dense = (counts.sharded - counts.key_value) / tp + counts.key_value / tp * repeated + counts.replicated
    expert = (counts.expert - counts.expert_whole) / batch.etp + counts.expert_whole
    return RankParameters(dense, expert / batch.ep)


@dataclass(frozen=True, slots=True, kw_only=True)
class StateBytes:
    """Bytes per parameter, arrays (n,): whole on every rank, and divided by the shard size; by component.

    ``more_whole`` and ``more_sharded`` are what the optimizer keeps beyond that of parameters in no matrix of a block.
    """

    whole: dict[str, FloatArray]
    sharded: dict[str, FloatArray]
    dense_shard: FloatArray
    expert_shard: FloatArray
    more_whole: FloatArray
    more_sharded: FloatArray

    def of(self, held: RankParameters, other: RankParameters) -> dict[str, FloatArray]:
        """Bytes (n,) of weights, gradients and optimizer state of a rank's parameters, ``other`` of them in no matrix."""
        parameters, share = self._counts(held)
        found = {name: self.whole[name] * parameters + self.sharded[name] * share for name in self.whole}
        if self.more_whole.any() or self.more_sharded.any():
            parameters, share = self._counts(other)
            found["optimizer"] = found["optimizer"] + self.more_whole * parameters + self.more_sharded * share
        return found

    def frozen(self, held: RankParameters, weight_bytes: float, *, split: BoolArray) -> dict[str, FloatArray]:
        """Bytes (n,) of a rank's frozen weights, sharded where ``split`` (n,): no gradients and no optimizer state."""
        parameters, share = self._counts(held)
        return {"weights": weight_bytes * np.where(split, share, parameters)}

    def _counts(self, held: RankParameters) -> tuple[FloatArray, FloatArray]:
        """Parameters on a rank, and its share of sharded ones."""
        return held.dense + held.expert, held.dense / self.dense_shard + held.expert / self.expert_shard


def keeps_gathered(preset: FrameworkPreset, batch: LayoutBatch) -> BoolArray:
    """Tell where ZeRO-3 weights stay gathered over the whole step, (n,)."""
    return np.asarray((batch.zero == 3) & (batch.pp > 1) & preset.keep_gathered_with_pp)


def adds_whole_gradients(preset: FrameworkPreset, batch: LayoutBatch) -> BoolArray:
    """Tell where sharded weights' gradients are added up whole over micro-batches, in their reduction's format, (n,).

    FSDP2 does so where a trainer or a pipeline schedule holds back the reduction
    (torch/distributed/fsdp/_fully_shard/_fsdp_param.py, to_accumulated_grad_if_needed).
    """
    by_trainer = (
        preset.whole_gradients & ((batch.zero == 0) | (batch.zero == 3)) & ~keeps_gathered(preset, batch)
    )
    return np.asarray((by_trainer | in_torch_pipeline(preset, batch)) & (batch.micro_batches > 1))


def in_torch_pipeline(preset: FrameworkPreset, batch: LayoutBatch) -> BoolArray:
    """Tell where (n,) torch's schedules run: gradients are reduced after the last micro-batch, in buffers of their own.

    pytorch/pytorch torch/distributed/pipelining/stage.py: backward_maybe_with_nosync, args_recv_info, grad_recv_info.
    """
    return np.asarray((batch.pp > 1) & preset.torch_pipeline)


def owned_parameters(batch: LayoutBatch, held: RankParameters, copies: int = 1) -> FloatArray:
    """Parameters (n,) whose optimizer state a rank has, of those that it holds; ``copies`` as in ``shard_sizes``."""
    dense, expert = shard_sizes(batch, copies)
    whole = batch.zero == 0
    return held.dense / np.where(whole, 1.0, dense) + held.expert / np.where(whole, 1.0, expert)


def shard_sizes(batch: LayoutBatch, copies: int = 1) -> tuple[FloatArray, FloatArray]:
    """Ranks that share one copy of sharded state, (n,) each: dense and expert.

    Where ``copies`` ranks of a pipeline hold the same stages, they share it too.
    """
    whole = batch.dp * batch.cp
    sharers = np.where((whole > 1) & (batch.hsdp_shard == 0), copies * whole, whole)
    dense = np.where(batch.hsdp_shard > 0, batch.hsdp_shard, sharers).astype(np.float64)
    # What expert and expert-tensor parallelism leave of the ranks (NVIDIA/Megatron-LM parallel_state.py).
    expert = np.maximum(dense * batch.tp / (batch.ep * batch.etp), 1.0)
    return dense, expert


def state_bytes(
    preset: FrameworkPreset,
    batch: LayoutBatch,
    moments: MomentBytes,
    *,
    copies: int = 1,
    weight_bytes: float | None = None,
) -> StateBytes:
    """Bytes per parameter of every row's ZeRO stage; see ``shard_sizes`` for ``copies``. Rows share a schedule.

    Under torch's schedules gradients of weights that run apart are there in the weights' format, too, until the next
    backward pass adds them up (torch/distributed/pipelining/_backward.py, stage_backward_weight).

    ``moments`` are those of the run's optimizer (``moment_bytes``), ``weight_bytes`` those of whole weights, where they
    differ from the preset's: with copies in 8 or 4 bits.

    Frameworks without a separate master copy (``master_bytes`` 0) hold the weights themselves at
    ``fsdp_weight_bytes`` and gather 16-bit copies of them.
    """
    zero, gathered = batch.zero, keeps_gathered(preset, batch)
    whole = preset.weight_bytes if weight_bytes is None else weight_bytes
    stored = whole if preset.master_bytes else preset.fsdp_weight_bytes
    optimizer = 0.0 if preset.offload_optimizer else preset.master_bytes + moments.matrix
    more = 0.0 if preset.offload_optimizer else moments.other - moments.matrix
    # Without a master copy the sharded weights are the optimizer's, and go where it is, as their gradients do.
    stays = preset.master_bytes > 0 or not preset.offload_optimizer
    grads = preset.grad_bytes
    split_weights = (zero == 3) | ((zero == 2) & (preset.master_bytes == 0))
    late = adds_whole_gradients(preset, batch)
    apart = np.where(in_torch_pipeline(preset, batch) & schedule_of(batch).splits_backward, whole, 0.0)
    # Without shards wider weights are cast, and the backward pass multiplies with what the forward pass cast.
    unsharded = stored + whole if preset.master_bytes == 0 and stored > whole else stored
    whole_weights = np.where(zero < 2, unsharded, np.where((zero == 2) | gathered, whole, 0.0))
    dense, expert = shard_sizes(batch, copies)
    return StateBytes(
        whole={
            "weights": whole_weights,
            "gradients": np.where(
                late, preset.grad_comm_bytes + apart, np.where(zero < 2, grads + preset.bucket_bytes, 0.0)
            ),
            "optimizer": np.where(zero == 0, optimizer, 0.0),
        },
        sharded={
            "weights": np.where(split_weights & stays, preset.fsdp_weight_bytes, 0.0),
            "gradients": np.where((zero >= 2) & stays & ~late, grads, 0.0),
            "optimizer": np.where(zero >= 1, optimizer, 0.0),
        },
        dense_shard=dense,
        expert_shard=expert,
        more_whole=np.where(zero == 0, more, 0.0),
        more_sharded=np.where(zero >= 1, more, 0.0),
    )


def working_set_bytes(
    preset: FrameworkPreset,
    batch: LayoutBatch,
    unit: FloatArray,
    weight_bytes: float,
    *,
    trained: FloatArray | None = None,
) -> FloatArray:
    """Gathered weights and unsharded gradients (n,) that ZeRO-2 and ZeRO-3 need beside the shards.

    ``unit`` is the largest unit's parameters on a rank (n,), ``trained`` the most that one trains (None: all of it),
    ``weight_bytes`` of whole weights.
    ZeRO-3 holds the current
    and the prefetched unit's weights and two units of gradients; ZeRO-2 and gathered ZeRO-3 one unit of gradients
    (NVIDIA/Megatron-LM megatron_fsdp.md).
    """
    weights = np.where((batch.zero == 3) & ~keeps_gathered(preset, batch), 2 * weight_bytes, 0.0)
    grads = np.where(batch.zero == 3, 2.0, np.where(batch.zero == 2, 1.0, 0.0)) * preset.grad_comm_bytes
    grads = np.where(adds_whole_gradients(preset, batch), 0.0, grads)
    return weights * unit + grads * (unit if trained is None else trained)
