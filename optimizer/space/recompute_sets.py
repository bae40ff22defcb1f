"""The recomputation choices worth declaring for a model, and how they are written."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

from layoutopt.optimizer.specs.layout import Recompute
from layoutopt.optimizer.specs.model import Mlp
from layoutopt.optimizer.specs.vocabulary import OP_MODULE, Granularity

if TYPE_CHECKING:
    from layoutopt.optimizer.frameworks.abilities import Abilities
    from layoutopt.optimizer.space.context import Context

WHOLE_LAYERS = Recompute(granularity=Granularity.FULL)
"""Whole layers, any number of them; none at all is among these, so ``none`` needs no entry but where a rule refuses them."""


LARGEST_GROUP = 8
"""Layers to one saved input that are named at most: k = sqrt(L * saved / kept) of L layers in flight take the least
memory (Chen et al. 2016), 8 where a layer keeps 8 times its input and L is 512."""


def groups_of(layers: int) -> tuple[Recompute, ...]:
    """Return the groups of layers with one saved input that fill up a model."""
    sizes = (size for size in range(2, LARGEST_GROUP + 1) if layers % size == 0)
    return tuple(Recompute(granularity=Granularity.FULL, group=size) for size in sizes)


def recompute_choices(ctx: Context, abilities: Abilities) -> tuple[Recompute, ...]:
    """Return whole layers, then the selective sets that the framework can launch for this model.

    Saving by operator is declared where the framework has nothing finer: module lists save more per repeated FLOP.
    """
    sets = [names for names in _useful_sets(ctx) if set(names) <= set(abilities.modules)]
    if abilities.modules == (OP_MODULE,):
        sets = [(OP_MODULE,)]
    selective = [Recompute(granularity=Granularity.SELECTIVE, modules=names) for names in sets]
    return (WHOLE_LAYERS, *selective)


def recompute_text(recompute: Recompute) -> str:
    """Write a choice: ``none``, ``full``, ``uniform:4`` or its modules joined by ``+``."""
    if recompute.granularity is Granularity.SELECTIVE:
        return "+".join(recompute.modules)
    return f"uniform:{recompute.group}" if recompute.group else recompute.granularity.value


def _useful_sets(ctx: Context) -> list[tuple[str, ...]]:
    """Combine independent switches, each saving bytes that no other switch saves.

    - ``layernorm`` drops both norm outputs, 4 of about 34 bytes per token and hidden unit, for memory-bound
      work only.
    - ``mla_up_proj`` drops the expanded queries, keys and values, the largest part of an MLA layer's
      attention, for two low-rank GEMMs.
    - ``core_attn`` drops the materialised scores; flash attention never keeps them, so the set would save
      nothing.
    - The MLPs go in order of cost: ``moe_act`` repeats an activation function only; ``mlp`` also repeats the
      GEMMs of the dense MLPs; ``moe`` also those of the experts and their all-to-alls. ``moe`` contains
      ``moe_act`` and ``shared_experts``, and no one repeats the all-to-all to save what the cheaper ``mlp``
      of a dense layer holds.
    - ``shared_experts`` alone saves less than ``mlp`` per repeated FLOP of a mixed stack (3% of a DeepSeek-V3
      layer) and is left to explicit lists.
    """
    norms = ((), ("layernorm",))
    latents = ((), ("mla_up_proj",)) if ctx.model.mla else ((),)
    scores = ((), ("core_attn",)) if ctx.has_attention and not ctx.training.flash else ((),)
    # Sorted, as ``parse_recompute`` reads them: one set, one spelling.
    sets = [tuple(sorted(sum(parts, ()))) for parts in product(scores, norms, latents, _mlp_levels(ctx))]
    return [names for names in sets if names]


def _mlp_levels(ctx: Context) -> tuple[tuple[str, ...], ...]:
    """Return the ways to recompute the MLPs, cheapest first."""
    dense = ("mlp",) if ctx.dense_ffns else ()
    if not any(shape.mlp is Mlp.MOE for shape in ctx.shapes):
        return ((), ("mlp",)) if dense else ((),)
    with_dense = ((*dense, "moe_act"),) if dense else ()
    return ((), ("moe_act",), *with_dense, (*dense, "moe"))
