"""What one release of a framework can launch: axes, ZeRO stages, recomputation, mesh orders, stage choices."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import permutations
from typing import TYPE_CHECKING

from layoutopt.optimizer.frameworks.stage_rule import FREE, StageRule
from layoutopt.optimizer.frameworks.switches import SWITCHES
from layoutopt.optimizer.specs.vocabulary import (
    DEFAULT_MESH_ORDER,
    OP_MODULE,
    Granularity,
    Optimizer,
    Precision,
    Saver,
    Schedule,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from layoutopt.optimizer.frameworks.switches import Value

PP_BEFORE_DP = "tp-cp-ep-pp-dp"
MEGATRON_ORDERS = (DEFAULT_MESH_ORDER, PP_BEFORE_DP)


def _other_orders() -> Iterator[str]:
    known = [order.replace("ep-", "") for order in MEGATRON_ORDERS]
    for axes in map("-".join, permutations(("tp", "cp", "dp", "pp"))):
        if axes not in known:
            yield axes.replace("dp", "ep-dp")


ALL_ORDERS = (*MEGATRON_ORDERS, *_other_orders())
"""All 24 orders of tp, cp, dp and pp, innermost first, Megatron's two in front.

Expert groups are cut out of a stage's ranks in the order of its other axes, so ``ep`` has no place of
its own; it is written in front of ``dp``.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Abilities:
    """What a release can launch.

    ``schedules`` are its pipeline schedules. ``fixed_axes`` can't exceed 1. ``hsdp_zero`` lists the ZeRO stages
    that can shard inside groups. ``modules`` are the selective-recompute modules it knows, ``sp`` whether it
    shards norms and dropout along the sequence. ``expert_savers`` are the memory savers that it has for models
    with experts alone, ``optimizers`` those that update the weights. ``switches`` are the values that it has of launch
    switches, by name.
    """

    schedules: tuple[Schedule, ...]
    stage_rule: StageRule
    orders: tuple[str, ...] = (DEFAULT_MESH_ORDER,)
    fixed_axes: tuple[str, ...] = ()
    zero: tuple[int, ...] = (0, 1, 2, 3)
    hsdp_zero: tuple[int, ...] = ()
    granularities: tuple[Granularity, ...] = tuple(Granularity)
    modules: tuple[str, ...] = ()
    precisions: tuple[Precision, ...] = tuple(Precision)
    savers: tuple[Saver, ...] = ()
    expert_savers: tuple[Saver, ...] = ()
    optimizers: tuple[Optimizer, ...] = (Optimizer.ADAMW,)
    switches: Mapping[str, tuple[Value, ...]] = field(default_factory=dict)
    sp: bool = True
    etp: bool = True


MODULES = ("core_attn", "moe_act", "layernorm", "mla_up_proj", "mlp", "moe", "shared_experts")
"""Modules that selective recomputation can name somewhere, those of Megatron-LM in the order in which they came."""

SIXTEEN_BIT = (Precision.FP16, Precision.BF16)
WHOLE_LAYERS = (Granularity.NONE, Granularity.FULL)
HOST_OPTIMIZER = (Saver.OFFLOAD_OPTIMIZER,)

FREEST = Abilities(
    schedules=tuple(Schedule),
    stage_rule=FREE,
    orders=ALL_ORDERS,
    hsdp_zero=(1, 2, 3),
    modules=(*MODULES, OP_MODULE),
    savers=tuple(Saver),
    optimizers=tuple(Optimizer),
    switches={
        switch.name: switch.values for switch in SWITCHES if switch.name not in ("loss_chunks", "compiled")
    },
)
"""Whatever some trainer can launch."""
