"""Rules on activation recomputation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.frameworks.registry import Framework, abilities_of
from layoutopt.optimizer.space.repairs import known_modules, without_modules
from layoutopt.optimizer.space.rule import EVERY, FREEST, MEGATRONS, TORCH_PIPELINES, Rule, mask
from layoutopt.optimizer.specs.model import Mlp
from layoutopt.optimizer.specs.vocabulary import Fp8Recipe, Granularity, Precision

if TYPE_CHECKING:
    from collections.abc import Callable

    from layoutopt.optimizer.cost.batch import LayoutBatch
    from layoutopt.optimizer.space.context import Context
    from layoutopt.optimizer.space.rule import BoolArray, Factors, Holds
    from layoutopt.optimizer.specs.layout import Layout, Recompute

GROUPING = FREEST | MEGATRONS | {Framework.MEGATRON_DEEPSPEED}
"""Trainers that recompute groups of layers from one saved input (Megatron's uniform method)."""


def per_entry(fits: Callable[[Recompute, Context], bool]) -> Holds:
    """Build a predicate that judges the batch's recompute entries, whatever the degrees."""

    def holds(rows: LayoutBatch, ctx: Context) -> BoolArray:
        """Tell which rows (n,) have an entry that fits."""
        return mask(np.array([fits(r, ctx) for r in rows.codebook.recomputes], dtype=bool)[rows.recompute])

    return holds


def _granularity(recompute: Recompute, ctx: Context) -> bool:
    abilities = abilities_of(ctx.framework, ctx.release)
    # A policy per operator has no module list: launchable where the framework has one, priced as nothing
    # saved.
    policy = recompute.granularity is Granularity.SELECTIVE and not recompute.modules
    return policy or recompute.granularity in abilities.granularities


def _granularity_detail(layout: Layout, ctx: Context) -> tuple[str, Factors]:
    known = ", ".join(abilities_of(ctx.framework, ctx.release).granularities)
    granularity = layout.recompute.granularity
    return f"{ctx.framework} recomputes {known}, not a list of modules", {"granularity": granularity.value}


def _groups(recompute: Recompute, ctx: Context) -> bool:
    return not recompute.group or ctx.framework in GROUPING


def _groups_detail(layout: Layout, ctx: Context) -> tuple[str, Factors]:
    group = layout.recompute.group
    return f"{ctx.framework} recomputes every layer from its own input, not groups of {group}", {
        "group": group
    }


def _whole_groups(recompute: Recompute, ctx: Context) -> bool:
    return ctx.model.layers % max(recompute.group, 1) == 0


def _whole_groups_detail(layout: Layout, ctx: Context) -> tuple[str, Factors]:
    group, layers = layout.recompute.group, ctx.model.layers
    return f"{layers} layers are no whole groups of {group}", {"group": group, "layers": layers}


def _modules(recompute: Recompute, ctx: Context) -> bool:
    return set(recompute.modules) <= set(abilities_of(ctx.framework, ctx.release).modules)


def _modules_detail(layout: Layout, ctx: Context) -> tuple[str, Factors]:
    known = abilities_of(ctx.framework, ctx.release).modules
    unknown = ", ".join(name for name in layout.recompute.modules if name not in known)
    return f"this release can't recompute {unknown}; valid: {', '.join(known) or 'none'}", {
        "modules": unknown
    }


def _missing_parts(recompute: Recompute, ctx: Context) -> list[str]:
    """Return the modules that the model doesn't have."""
    moe = ctx.model.moe
    absent = {
        "moe_act": moe is None or ctx.options.grouped_gemm is False,
        "moe": moe is None,
        "mla_up_proj": ctx.model.mla is None,
        "shared_experts": moe is None or not moe.shared_ffn,
        # Shared experts go by a name of their own.
        "mlp": not any(shape.mlp is Mlp.DENSE for shape in ctx.shapes),
        "core_attn": not ctx.has_attention,
    }
    return [name for name in recompute.modules if absent.get(name, False)]


def _parts(recompute: Recompute, ctx: Context) -> bool:
    # An entry without such a layer does nothing, but these two are refused.
    return not set(_missing_parts(recompute, ctx)) & {"moe_act", "mla_up_proj"}


def _parts_detail(layout: Layout, ctx: Context) -> tuple[str, Factors]:
    missing = ", ".join(_missing_parts(layout.recompute, ctx))
    grouped = " (moe_act needs grouped GEMM)" if ctx.options.grouped_gemm is False else ""
    return f"the model has no {missing}{grouped}", {"modules": missing}


def _delayed(rows: LayoutBatch, ctx: Context) -> BoolArray:
    """Delayed scaling, Megatron's default and what is launched where no recipe is stated, can't replay a cast.

    Its scale has moved on by then.
    """
    stated = ctx.training.fp8_recipe
    delayed = stated is Fp8Recipe.DELAYED or (stated is None and ctx.framework in MEGATRONS)
    return _eight_bit(rows, ctx) if delayed else np.ones(len(rows), dtype=bool)


def _eight_bit(rows: LayoutBatch, ctx: Context) -> BoolArray:
    """Mask the rows that don't both multiply in fp8 and recompute what feeds it."""
    discards = per_entry(lambda recompute, _: bool({"moe_act", "layernorm"} & set(recompute.modules)))(
        rows, ctx
    )
    eight_bit = np.array([p is Precision.FP8 for p in rows.codebook.precisions], dtype=bool)[rows.precision]
    return mask(~(discards & eight_bit))


def _delayed_detail(layout: Layout, ctx: Context) -> tuple[str, Factors]:
    modules = ", ".join(layout.recompute.modules)
    return f"recomputing {modules} with delayed fp8 scaling", {"modules": modules}


def _eight_bit_detail(layout: Layout, ctx: Context) -> tuple[str, Factors]:
    modules = ", ".join(layout.recompute.modules)
    return f"recomputing {modules} in {layout.precision}", {"modules": modules}


def _named(recompute: Recompute, ctx: Context) -> bool:
    return recompute.granularity is not Granularity.SELECTIVE or bool(recompute.modules)


def _named_detail(layout: Layout, ctx: Context) -> tuple[str, Factors]:
    known = ", ".join(abilities_of(ctx.framework, ctx.release).modules)
    return f"selective recomputation of no module; valid: {known}", {"modules": ""}


RULES: tuple[Rule, ...] = (
    Rule(
        name="recompute_supported",
        formula="granularity in the framework's list",
        reason="the framework recomputes whole layers or nothing",
        source=(
            "nanotron config (recompute_layer); torchtitan activation_checkpoint; DeepSpeed "
            "activation_checkpointing"
        ),
        reads=frozenset({"recompute"}),
        holds=per_entry(_granularity),
        detail=_granularity_detail,
        repair=known_modules,
        frameworks=EVERY,
    ),
    Rule(
        name="recompute_groups_supported",
        formula="one saved input for several layers => Megatron's uniform method",
        reason="other trainers checkpoint layer by layer",
        source="NVIDIA/Megatron-LM --recompute-method uniform --recompute-num-layers k",
        reads=frozenset({"recompute"}),
        holds=per_entry(_groups),
        detail=_groups_detail,
        frameworks=EVERY,
    ),
    Rule(
        name="recompute_groups_divide",
        formula="layers % K = 0",
        reason="searched are stages of whole groups: up to core 0.16 a group runs past the end of its stage",
        source="NVIDIA/Megatron-LM transformer_block.py (_checkpointed_forward; cut at the end from core 0.17)",
        reads=frozenset({"recompute"}),
        holds=per_entry(_whole_groups),
        detail=_whole_groups_detail,
        frameworks=EVERY,
        search_only=True,
    ),
    Rule(
        name="recompute_modules_supported",
        formula="modules in the release's list",
        reason="the release has to know the module",
        source="NVIDIA/Megatron-LM transformer_config.py (recompute_modules, core 0.12; shared_experts 0.14)",
        reads=frozenset({"recompute"}),
        holds=per_entry(_modules),
        detail=_modules_detail,
        repair=known_modules,
        frameworks=GROUPING | TORCH_PIPELINES,
    ),
    Rule(
        name="recompute_modules_named",
        formula="selective recomputation names a module",
        reason="without one the launch file would say another one, or nothing",
        source="NVIDIA/Megatron-LM arguments.py (--recompute-modules, default core_attn); torchtitan SelectiveAC",
        reads=frozenset({"recompute"}),
        holds=per_entry(_named),
        detail=_named_detail,
        repair=known_modules,
        frameworks=EVERY - FREEST,
        launch_only=True,
    ),
    Rule(
        name="recompute_modules_present",
        formula="moe_act needs grouped GEMMs of experts; mla_up_proj needs latent attention",
        reason="there is nothing to recompute",
        source="NVIDIA/Megatron-LM transformer_config.py",
        reads=frozenset({"recompute"}),
        holds=per_entry(_parts),
        detail=_parts_detail,
        repair=without_modules("moe_act", "mla_up_proj"),
        frameworks=GROUPING,
    ),
    Rule(
        name="recompute_with_delayed_fp8",
        formula="delayed fp8 scaling => no moe_act, no layernorm",
        reason="discarded outputs would be recast with another scale",
        source="NVIDIA/Megatron-LM transformer_config.py",
        reads=frozenset({"recompute", "precision"}),
        axis="recompute",
        holds=_delayed,
        detail=_delayed_detail,
        repair=without_modules("moe_act", "layernorm"),
        frameworks=GROUPING,
    ),
    Rule(
        name="recompute_with_fp8",
        formula="fp8 => no moe_act, no layernorm",
        reason="before core 0.14 no recipe could replay a discarded output",
        source="NVIDIA/Megatron-LM transformer_config.py, core 0.13",
        reads=frozenset({"recompute", "precision"}),
        axis="recompute",
        holds=_eight_bit,
        detail=_eight_bit_detail,
        repair=without_modules("moe_act", "layernorm"),
        frameworks=MEGATRONS,
        until=(0, 14),
    ),
)
