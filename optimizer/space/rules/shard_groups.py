"""Rules on shard groups: which ranks share one sharded copy."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.frameworks.registry import abilities_of
from layoutopt.optimizer.space.divisors import divisors
from layoutopt.optimizer.space.repairs import first_of, lowered, setting
from layoutopt.optimizer.space.rule import (
    EVERY,
    FREEST,
    TORCH_PIPELINES,
    Rule,
    everywhere,
    mask,
    says,
    varying,
)
from layoutopt.optimizer.space.rules.experts import expert_dp
from layoutopt.optimizer.specs.vocabulary import Axis
from layoutopt.optimizer.topology.mesh import dense_axes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from layoutopt.optimizer.cost.batch import IntArray, LayoutBatch
    from layoutopt.optimizer.space.context import Context
    from layoutopt.optimizer.space.options import SpaceOptions
    from layoutopt.optimizer.space.rule import BoolArray, Factors
    from layoutopt.optimizer.specs.layout import Layout


def _divides(rows: LayoutBatch, ctx: Context) -> BoolArray:
    group, shard = rows.dp * rows.cp, rows.hsdp_shard
    # A group of one shards nothing.
    fits = (shard > 1) & (shard <= group) & (group % np.maximum(shard, 1) == 0) & (rows.zero > 0)
    return mask((shard == 0) | fits)


def _divides_detail(layout: Layout, ctx: Context) -> tuple[str, Factors]:
    group, shard = layout.dp * layout.cp, layout.hsdp_shard or 0
    text = f"shard groups of {shard} ranks in dp {layout.dp} x cp {layout.cp} = {group}"
    text += " with ZeRO-0, which shards nothing" if layout.zero == 0 else ""
    return text, {"hsdp_shard": shard, "group": group}


def _divides_valid(rule: Rule, layout: Layout, ctx: Context) -> Mapping[str, tuple[int, ...]]:
    return {"hsdp_shard": divisors(layout.dp * layout.cp)[1:] if layout.zero else ()}


def _grouped(rows: LayoutBatch, ctx: Context) -> BoolArray:
    stages = abilities_of(ctx.framework, ctx.release).hsdp_zero
    whole = (rows.hsdp_shard == 0) | (rows.hsdp_shard == rows.dp * rows.cp)
    return mask(whole | np.isin(rows.zero, stages))


def _grouped_detail(layout: Layout, ctx: Context) -> tuple[str, Factors]:
    stages = abilities_of(ctx.framework, ctx.release).hsdp_zero
    able = f"only ZeRO {', '.join(map(str, stages))}" if stages else "no ZeRO stage"
    text = f"{ctx.framework} shards {able} inside groups, not ZeRO-{layout.zero}"
    return text, {"zero": layout.zero, "hsdp_shard": layout.hsdp_shard or 0}


def _replicas(rows: LayoutBatch) -> IntArray:
    """Return R = dp*cp / shard, the copies of sharded state, 1 for the whole group."""
    group = rows.dp * rows.cp
    return np.where(rows.hsdp_shard > 0, group // np.maximum(rows.hsdp_shard, 1), 1)


def _replicas_fit(rows: LayoutBatch, ctx: Context) -> BoolArray:
    if not ctx.experts:
        return everywhere(rows)
    return mask(expert_dp(rows, ctx) % np.maximum(_replicas(rows), 1) == 0)


def _replicas_detail(layout: Layout, ctx: Context) -> tuple[str, Factors]:
    replicas = layout.dp * layout.cp // (layout.hsdp_shard or layout.dp * layout.cp)
    expert_dp = layout.tp * layout.cp * layout.dp // (layout.etp * layout.ep)
    text = f"expert dp {expert_dp} % {replicas} replicas = {expert_dp % max(replicas, 1)}"
    return text, {"expert_dp": expert_dp, "replicas": replicas}


def _nests(rows: LayoutBatch, ctx: Context) -> BoolArray:
    """Where an order parts cp from dp, a shard group is made of whole inner groups or lies in one."""
    result = everywhere(rows)
    for inner in {axis for order in rows.codebook.orders for axis in _parted(order)}:
        degree, shard = getattr(rows, inner), np.maximum(rows.hsdp_shard, 1)
        result &= (rows.hsdp_shard == 0) | (shard % degree == 0) | (degree % shard == 0)
    return result


def _parted(order: str) -> tuple[Axis, ...]:
    """Return the inner one of cp and dp if they are no neighbours in an order."""
    axes = dense_axes(order)
    inner, outer = sorted((Axis.CP, Axis.DP), key=axes.index)
    return (inner,) if axes.index(outer) > axes.index(inner) + 1 else ()


def _nests_detail(layout: Layout, ctx: Context) -> tuple[str, Factors]:
    shard, cp, dp = layout.hsdp_shard or 0, layout.cp, layout.dp
    text = f"shard groups of {shard} ranks across cp {cp} and dp {dp} in the order {layout.mesh_order}"
    return text, {"hsdp_shard": shard, "cp": cp, "dp": dp}


def _whole_cp(rows: LayoutBatch, ctx: Context) -> BoolArray:
    return mask(rows.hsdp_shard % rows.cp == 0)


def _whole_cp_detail(layout: Layout, ctx: Context) -> tuple[str, Factors]:
    shard = layout.hsdp_shard or 0
    text = f"shard groups of {shard} ranks % cp {layout.cp} = {shard % layout.cp}"
    return text, {"hsdp_shard": shard, "cp": layout.cp}


def _holds_experts(rows: LayoutBatch, ctx: Context) -> BoolArray:
    """Expert groups are cut out of one shard group: dp_shard * cp * tp."""
    whole = rows.dp * rows.cp
    # FSDP shards over the context ranks even where dp_shard is 1.
    shard = np.where(rows.hsdp_shard > 0, rows.hsdp_shard, np.where(rows.zero == 0, rows.cp, whole))
    return mask((shard * rows.tp) % (rows.ep * (rows.etp if ctx.experts else 1)) == 0)


def _holds_experts_detail(layout: Layout, ctx: Context) -> tuple[str, Factors]:
    shard = layout.hsdp_shard or (layout.cp if layout.zero == 0 else layout.dp * layout.cp)
    experts = layout.ep * layout.etp
    text = f"(dp_shard x cp {shard} x tp {layout.tp}) % (ep {layout.ep} x etp {layout.etp})"
    text += f" = {shard * layout.tp % experts}"
    return text, {"shard": shard, "tp": layout.tp, "ep": layout.ep, "etp": layout.etp}


def _sharded_whole(rule: Rule, layout: Layout, ctx: Context) -> Layout:
    """Shard over all data-parallel ranks, so that experts find as many as there are."""
    return replace(layout, zero=max(layout.zero, 2), hsdp_shard=None)


def asked_groups(options: SpaceOptions) -> tuple[Rule, ...]:
    """Return the rule that keeps shard groups within a question's limits, if it has some.

    Fixed sizes are declared as they are; a group that fills a node, NVLink domain or pod has another size in each row.
    """
    if "hsdp_shard" in options.fix or not options.limits("hsdp_shard"):
        return ()

    def holds(rows: LayoutBatch, ctx: Context) -> BoolArray:
        """Tell which rows (n,) have a size that is left; 0 is the whole group."""
        sizes, which = np.unique(rows.hsdp_shard, return_inverse=True)
        return np.array([options.allows("hsdp_shard", int(size)) for size in sizes], dtype=bool)[which]

    return (
        Rule(
            name="hsdp_shard_asked",
            formula="shard within --min, --max and --forbid",
            reason="the question leaves other shard groups out",
            source="--min, --max, --forbid",
            # Of a level's GPUs a group takes those of one tensor rank, as many as divide the data-parallel group.
            reads=frozenset({"hsdp_shard", "tp", "cp", "dp"}),
            holds=holds,
            detail=says("the question leaves other shard groups out"),
        ),
    )


_SHARD = frozenset({"zero", "hsdp_shard", "dp", "cp"})
_EP_GRID = frozenset({"tp", "cp", "dp", "ep", "etp"})

RULES: tuple[Rule, ...] = (
    Rule(
        name="hsdp_shard_divides",
        formula="(dp * cp) % shard = 0, shard > 1, zero > 0",
        reason="shard groups are equal parts of the data-parallel group",
        source="NVIDIA/Megatron-LM core/parallel_state.py; torchtitan parallel_dims.py",
        reads=_SHARD,
        holds=_divides,
        detail=_divides_detail,
        repair=setting(hsdp_shard=None),
        valid=_divides_valid,
    ),
    Rule(
        name="hsdp_supported",
        formula="shard groups only at the stages the framework can group",
        reason="the framework has to keep replicas of sharded state",
        source=(
            "NVIDIA/Megatron-LM --num-distributed-optimizer-instances (0.10, with FSDP 0.16); DeepSpeed "
            "MiCS (stage 3)"
        ),
        reads=_SHARD,
        holds=_grouped,
        detail=_grouped_detail,
        repair=setting(hsdp_shard=None),
    ),
    Rule(
        name="replicas_divide_expert_dp",
        formula="(expert dp) % (dp * cp / shard) = 0",
        reason="experts' state is replicated as often as the dense state",
        source="NVIDIA/Megatron-LM core/parallel_state.py",
        reads=_EP_GRID | {"hsdp_shard"},
        holds=_replicas_fit,
        detail=_replicas_detail,
        repair=setting(hsdp_shard=None),
        frameworks=EVERY - TORCH_PIPELINES,
    ),
    Rule(
        name="shard_nests_axes",
        formula="shard % inner = 0 or inner % shard = 0, inner being the inner one of parted cp and dp",
        reason="shard groups are neighbouring ranks, made of whole inner groups or parts of one",
        source="NVIDIA/Megatron-LM core/parallel_state.py (num_distributed_optimizer_instances)",
        reads=_SHARD,
        holds=_nests,
        detail=_nests_detail,
        repair=setting(hsdp_shard=None),
        valid=varying("hsdp_shard"),
        frameworks=FREEST,
    ),
    Rule(
        name="hsdp_shard_mod_cp",
        formula="shard % cp = 0",
        reason="FSDP shards over dp_shard * cp, replicas over whole context groups",
        source="pytorch/torchtitan parallel_dims.py",
        reads=frozenset({"hsdp_shard", "cp"}),
        holds=_whole_cp,
        detail=_whole_cp_detail,
        repair=setting(hsdp_shard=None),
        valid=varying("hsdp_shard"),
        frameworks=TORCH_PIPELINES,
    ),
    Rule(
        name="shard_holds_experts",
        formula="(dp_shard * cp * tp) % (ep * etp) = 0",
        reason="replicas never serve the same experts: an expert group lies inside a shard group",
        source="pytorch/torchtitan parallel_dims.py",
        reads=frozenset({"zero", "hsdp_shard", "dp", "cp", "tp", "ep", "etp"}),
        axis="ep",
        holds=_holds_experts,
        detail=_holds_experts_detail,
        repair=first_of(_sharded_whole, lowered("ep", "etp"), setting(ep=1, etp=1)),
        valid=varying("ep"),
        frameworks=TORCH_PIPELINES,
    ),
)
