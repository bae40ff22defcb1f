"""Rules on a layout's stage list: its shape, its layers, how the framework splits and recomputes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.cost.schedules import SCHEDULES
from layoutopt.optimizer.frameworks.stage_rule import Recomputation, Split
from layoutopt.optimizer.space.divisors import divisors
from layoutopt.optimizer.space.effective import restaged
from layoutopt.optimizer.space.repairs import regroup
from layoutopt.optimizer.space.rule import FREEST, MEGATRONS, BrokenRule
from layoutopt.optimizer.space.stage_splits import allowed_sizes, boxes, own_split
from layoutopt.optimizer.space.stages import chunk_layers, model_order
from layoutopt.optimizer.specs.layout import Recompute
from layoutopt.optimizer.specs.stage_split import kinds_of
from layoutopt.optimizer.specs.vocabulary import Granularity

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from layoutopt.optimizer.cost.batch import IntArray
    from layoutopt.optimizer.space.context import Context
    from layoutopt.optimizer.specs.layout import Layout


StageRepair = Callable[["Layout", "Context"], "Layout | None"]


def stage_faults(layout: Layout, ctx: Context) -> list[tuple[BrokenRule, StageRepair]]:
    """Return what is wrong with the stage list of a layout, each with its repair; nothing if it has none."""
    if not layout.stages:
        return []
    shape = _shape(layout)
    if shape:  # the other checks read the list by position
        return [(shape, _split_anew)]
    checks: Sequence[tuple[Callable[[Layout, Context], BrokenRule | None], StageRepair]] = (
        (_layer_sum, _split_anew),
        (_ends, _split_anew),
        (_prediction_layers, _predict_last),
        (_empty_stages, _split_anew),
        (_split, _split_anew),
        (_recomputed_at_all, _deepest_everywhere),
        (_recomputed, _as_policy),
    )
    found = ((check(layout, ctx), repair) for check, repair in checks)
    return [(broken, repair) for broken, repair in found if broken]


def _split_anew(layout: Layout, ctx: Context) -> Layout | None:
    """Take the split that comes nearest; where the framework has none over these stages, fewer of them."""
    depth = max((stage.recomputed for stage in layout.stages), default=0)
    for pp, vp in _shapes(layout):
        changed = layout if (pp, vp) == (layout.pp, layout.vp) else regroup(layout, pp=pp, vp=vp)
        if changed is None:
            continue
        totals = nearest_totals(changed, [stage.layers for stage in layout.stages], ctx)
        if totals is None:
            continue
        counts = chunk_layers(totals, pp, vp, folded=vp == 2 and layout.schedule.v_shape).tolist()
        whole = all(stage.recomputed == stage.layers for stage in layout.stages)
        limit = ctx.model.layers if whole and depth else depth
        return replace(changed, stages=restaged(ctx.model, changed, counts, limit))
    return None


def _shapes(layout: Layout) -> Iterator[tuple[int, int]]:
    """Yield pp and vp as they are, without chunks, then with fewer ranks."""
    yield layout.pp, layout.vp
    for pp in reversed(divisors(layout.pp)):
        if (pp, 1) != (layout.pp, layout.vp):
            yield pp, 1


def nearest_totals(layout: Layout, wanted: list[int], ctx: Context) -> IntArray | None:
    """Return layers per rank (pp,) of the launchable split that moves the fewest layers, None where there is none.

    ``wanted`` are layers of every virtual stage; of another length than the layout has, the split is as level as can be.
    """
    pp, vp, layers = layout.pp, layout.vp, ctx.model.layers
    # What can be launched is more than what is searched.
    rule = replace(ctx.launch_rule, split=ctx.launch_rule.launchable)
    same = len(wanted) == pp * vp
    aim = np.array(wanted).reshape(vp, pp).sum(axis=0) if same else np.full(pp, layers // pp)
    best, least = None, np.inf
    for low, high in boxes(rule, pp, vp, layers):
        totals = _within(aim, low, high, layers)
        # Fewest moved layers; of equally many the more level split, which a thousandth decides.
        moved = float(np.abs(totals - aim).sum() + np.ptp(totals) / 1e3)
        if totals.sum() == layers and moved < least:
            best, least = totals, moved
    return best


def _within(aim: IntArray, low: IntArray, high: IntArray, layers: int) -> IntArray:
    """Clip layers per rank to a range and mend their sum from the fullest, or the emptiest, on."""
    totals = np.clip(aim, low, high)
    while (rest := layers - int(totals.sum())) != 0:
        room = totals < high if rest > 0 else totals > low
        if not room.any():
            break
        # Ranks without room must never be chosen.
        order = np.where(room, totals, np.iinfo(np.int64).max if rest > 0 else -1)
        totals[int(order.argmin() if rest > 0 else order.argmax())] += 1 if rest > 0 else -1
    return totals


def _predict_last(layout: Layout, ctx: Context) -> Layout:
    """Put all prediction layers on the stage with the head."""
    last = int(model_order(layout.pp, layout.vp, layout.schedule)[-1])
    stages = [replace(s, mtp=ctx.model.mtp_layers * (i == last)) for i, s in enumerate(layout.stages)]
    return replace(layout, stages=tuple(stages))


def _deepest_everywhere(layout: Layout, ctx: Context) -> Layout:
    """Repeat on every stage as many layers as on the deepest, so that no more memory is needed."""
    depth = max(stage.recomputed for stage in layout.stages)
    return _with_recomputed(layout, [min(stage.layers, depth) for stage in layout.stages])


def _as_policy(layout: Layout, ctx: Context) -> Layout:
    """Repeat every layer where one policy holds for all, else one number of layers on every stage."""
    if ctx.launch_rule.recomputation is Recomputation.ALL_OR_NONE:
        return _with_recomputed(layout, [stage.layers for stage in layout.stages])
    return _deepest_everywhere(layout, ctx)


def _with_recomputed(layout: Layout, counts: list[int]) -> Layout:
    stages = [
        replace(stage, recomputed=count, recomputed_kinds={})
        for stage, count in zip(layout.stages, counts, strict=True)
    ]
    full = Recompute(granularity=Granularity.FULL) if any(counts) else Recompute()
    return replace(layout, stages=tuple(stages), recompute=full)


def _broken(rule: str, message: str, formula: str, reason: str, **factors: int) -> BrokenRule:
    axis = "recompute" if rule.startswith("recompute") else "stages"
    return BrokenRule(rule=rule, message=message, formula=formula, reason=reason, factors=factors, axis=axis)


def _shape(layout: Layout) -> BrokenRule | None:
    """The list has pp*vp entries, entry ``chunk*pp + rank``."""
    slots = layout.pp * layout.vp
    listed = [(stage.chunk, stage.rank) for stage in layout.stages]
    if listed == [(entry // layout.pp, entry % layout.pp) for entry in range(slots)]:
        return None
    text = f"{len(listed)} stages, expected pp {layout.pp} x vp {layout.vp} = {slots}"
    if len(listed) == slots:
        text = "stages out of order: entry i belongs to rank i % pp, chunk i // pp"
    return _broken(
        "stage_count",
        text,
        "len(stages) = pp * vp, chunk-major",
        "every chunk of every rank is one entry",
        stages=len(listed),
        pp=layout.pp,
        vp=layout.vp,
    )


def _layer_sum(layout: Layout, ctx: Context) -> BrokenRule | None:
    held, layers = sum(stage.layers for stage in layout.stages), ctx.model.layers
    if held == layers:
        return None
    text = f"stages hold {held} layers, the model has {layers}"
    return _broken(
        "stage_layers", text, "sum of layers = model layers", "no layer is dropped", held=held, layers=layers
    )


def _ends(layout: Layout, ctx: Context) -> BrokenRule | None:
    """Where stages are marked, the first holds the embedding and the last, as tokens pass them, the head."""
    order = model_order(layout.pp, layout.vp, layout.schedule)
    first, last = int(order[0]), int(order[-1])
    marked = [(stage.embedding, stage.head) for stage in layout.stages]
    wrong = any((e and i != first) or (h and i != last) for i, (e, h) in enumerate(marked))
    if not wrong:
        return None
    text = f"embedding belongs on stage {first} and head on stage {last}"
    return _broken(
        "stage_ends",
        text,
        "embedding first, head last",
        "tokens enter at the first stage",
        first=first,
        last=last,
    )


def _prediction_layers(layout: Layout, ctx: Context) -> BrokenRule | None:
    """Prediction layers stay together, in the last chunk of their rank, behind all decoder layers."""
    holding = [stage for stage in layout.stages if stage.mtp]
    if not holding:
        return None
    last = max((i for i, stage in enumerate(layout.stages) if stage.layers), default=0)
    behind = layout.stages.index(holding[0]) >= last and holding[0].chunk == layout.vp - 1
    named = ctx.launch_rule.launchable is Split.FREE  # only a list of stages can put them elsewhere than last
    last_entry = int(model_order(layout.pp, layout.vp, layout.schedule)[-1])
    behind &= named or layout.stages.index(holding[0]) == last_entry
    if len(holding) == 1 and holding[0].mtp == ctx.model.mtp_layers and behind:
        return None
    text = (
        f"prediction layers on {len(holding)} stages, {sum(s.mtp for s in holding)} of {ctx.model.mtp_layers}"
    )
    return _broken(
        "stage_mtp",
        text,
        "all prediction layers on one stage, in its rank's last chunk, behind all decoder layers",
        "they continue the last decoder layer",
        stages=len(holding),
        mtp=ctx.model.mtp_layers,
    )


def _empty_stages(layout: Layout, ctx: Context) -> BrokenRule | None:
    """Megatron's layout string may leave any stage empty, others only the two that hold the ends."""
    if ctx.launch_rule.empty_stages:
        return None
    order = model_order(layout.pp, layout.vp, layout.schedule)
    inner = sorted(int(i) for i in order[1:-1] if not layout.stages[i].layers)
    if not inner:
        return None
    text = f"stage {inner[0]} holds no layer; only the first and the last may be empty"
    return _broken(
        "stage_empty", text, "layers >= 1 on inner stages", "it would only pass tokens on", stage=inner[0]
    )


_WORDS = {
    Split.EQUAL: ("every stage the same", "this release splits evenly"),
    Split.EQUAL_MIDDLE_UNCHUNKED: (
        "equal middle ranks; with chunks every stage the same",
        "this release lets the first and the last rank differ, without chunks",
    ),
    Split.EQUAL_MIDDLE: (
        "equal chunks and equal middle ranks, or equal stages with the ends counted as a layer each",
        "this release lets the first and the last rank differ; lists of stages came with core 0.13",
    ),
    Split.LARGER_FIRST: ("as equal as can be, larger stages first", "the framework takes no list of stages"),
    Split.BY_COST: ("by the cost of layers and LM head", "the framework takes no list of stages"),
    Split.NEAR_EQUAL: ("stages within one layer", "the framework takes no list of stages"),
}
"""Formula and reason of the splits that are not free."""


def _split(layout: Layout, ctx: Context) -> BrokenRule | None:
    """What the framework's own split can produce, where it takes no list."""
    rule = ctx.launch_rule
    if rule.launchable is Split.FREE:
        return None
    sizes = np.array([stage.layers for stage in layout.stages]).reshape(1, layout.vp, layout.pp)
    pp, vp = np.array([layout.pp]), np.array([layout.vp])
    folded = np.array([SCHEDULES[layout.schedule].folded])
    if allowed_sizes(rule, rule.launchable, sizes, pp, vp, folded)[0]:
        return None
    formula, reason = _WORDS[rule.launchable]
    text = f"layers {sizes.ravel().tolist()}: {ctx.framework} splits them {formula}"
    own = own_split(rule, layout.pp, layout.vp, ctx.model.layers)
    text += f"; that is {'/'.join(map(str, own.tolist()))} per rank" if own is not None else ""
    return _broken("stage_split", text, formula, reason)


def _recomputed_at_all(layout: Layout, ctx: Context) -> BrokenRule | None:
    """Only the granularity ``full`` repeats whole layers, and a stage repeats no more than it holds."""
    for entry, stage in enumerate(layout.stages):
        if stage.recomputed > stage.layers:
            text = f"stage {entry} recomputes {stage.recomputed} of its {stage.layers} layers"
            return _broken(
                "recompute_count",
                text,
                "recomputed <= layers",
                "there is nothing more to recompute",
                stage=entry,
            )
    total = sum(stage.recomputed for stage in layout.stages)
    if not total or layout.recompute.granularity is Granularity.FULL:
        return None
    text = f"{total} recomputed layers with granularity {layout.recompute.granularity}"
    return _broken(
        "recompute_count",
        text,
        "recomputed > 0 => granularity full",
        "only full repeats whole layers",
        total=total,
    )


def _recomputed(layout: Layout, ctx: Context) -> BrokenRule | None:
    rule = ctx.launch_rule.recomputation
    layers = [stage.layers for stage in layout.stages]
    again = [stage.recomputed for stage in layout.stages]
    if layout.recompute.group and again != layers:
        text = f"{sum(again)} of {sum(layers)} layers are recomputed in groups of {layout.recompute.group}"
        why = "--recompute-method uniform recomputes every layer"
        return _broken("recompute_groups_whole", text, "all layers", why)
    group = max(layout.recompute.group, 1)
    cut = ctx.framework in FREEST or (ctx.framework in MEGATRONS and ctx.release >= (0, 17))
    if not cut and any(count % group for count in layers):
        text = f"stages of {layers} layers are no whole groups of {group}"
        why = "a group runs past the end of its stage; Megatron-LM cuts it there from core 0.17 on (transformer_block.py)"
        return _broken("recompute_groups_divide", text, "layers of every stage % K = 0", why)
    if rule is Recomputation.ALL_OR_NONE and any(again) and again != layers:
        text = f"{sum(again)} of {sum(layers)} layers are recomputed; {ctx.framework} recomputes all or none"
        return _broken(
            "recompute_all_or_none", text, "all layers or none", "one policy holds for every layer"
        )
    if rule is Recomputation.UNIFORM_COUNT and not (
        any(_uniform(layout, ctx)) and _repeats_first(layout, ctx)
    ):
        text = f"recomputed layers {again} of {layers} are no min(N, layers) for one N"
        return _broken(
            "recompute_uniform",
            text,
            "recomputed = min(N, layers) on every virtual stage",
            "--recompute-method block --recompute-num-layers N repeats the first N layers of every stage",
        )
    return None


def _uniform(layout: Layout, ctx: Context) -> Iterator[bool]:
    """Try every N; the layers that are recomputed are a stage's first ones."""
    stages = layout.stages
    for count in range(max(stage.layers for stage in stages) + 1):
        yield all(stage.recomputed == min(count, stage.layers) for stage in stages)


def _repeats_first(layout: Layout, ctx: Context) -> bool:
    """Whether stages that say which kinds they recompute name those of their first layers."""
    start = 0
    for entry in model_order(layout.pp, layout.vp, layout.schedule):
        stage = layout.stages[int(entry)]
        kinds = {kind: count for kind, count in stage.recomputed_kinds.items() if count}
        if kinds and kinds != kinds_of(ctx.model, start, stage.recomputed):
            return False
        start += stage.layers
    return True
