"""The fullest rank by component, and what divides each component.

Which ranks share weights, gradients and optimizer state: ``layoutopt.optimizer.cost.states``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING

from layoutopt.optimizer.cost.batch import batch_of_one
from layoutopt.optimizer.cost.estimate import estimate
from layoutopt.optimizer.cost.optimizers import moment_bytes
from layoutopt.optimizer.cost.parameters import block_parameters, mtp_parameters
from layoutopt.optimizer.cost.schedules import SCHEDULES
from layoutopt.optimizer.cost.stage_counts import rank_blocks
from layoutopt.optimizer.cost.states import on_rank, state_bytes
from layoutopt.optimizer.solve.explain.records import FullestRank, MemoryPart

if TYPE_CHECKING:
    from collections.abc import Iterator

    from layoutopt.optimizer.cost.cost_model import CostModel
    from layoutopt.optimizer.cost.estimate import MemoryEstimate
    from layoutopt.optimizer.cost.states import StateBytes
    from layoutopt.optimizer.specs.layout import Layout

STATES = {"weights": "weights", "gradients": "gradients", "optimizer": "optimizer state"}
TOKENS = {
    "activations": "activations in flight",
    "recompute_transient": "one block while it is recomputed",
    "transient": "working memory of one operation",
    "receive": "pipeline receive buffers",
    "outputs": "outputs that stages keep, and gradients sent",
    "delayed": "gradients that wait for weight gradients",
}
OTHERS = {
    "logits": "the head's inputs and scratch",
    "gathered": "gathered weights and gradients of ZeRO",
    "scratch_gradients": "scratch weight gradients",
    "left": "activations moving to the host, and what it has no room for",
}


def fullest_rank(cost: CostModel, layout: Layout, memory: MemoryEstimate) -> FullestRank:
    """Split the fullest rank's memory into components; experts and dense parameters apart, for they divide differently."""
    fullest = max(memory.stages, key=lambda stage: stage.total_bytes)
    parts = [*_Sharing(cost, layout, fullest.rank).parts(fullest.components_bytes)]
    return FullestRank(
        rank=fullest.rank,
        needed_bytes=fullest.total_bytes,
        usable_bytes=memory.capacity_bytes,
        parts=tuple(
            sorted((part for part in parts if part.size_bytes > 0), key=lambda part: -part.size_bytes)
        ),
    )


@dataclass(frozen=True)
class _Sharing:
    """Words and numbers of one rank's shares."""

    cost: CostModel
    layout: Layout
    rank: int

    def parts(self, components: dict[str, float]) -> Iterator[MemoryPart]:
        """Yield every component with its divisor."""
        states = self._states()
        experts = self._experts()
        for name, size in components.items():
            if name == "logits":
                yield from self._logits(size)
                continue
            if name not in STATES:
                yield MemoryPart(
                    name=TOKENS.get(name, OTHERS.get(name, name)),
                    size_bytes=size,
                    divided_by=self._other(name),
                )
                continue
            whole, sharded = float(states.whole[name][0]), float(states.sharded[name][0])
            # Experts have their own shard group: their part is priced apart, the rest is dense.
            expert = experts * (whole + sharded / float(states.expert_shard[0]))
            label, moe = STATES[name], self.cost.model.is_moe
            by = _per_parameter(whole, self._dense(), sharded, f"{self._dense()} x {self._shard()}")
            yield MemoryPart(
                name=f"{label}, dense" if moe else label, size_bytes=size - expert, divided_by=by
            )
            if moe:
                own = self._product("ep", "etp", "pp")
                by = _per_parameter(whole, f"{own} only", sharded, f"{own} x {self._expert_shard(states)}")
                yield MemoryPart(name=f"{label}, experts", size_bytes=expert, divided_by=by)

    def _logits(self, size: float) -> Iterator[MemoryPart]:
        """Tell the 16-bit logits and the 32-bit copy of an unfused loss, twice as large, from the rest of the head."""
        fused = self.cost.preset.fused_loss
        other = replace(self.cost, preset=replace(self.cost.preset, fused_loss=not fused))
        ranks = estimate(other, self.layout).memory.stages
        # No price splits the head: with the loss fused the other way, what differs is the 32-bit copy.
        copy = abs(size - ranks[self.rank].components_bytes["logits"])
        by = self._product("tp", "cp")
        yield MemoryPart(name="logits, 16-bit", size_bytes=copy / 2, divided_by=by)
        yield MemoryPart(name="logits, 32-bit copy", size_bytes=0.0 if fused else copy, divided_by=by)
        rest = size - copy / 2 - (0.0 if fused else copy)
        yield MemoryPart(name=OTHERS["logits"], size_bytes=rest, divided_by=by)

    def _states(self) -> StateBytes:
        copies = SCHEDULES[self.layout.schedule].parameter_copies
        batch = batch_of_one(self.layout)
        weights = self.cost.weight_bytes(batch)
        preset = self.cost.saving(batch).preset
        moments = moment_bytes(preset, self.cost.model)
        return state_bytes(preset, batch, moments, copies=copies, weight_bytes=weights)

    def _experts(self) -> float:
        """Expert parameters on the rank."""
        model, batch = self.cost.model, batch_of_one(self.layout)
        blocks, _ = rank_blocks(self.layout, model)
        folded = SCHEDULES[self.layout.schedule].folded
        # Folded pipelines state half of the ranks: the other half holds the mirrored stages.
        own = self.rank if self.rank < len(blocks) else self.layout.pp - 1 - self.rank
        held = [
            float(on_rank(model, block_parameters(model, run), batch, self.cost.preset).expert[0])
            for run in model.runs
        ]
        count = sum(int(n) * each for n, each in zip(blocks[own], held, strict=True))
        if model.mtp_layers and own == (0 if folded else self.layout.pp - 1):
            count += model.mtp_layers * float(
                on_rank(model, mtp_parameters(model), batch, self.cost.preset).expert[0]
            )
        return count

    def _product(self, *axes: str) -> str:
        """Write ``ep 8 x etp 1 x pp 2 = 16``."""
        values = [getattr(self.layout, axis) for axis in axes]
        words = " x ".join(f"{axis} {value}" for axis, value in zip(axes, values, strict=True))
        return f"{words} = {prod(values)}"

    def _dense(self) -> str:
        return self._product("tp", "pp")

    def _shard(self) -> str:
        if self.layout.hsdp_shard:
            return f"shard group {self.layout.hsdp_shard}"
        return f"dp*cp {self.layout.dp * self.layout.cp}"

    def _expert_shard(self, states: StateBytes) -> str:
        return f"expert-dp {float(states.expert_shard[0]):g}"

    def _other(self, name: str) -> str:
        layout = self.layout
        if name == "logits":
            return self._product("tp", "cp")
        if name in TOKENS:
            split = self._product("tp", "cp")
            return (
                split
                if layout.sp or layout.tp == 1
                else f"{split}; norms and residuals cp {layout.cp} only (no sp)"
            )
        return self._product("tp") if not self.cost.model.is_moe else f"{self._product('tp')}; experts ep*etp"


def _per_parameter(whole: float, own: str, sharded: float, shared: str) -> str:
    """Say how many bytes each parameter takes and what divides them: whole on every rank, and shared by ranks."""
    parts = [f"{size:g} B / ({words})" for size, words in ((whole, own), (sharded, shared)) if size]
    return "; ".join(parts)
