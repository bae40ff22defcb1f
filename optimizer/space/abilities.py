"""What each framework can launch, as data: axes, ZeRO stages, recomputation, mesh orders, stage choices."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from layoutopt.optimizer.space.releases import ERA_B
from layoutopt.optimizer.space.stage_rule import (
    FREE,
    MEGATRON,
    TORCHTITAN,
    Recomputation,
    Split,
    StageRule,
)
from layoutopt.optimizer.specs.vocabulary import (
    DEFAULT_MESH_ORDER,
    OP_MODULE,
    Framework,
    Granularity,
    Precision,
    Saver,
)
from layoutopt.optimizer.topology.mesh import all_orders, dense_axes

if TYPE_CHECKING:
    from layoutopt.optimizer.space.releases import Release
    from layoutopt.optimizer.specs.model import ModelSpec

_NEAR_EQUAL_ALL = StageRule(split=Split.NEAR_EQUAL, recomputation=Recomputation.ALL_OR_NONE)
_NEAR_EQUAL_COUNT = StageRule(split=Split.NEAR_EQUAL, recomputation=Recomputation.UNIFORM_COUNT)

PP_BEFORE_DP = "tp-cp-ep-pp-dp"
_MEGATRON_ORDERS = (DEFAULT_MESH_ORDER, PP_BEFORE_DP)
ALL_ORDERS = (
    *_MEGATRON_ORDERS,
    *(order for order in all_orders() if dense_axes(order) not in map(dense_axes, _MEGATRON_ORDERS)),
)
"""All 24 orders of tp, cp, dp and pp, innermost first, Megatron's two in front.

Expert groups are cut out of a stage's ranks in the order of its other axes, so ``ep`` has no place of
its own; it is written in front of ``dp``.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Abilities:
    """One framework release.

    ``fixed_axes`` can't exceed 1. ``hsdp_zero`` lists the ZeRO stages that can shard inside groups.
    ``modules`` are the selective-recompute modules it knows, ``sp`` whether it shards norms and dropout along
    the sequence.
    """

    orders: tuple[str, ...] = (DEFAULT_MESH_ORDER,)
    fixed_axes: tuple[str, ...] = ()
    zero: tuple[int, ...] = (0, 1, 2, 3)
    hsdp_zero: tuple[int, ...] = ()
    granularities: tuple[Granularity, ...] = tuple(Granularity)
    modules: tuple[str, ...] = ()
    precisions: tuple[Precision, ...] = tuple(Precision)
    savers: tuple[Saver, ...] = ()
    sp: bool = True
    etp: bool = True
    stage_rule: StageRule = FREE


_MODULES_012 = ("core_attn", "moe_act", "layernorm", "mla_up_proj", "mlp", "moe")
_MODULES_014 = (*_MODULES_012, "shared_experts")
_SIXTEEN_BIT = (Precision.FP16, Precision.BF16)
_HOST_OPTIMIZER = (Saver.OFFLOAD_OPTIMIZER,)
_WHOLE_LAYERS = (Granularity.NONE, Granularity.FULL)

_MEGATRON = Abilities(
    orders=_MEGATRON_ORDERS,
    hsdp_zero=(1, 2, 3),
    modules=_MODULES_014,
    savers=tuple(Saver),
    stage_rule=MEGATRON,
)
_TORCHTITAN = Abilities(
    zero=(0, 2, 3),
    hsdp_zero=(2, 3),
    etp=False,
    savers=_HOST_OPTIMIZER,  # training.enable_cpu_offload
    modules=(OP_MODULE,),  # SelectiveAC saves by operator, not by module
    stage_rule=TORCHTITAN,
)
_DATA_PARALLEL = Abilities(
    fixed_axes=("tp", "cp", "pp", "vp", "ep", "etp"),
    zero=(0, 2, 3),
    hsdp_zero=(2, 3),
    granularities=_WHOLE_LAYERS,
    precisions=(*_SIXTEEN_BIT, Precision.FP8),
    sp=False,
    stage_rule=_NEAR_EQUAL_ALL,
)
_FREEST = Abilities(
    orders=ALL_ORDERS,
    hsdp_zero=(1, 2, 3),
    modules=(*_MODULES_014, OP_MODULE),
    savers=tuple(Saver),
    stage_rule=FREE,
)

# Sources: the frameworks' argument parsers and configuration classes, named rule by rule in
# layoutopt.optimizer.space.rules.
_NEWEST: dict[Framework, Abilities] = {
    Framework.MEGATRON: _MEGATRON,
    Framework.MEGATRON_BRIDGE: _MEGATRON,
    Framework.MEGATRON_DEEPSPEED: Abilities(
        fixed_axes=("vp",),
        modules=("core_attn",),
        precisions=_SIXTEEN_BIT,
        savers=_HOST_OPTIMIZER,  # --cpu-optimizer
        stage_rule=_NEAR_EQUAL_COUNT,
    ),
    Framework.TORCHTITAN: _TORCHTITAN,
    Framework.NEMO_AUTOMODEL: _TORCHTITAN,
    Framework.DEEPSPEED: Abilities(
        fixed_axes=("vp",),
        hsdp_zero=(3,),
        granularities=_WHOLE_LAYERS,
        precisions=_SIXTEEN_BIT,
        savers=_HOST_OPTIMIZER,  # zero_optimization.offload_optimizer
        sp=False,
        etp=False,
        stage_rule=_NEAR_EQUAL_ALL,
    ),
    Framework.NANOTRON: Abilities(
        fixed_axes=("vp", "ep", "etp"),
        zero=(0, 1),
        granularities=_WHOLE_LAYERS,
        precisions=_SIXTEEN_BIT,
        stage_rule=_NEAR_EQUAL_ALL,
    ),
    Framework.LLM_FOUNDRY: _DATA_PARALLEL,
    Framework.ACCELERATE: replace(_DATA_PARALLEL, fixed_axes=("pp", "vp", "ep", "etp")),
    Framework.META_INTERNAL: _FREEST,
    Framework.DEEPSEEK_INTERNAL: _FREEST,
    Framework.ANY: _FREEST,
}


def abilities_of(framework: Framework, release: Release) -> Abilities:
    """Return what a release can launch; an unknown release counts as the newest."""
    newest = _NEWEST[framework]
    if framework in (Framework.MEGATRON, Framework.MEGATRON_BRIDGE):
        return _megatron(newest, release)
    if framework is Framework.TORCHTITAN and release < ERA_B:
        # The TOML era also shards embeddings and norms along the sequence whenever tp > 1; same axes
        # otherwise.
        return replace(newest, etp=True)
    return newest


def savers_of(framework: Framework, release: Release, model: ModelSpec) -> tuple[Saver, ...]:
    """Return the memory savers of a release that work for a model.

    Megatron-LM's ``--offload-modules`` name attention, norms and experts: there is no module for a dense MLP.
    """
    savers = abilities_of(framework, release).savers
    if framework not in (Framework.MEGATRON, Framework.MEGATRON_BRIDGE) or model.is_moe:
        return savers
    return tuple(saver for saver in savers if saver is not Saver.OFFLOAD_ACTIVATIONS)


def _megatron(newest: Abilities, release: Release) -> Abilities:
    """Take away what older releases lack (flags searched in the tags core_v0.5 to core_v0.19)."""
    if release < (0, 16):  # --fine-grained-activation-offloading came with 0.16
        kept = tuple(saver for saver in newest.savers if saver is not Saver.OFFLOAD_ACTIVATIONS)
        newest = replace(newest, savers=kept)
    if release < (0, 14):
        newest = replace(newest, modules=_MODULES_012)
    if release < (0, 13):  # no layout string: every virtual stage gets the same number of layers
        newest = replace(newest, stage_rule=replace(newest.stage_rule, split=Split.NEAR_EQUAL))
    if release < (
        0,
        12,
    ):  # no Megatron-FSDP (then "custom FSDP"), selective recomputation of core attention alone
        newest = replace(newest, zero=(0, 1), hsdp_zero=(1,), modules=("core_attn",), savers=())
    elif release < (0, 16):
        newest = replace(newest, hsdp_zero=(1,))
    if release < (0, 10):
        newest = replace(newest, hsdp_zero=())
    if release < (0, 7):  # --use-tp-pp-dp-mapping came with 0.7
        newest = replace(newest, orders=(DEFAULT_MESH_ORDER,))
    return newest
