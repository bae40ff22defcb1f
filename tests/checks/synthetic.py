"""Artificial spaces of layouts with realistic proportions: the search without a cost model.

Benchmarks and tests of the search need spaces of any size whose answer doesn't move when the cost model is calibrated.
The numbers follow the textbook counts (Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer
Models", sections 4 and 5; Narayanan et al. 2021, section 3): they are plausible, not predictions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from checks.operations import with_operations
from layoutopt.optimizer.cost.batch import CODES, DEGREES, Codebook, LayoutBatch
from layoutopt.optimizer.frameworks.stage_rule import MEGATRON
from layoutopt.optimizer.solve.search.demands import NO_DEMANDS
from layoutopt.optimizer.specs.layout import Recompute
from layoutopt.optimizer.specs.vocabulary import DEFAULT_MESH_ORDER, Granularity, Precision, Schedule

if TYPE_CHECKING:
    from layoutopt.optimizer.cost.batch import IntArray
    from layoutopt.optimizer.cost.terms import FloatArray, StageTerms
    from layoutopt.optimizer.frameworks.stage_rule import StageRule

CODEBOOK = Codebook(
    recomputes=(
        Recompute(),
        Recompute(granularity=Granularity.SELECTIVE, modules=("mlp",)),
        Recompute(granularity=Granularity.FULL),
    ),
    orders=(DEFAULT_MESH_ORDER, "tp-cp-ep-pp-dp", "tp-pp-cp-ep-dp", "tp-dp-cp-ep-pp"),
    schedules=(Schedule.ONE_F_ONE_B, Schedule.INTERLEAVED),
    precisions=(Precision.BF16,),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SyntheticModel:
    """A model and a cluster in a few numbers; one entry per block kind in the tuples.

    ``shared`` and ``routed`` are parameters per block outside and inside the experts, ``active`` the parameters that a
    token meets, ``activation`` the activation bytes per token over the hidden size.
    """

    blocks: tuple[int, ...]
    shared: tuple[float, ...]
    routed: tuple[float, ...]
    active: tuple[float, ...]
    activation: tuple[float, ...]
    experts: int
    hidden: int
    vocab: int
    sequence: int
    global_batch: int
    gpus: int
    node: int
    memory_bytes: float
    flops_per_s: float
    nvlink_bytes_per_s: float
    network_bytes_per_s: float
    longest_cp: int = 16


def dense_405b(gpus: int = 16384, global_batch: int = 2048, memory_bytes: float = 76e9) -> SyntheticModel:
    """Return 126 equal blocks in the proportions of Llama 3 405B on H100s."""
    return SyntheticModel(
        blocks=(126,), shared=(3.19e9,), routed=(0.0,), active=(3.19e9,), activation=(32.0,), experts=1, hidden=16384,
        vocab=128256, sequence=8192, global_batch=global_batch, gpus=gpus, node=8, memory_bytes=memory_bytes,
        flops_per_s=600e12, nvlink_bytes_per_s=360e9, network_bytes_per_s=45e9,
    )  # fmt: skip


def moe_671b(gpus: int = 2048, global_batch: int = 15360, memory_bytes: float = 76e9) -> SyntheticModel:
    """Return 3 dense and 58 mixture-of-experts blocks in the proportions of DeepSeek-V3 on H800s."""
    return SyntheticModel(
        blocks=(3, 58), shared=(0.583e9, 0.233e9), routed=(0.0, 11.27e9), active=(0.583e9, 0.585e9),
        activation=(60.0, 64.0), experts=256, hidden=7168, vocab=129280, sequence=4096, global_batch=global_batch,
        gpus=gpus, node=8, memory_bytes=memory_bytes, flops_per_s=450e12, nvlink_bytes_per_s=160e9,
        network_bytes_per_s=45e9,
    )  # fmt: skip


def _divisors(number: int, most: int) -> list[int]:
    return [d for d in range(1, min(number, most) + 1) if number % d == 0]


def degree_table(model: SyntheticModel) -> LayoutBatch:
    """Enumerate the degrees of a model: divisors of the GPUs, whole micro-batches, m a multiple of pp."""
    blocks, rows = sum(model.blocks), []
    for tp in _divisors(model.gpus, model.node):
        for cp in _divisors(model.gpus // tp, model.longest_cp):
            for pp in _divisors(model.gpus // (tp * cp), min(blocks, 64)):
                dp = model.gpus // (tp * cp * pp)
                for size in (1, 2, 4, 8, 16):
                    count, left = divmod(model.global_batch, dp * size)
                    if left or count < pp or (pp > 1 and count % pp):
                        continue
                    for ep in _divisors(dp * cp * tp, model.experts):
                        if model.experts % ep == 0:
                            deepest = (blocks + 2) // pp if pp > 1 else 1
                            rows += [(tp, cp, pp, vp, dp, ep, 1, size, count) for vp in range(1, deepest + 1)]
    table = np.array(rows, dtype=np.int64).reshape(-1, len(DEGREES))
    zeros = {name: np.zeros(len(table), dtype=np.int64) for name in CODES}
    return LayoutBatch(codebook=CODEBOOK, **dict(zip(DEGREES, table.T, strict=True)), **zeros)


class SyntheticSource:
    """A space over a ``SyntheticModel``: ZeRO 0-3, three recompute modes and the mesh orders as modifiers."""

    def __init__(self, model: SyntheticModel, rule: StageRule = MEGATRON) -> None:
        self.model = model
        self.rule = rule
        self.demands = NO_DEMANDS
        self.degrees = degree_table(model)
        self.counts: IntArray = np.array(model.blocks)

    def expand(self, rows: LayoutBatch) -> tuple[LayoutBatch, IntArray]:
        """Return every modifier of every row."""
        book = rows.codebook
        sizes = (4, len(book.recomputes), len(book.orders))
        each = int(np.prod(sizes))
        owner = np.repeat(np.arange(len(rows)), each)
        zero, recompute, order = (np.tile(axis.ravel(), len(rows)) for axis in np.indices(sizes))
        columns = {name: getattr(rows, name)[owner] for name in DEGREES + CODES}
        columns.update(zero=zero, recompute=recompute, order=order)
        return LayoutBatch(codebook=book, **columns), owner

    def terms(self, batch: LayoutBatch) -> StageTerms:
        """Price tuples."""
        mode = batch.recompute
        shard = batch.zero[:, None] > np.array([2, 1, 0])  # parameters, gradients, optimizer
        group = (batch.dp * batch.cp)[:, None]
        state = (np.array([2.0, 4.0, 12.0]) / np.where(shard, group, 1)).sum(axis=1)
        hops: FloatArray = 1.0 + 0.15 * batch.order.astype(np.float64)
        gathers = np.where(batch.zero == 3, 2.0 * batch.micro_batches, 0.0) + np.where(
            batch.zero > 0, 2.0, 3.0
        )
        kept = np.where(mode == 1, 0.55, 1.0)
        return self._terms(batch, state, hops, gathers, kept, np.where(mode == 1, 0.2, 0.0), mode == 2)

    def relaxed(self, rows: LayoutBatch) -> StageTerms:
        """Price degree rows with the best of every modifier."""
        one = np.ones(len(rows))
        state = 18.0 / (rows.dp * rows.cp)
        return self._terms(rows, state, one, 2 * one, 0.55 * one, 0 * one, one > 0)

    def _terms(
        self,
        batch: LayoutBatch,
        state: FloatArray,
        hops: FloatArray,
        gathers: FloatArray,
        kept: FloatArray,
        selective: FloatArray,
        full: np.ndarray,
    ) -> StageTerms:
        model, share = self.model, batch.tp[:, None]
        tokens = (batch.micro_batch * model.sequence / batch.cp)[:, None]
        held = np.array(model.shared) / share + np.array(model.routed) / batch.ep[:, None]
        forward = 2 * np.array(model.active) * tokens / share / model.flops_per_s
        exchange = 4 * tokens * model.hidden * 2 * (share - 1) / share / model.nvlink_bytes_per_s
        routed = np.where(np.array(model.routed) > 0, 8.0 * 3, 0.0) * (batch.ep[:, None] > 1)
        exchange = (
            exchange + routed * tokens * model.hidden * hops[:, None] / share / model.network_bytes_per_s
        )
        ring = np.where(batch.cp[:, None] > 1, 0.05 * forward, 0.0)
        layer = (3 + selective[:, None]) * forward + exchange + ring
        activation = np.array(model.activation) * model.hidden * tokens / share
        head = model.hidden * model.vocab / batch.tp
        ranks = np.arange(int(batch.pp.max(initial=1)))
        depth = batch.pp[:, None] - ranks
        flight = np.where(
            batch.vp[:, None] > 1,
            (2 * (depth - 1) + (batch.vp[:, None] - 1) * batch.pp[:, None] + 1) / batch.vp[:, None],
            depth,
        )
        flight = np.minimum(flight, batch.micro_batches[:, None]) * (depth > 0)
        all_held = (held @ np.array(model.blocks)) / batch.pp + head
        kinds = len(model.blocks)
        flat = tokens[:, 0] * model.hidden / batch.tp
        return with_operations(
            pp=batch.pp,
            vp=batch.vp,
            folded=np.zeros(len(batch), dtype=bool),
            micro_batches=batch.micro_batches,
            layer_s=layer,
            recompute_s=forward + exchange / 2,
            first_s=flat * 4 / 2e12,
            last_s=6 * head * tokens[:, 0] / model.flops_per_s,
            bubble_weight=1.0 / batch.vp,
            fixed_s=gathers * all_held * 2 * hops / model.network_bytes_per_s / 6 + all_held * state / 3e12,
            layer_state_bytes=held * state[:, None],
            layer_activation_bytes=activation * kept[:, None],
            recomputed_activation_bytes=np.repeat((2 * flat)[:, None], kinds, axis=1),
            first_bytes=head * state,
            last_bytes=head * state + 6 * tokens[:, 0] * model.vocab / batch.tp,
            common_bytes=np.full(len(batch), 3e9),
            flight_bytes=2.0 * tokens[:, 0],
            recompute_transient_bytes=activation.max(axis=1),
            capacity_bytes=np.full(len(batch), model.memory_bytes),
            in_flight=flight.astype(np.float64),
            may_recompute=full,
        )
