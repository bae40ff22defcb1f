"""Every rule over degrees, row by row: its mask is the formula that it states, worked out in whole numbers."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import product
from math import lcm
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from checks.rule_cases import KEYED, REJECTED_QUESTION, rules_of

from layoutopt.optimizer.space.rows import row_of
from layoutopt.optimizer.specs.layout import Layout
from layoutopt.optimizer.specs.vocabulary import CpComm, CudaGraph, Dispatcher, Granularity, Schedule

if TYPE_CHECKING:
    from collections.abc import Callable

    from checks.rule_cases import Workbench

VALUES = {
    "tp": (1, 2, 3, 4, 6, 8), "sp": (0, 1), "cp": (1, 2, 3, 4, 8), "pp": (1, 2, 3, 4, 5, 6), "vp": (1, 2, 3, 4, 5),
    "dp": (1, 2, 3, 4, 6, 8, 16), "ep": (1, 2, 3, 4, 6, 8, 16), "etp": (1, 2, 3, 4), "micro_batch": (1, 2, 3, 4, 8),
    "micro_batches": (1, 2, 3, 4, 5, 6, 8, 9, 10, 12, 14, 16), "zero": (0, 1, 2, 3), "hsdp_shard": (0, 1, 2, 3, 4, 6, 8, 16),
}  # fmt: skip
MOST_ROWS = 400


def divides(divisor: int, number: int) -> bool:
    """Whether there is no remainder."""
    return number % divisor == 0


def expert_dp(r: Any) -> int:
    """Ranks that hold the same experts; a dense model's expert grid is its dense one."""
    return int(r.tp * r.cp * r.dp // ((r.etp if r.experts else r.tp) * r.ep))


def grouped(r: Any, heads: int, kv_heads: int, *, repeated: bool) -> bool:
    """Whether heads, and key-value heads, of a tensor rank scatter over context ranks."""
    own = max(kv_heads // r.tp, 1)
    return divides(r.cp, heads // r.tp) and (divides(r.cp, own) or (repeated and divides(own, r.cp)))


def sharded_by(r: Any) -> int:
    """Ranks of a shard group of FSDP: as stated, else all, or those of a sequence where nothing is sharded."""
    return int(r.hsdp_shard or (r.cp if r.zero == 0 else r.dp * r.cp))


def narrow_fits(r: Any, sequence: int, *widths: int, expert: int = 0) -> bool:
    """Rows a multiple of 8, columns of 16."""
    tokens = r.micro_batch * sequence // (r.cp * (r.tp if r.sp else 1))
    split = all(divides(r.tp * 16, width) for width in widths)
    return divides(8, tokens) and split and divides(r.etp * 16, expert)


FORMULAS: dict[str, Callable[[Any], bool]] = {
    "world_size_product": lambda r: r.tp * r.cp * r.pp * r.dp == 16,
    "tp_supported": lambda r: r.tp == 1,
    "cp_supported": lambda r: r.cp == 1,
    "pp_supported": lambda r: r.pp == 1,
    "vp_supported": lambda r: r.vp == 1,
    "ep_supported": lambda r: r.ep == 1,
    "gbs_mod_mbs_dp": lambda r: r.dp * r.micro_batch * r.micro_batches == 32,
    "heads_mod_tp": lambda r: divides(r.tp, 8),
    "kv_heads_mod_tp-megatron-newest": lambda r: divides(r.tp, 3) or divides(3, r.tp),
    "kv_heads_mod_tp-megatron-core 0.15": lambda r: divides(r.tp, 4),
    "kv_heads_mod_tp-torchtitan-newest": lambda r: divides(r.tp, 4),
    "kv_heads_mod_tp-any-newest": lambda r: divides(r.tp, 4) or divides(4, r.tp),
    "mamba_heads_mod_tp": lambda r: divides(r.tp, 12) and divides(r.tp, 4),
    "linear_heads_mod_tp": lambda r: divides(r.tp, 4),
    "linear_heads_mod_cp": lambda r: divides(r.tp * r.cp, 4),
    "ffn_mod_tp": lambda r: divides(r.tp, 1028),
    "seq_mod_cp_tp-megatron-newest": (
        lambda r: divides(r.cp * lcm(2 if r.cp > 1 else 1, r.tp if r.sp else 1), 1024)
    ),
    "seq_mod_cp_tp-torchtitan-newest": (
        lambda r: divides((r.tp if r.sp else 1) * (2 * r.cp if r.cp > 1 else 1), r.micro_batch * 1000)
    ),
    "seq_mod_cp_tp-torchtitan-era A": lambda r: divides(r.tp * 2 * r.cp, 1000),
    "ulysses_heads-megatron-newest": lambda r: grouped(r, 8, 4, repeated=False),
    "ulysses_heads-megatron-bridge-newest": lambda r: grouped(r, 8, 4, repeated=False),
    "ulysses_heads-any-newest": lambda r: grouped(r, 8, 4, repeated=True),
    "ulysses_heads-deepspeed-newest": lambda r: grouped(r, 8, 4, repeated=True),
    "window_needs_gathered_cp": lambda r: r.cp == 1,
    "sparse_needs_gathered_cp": lambda r: r.cp == 1,
    "sparse_without_cp": lambda r: r.cp == 1,
    "linear_without_cp": lambda r: r.cp == 1,
    "moe_needs_sp": lambda r: r.tp == 1 or r.sp == 1,
    "sp_or_ulysses": lambda r: r.sp == 0 or r.cp == 1,
    "ulysses_alone": lambda r: r.cp == 1 or r.tp == r.pp == 1,
    "sp_supported": lambda r: r.sp == 0,
    "sp_with_tp": lambda r: r.tp == 1 or r.sp == 1,
    "cp_needs_qwen": lambda r: r.cp == 1,
    "mtp_with_cp": lambda r: r.cp == 1,
    "stages_hold_blocks": lambda r: r.pp == 1 or r.pp * r.vp <= 8 + 2,
    "layers_mod_pp": lambda r: divides(r.pp, 8),
    "layers_mod_pp_vp": lambda r: not divides(r.pp, 8) or divides(r.vp, 8 // r.pp),
    "pipeline_needs_modules": lambda r: r.pp == 1,
    "tied_with_pp": lambda r: r.pp == 1,
    "mtp_with_pp": lambda r: r.pp == 1,
    "vp_needs_pp": lambda r: r.vp == 1 or r.pp >= 2,
    "vp_needs_three_ranks": lambda r: r.vp == 1 or r.pp >= 3,
    "microbatches_ge_pp-megatron-newest": lambda r: r.vp == 1 or r.pp == 1 or r.micro_batches >= r.pp,
    "microbatches_ge_pp-torchtitan-newest": lambda r: r.pp == 1 or r.micro_batches >= r.pp,
    "microbatches_ge_pp-nanotron-newest": lambda r: r.micro_batches >= r.pp - 1,
    "interleaved_groups-megatron-newest": lambda r: r.vp == 1 or r.pp == 1 or divides(r.pp, r.micro_batches),
    "interleaved_groups-megatron-core 0.9": lambda r: r.vp == 1 or divides(r.pp, r.micro_batches),
    "interleaved_groups-megatron-newest#2": lambda r: (
        r.vp == 1 or r.pp == 1 or (r.pp <= 6 <= r.micro_batches and not 0 < r.micro_batches % 6 < r.pp)
    ),
    "interleaved_rounds": lambda r: divides(max(r.micro_batches // r.pp, 1), r.micro_batches),
    "full_pipeline": lambda r: r.pp == 1 or r.micro_batches >= r.pp,
    "schedule_supported": lambda r: r.pp == 1 or r.layout.schedule is Schedule.ONE_F_ONE_B,
    "zero_bubble_without_sp": lambda r: r.pp == 1 or r.sp == 0,
    "schedule_chunks": lambda r: (
        r.pp == 1 or (r.vp == 1 if r.layout.schedule is Schedule.ONE_F_ONE_B else r.vp >= 2)
    ),
    "schedule_micro_batches": lambda r: (
        r.pp == 1 or (r.micro_batches >= 2 * r.pp and divides(2, r.pp) and divides(2, r.micro_batches))
    ),
    "experts_mod_ep": lambda r: divides(r.ep, 8),
    "expert_world_product": lambda r: divides(r.etp * r.ep, r.tp * r.cp * r.dp),
    "dp_mod_ep": lambda r: divides(r.ep, r.dp),
    "ep_without_cp": lambda r: r.ep == 1 or r.cp == 1,
    "etp_supported-megatron-core 0.9": lambda r: r.etp == r.tp,
    "etp_supported-torchtitan-newest": lambda r: r.etp == (r.tp if r.ep == 1 else 1),
    "etp_supported-torchtitan-v0.2.2": lambda r: r.etp == r.tp or (r.ep > 1 and r.etp == 1),
    "etp_supported-deepspeed-newest": lambda r: r.etp == 1,
    "etp_supported-megatron-deepspeed-newest": lambda r: r.etp in (1, r.tp),
    "biased_experts_etp": lambda r: r.etp == 1,
    "expert_ffn_mod_etp": lambda r: divides(r.etp, 512),
    "ep_within_nvlink-megatron-core 0.16": lambda r: r.ep * r.etp <= 8,
    "ep_within_nvlink-megatron-newest": lambda r: r.ep * r.etp <= 8 or divides(8, r.ep * r.etp),
    "hybrid_domains_searched": lambda r: r.ep * r.etp <= 8,
    "dispatch_kernel_tokens": lambda r: r.ep > 1 and divides(r.cp * r.tp, r.micro_batch * 1024),
    "zero_supported": lambda r: r.zero in (0, 1),
    "zero_with_pp": lambda r: r.zero < 2 or r.pp == 1,
    "zero_with_pp-megatron-deepspeed-newest": lambda r: r.zero < 2,
    "ddp_alone-torchtitan-v0.2.2": lambda r: r.zero > 0 or r.dp == 1 or r.tp == r.cp == r.pp == 1,
    "ddp_alone-accelerate-newest": lambda r: (
        r.tp * r.cp == 1 or r.dp == 1 or (r.zero > 0 and r.hsdp_shard != r.cp)
    ),
    "ddp_without_cp": lambda r: r.zero > 0 or r.cp == 1,
    "savers_need_zero-megatron-newest": lambda r: r.zero >= 1 or r.dp * r.cp == 1,
    "savers_need_zero-torchtitan-newest": lambda r: r.zero >= 2 or r.dp * r.cp == 1,
    "zero3_experts_alone": lambda r: r.zero < 3 or r.ep == 1 or r.tp == r.cp == 1,
    "fsdp2_axes": lambda r: r.pp == 1 and r.ep == 1 and r.zero >= 2,
    "megatron_fsdp_v2_axes": lambda r: r.zero < 2 or r.pp == r.tp == r.cp == 1,
    "hsdp_shard_divides": lambda r: (
        r.hsdp_shard == 0 or (r.hsdp_shard > 1 and divides(r.hsdp_shard, r.dp * r.cp) and r.zero > 0)
    ),
    "hsdp_supported-deepspeed-0.19.6": lambda r: r.hsdp_shard in (0, r.dp * r.cp) or r.zero == 3,
    "hsdp_supported-deepspeed-newest": lambda r: r.hsdp_shard in (0, r.dp * r.cp),
    "replicas_divide_expert_dp": lambda r: (
        r.hsdp_shard == 0 or divides(max(r.dp * r.cp // r.hsdp_shard, 1), expert_dp(r))
    ),
    "hsdp_shard_mod_cp": lambda r: divides(r.cp, r.hsdp_shard),
    "shard_holds_experts": lambda r: divides(r.ep * r.etp, sharded_by(r) * r.tp),
    "expert_dp_equals_dp": lambda r: r.pp == 1 or expert_dp(r) == r.dp,
    "order_without_cp_or_ep": lambda r: r.pp == 1 or r.cp == r.ep == 1,
    "shard_nests_axes": lambda r: (
        r.hsdp_shard == 0 or divides(r.cp, r.hsdp_shard) or divides(r.hsdp_shard, r.cp)
    ),
    "fsdp_mesh_order": lambda r: (
        r.layout.mesh_order == Layout().mesh_order or r.zero < 2 or r.pp == 1
    ),
    "optimizer_sharding": lambda r: r.zero < 2,
    "muon_owner_needs_zero": lambda r: r.zero >= 1,
    "muon_without_owner": lambda r: r.zero == 0,
    "fp8_shapes-megatron-newest": lambda r: narrow_fits(r, 1024, 8 * 32, 1024 + 64),
    "fp8_shapes-megatron-newest#2": lambda r: narrow_fits(r, 96, 8 * 32, 1024),
    "fp8_shapes-megatron-newest#3": lambda r: narrow_fits(r, 1024, 8 * 32, 512, expert=96),
    "moe_batch_overlap-megatron-newest": lambda r: (
        r.layout.recompute.granularity is Granularity.NONE and r.ep > 1 and (r.pp == 1 or r.vp > 1)
    ),
    "mtp_batch_overlap": lambda r: r.pp > 1,
    "capacity_dispatcher": lambda r: r.layout.switches.dispatcher is not Dispatcher.DEEPEP or r.ep == 1,
    "fp8_gather_needs_zero": lambda r: r.zero >= 1,
    "one_cp_kind": lambda r: r.layout.switches.cp_kind is CpComm.ALL_GATHER or r.cp == 1,
    "tp_overlap_needs_sp": lambda r: r.tp == 1 or r.sp == 1,
    "optimizer_offload_precision_aware": lambda r: False,
    "distributed_activations_without_sp": lambda r: r.sp == 0,
    "activation_offload_alone": lambda r: r.pp == 1,
    "cuda_device_max_connections-megatron-newest": lambda r: r.zero < 2 or r.tp > 1 or r.cp > 1,
    "cuda_device_max_connections-megatron-newest#2": lambda r: r.zero >= 2 or r.tp == r.cp == 1,
    "vocab_mod_tp": lambda r: divides(r.tp, 1026),
    "full_graph_shapes": lambda r: r.layout.switches.cuda_graph is not CudaGraph.FULL
    or (r.layout.switches.dispatcher is Dispatcher.HYBRIDEP and r.ep > 1),
    "dispatcher_alone": lambda r: r.layout.switches.dispatcher is None or r.ep * r.etp > 1,
    "cuda_graphs_axes-torchtitan-newest": lambda r: r.pp == 1 and r.ep == 1,
    "cuda_graphs_axes-torchtitan-newest#2": lambda r: r.pp == 1,
}  # fmt: skip
"""By rule, or by case where rules of a name differ; a number says which of equal cases."""

ELSEWHERE = {"stage_split", "order_supported", "expert_grid_nests"}
"""Rules on splits and meshes, which have tests of their own."""


@pytest.mark.parametrize("key", KEYED)
def test_masks_are_the_formulas(key: str, bench: Workbench) -> None:
    """Every combination of what a rule reads is judged as by hand, from the layouts of its case on."""
    case = KEYED[key]
    ctx = bench.context(case, REJECTED_QUESTION.get(str(case), {}))
    rules = rules_of(case, ctx)
    axes = [axis for axis in VALUES if any(axis in rule.reads for rule in rules)]
    if not axes or case.rule in ELSEWHERE:
        return
    formula = FORMULAS.get(key) or FORMULAS.get(key.partition("#")[0]) or FORMULAS[case.rule]
    tuples = list(product(*(VALUES[axis] for axis in axes)))
    chosen = random.Random(key).sample(tuples, min(len(tuples), MOST_ROWS))
    columns: dict[str, Any] = {
        axis: np.array(column) for axis, column in zip(axes, zip(*chosen, strict=True), strict=True)
    }
    for layout in (Layout(**case.good), Layout(**case.bad)):
        one = row_of(layout).take(np.zeros(len(chosen), dtype=np.int64))
        rows = replace(one, **columns)
        found = np.logical_and.reduce([rule.holds(rows, ctx) for rule in rules])
        known = {name: getattr(rows, name).tolist() for name in VALUES}
        for place, verdict in enumerate(found.tolist()):
            own = {name: column[place] for name, column in known.items()}
            row = SimpleNamespace(layout=layout, experts=ctx.experts, **own)
            assert verdict == formula(row), own
