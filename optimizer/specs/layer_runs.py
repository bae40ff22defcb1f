"""The layers of a model file, and lists of layers as runs of equal blocks, in which models are split over stages."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

from layoutopt.optimizer.specs.model import LayerShape, Mixer, Mlp, Run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from layoutopt.optimizer.specs.model import ModelSpec


LONGEST_PERIOD = 64
"""No published stack repeats after more layers; it keeps the search for a period linear in the layers."""


def runs_of(shapes: Sequence[LayerShape]) -> tuple[Run, ...]:
    """Group layers into runs, each one block repeated.

    From each position the period that covers the most layers is taken, the shortest of equals, so that
    3 dense and 58 MoE layers are two runs and a 5:1 window pattern is one run of 6-layer blocks and a
    remainder.
    """
    runs: list[tuple[tuple[LayerShape, ...], int]] = []
    start = 0
    while start < len(shapes):
        period, repeats = _longest_repeat(shapes, start)
        runs.append((tuple(shapes[start : start + period]), repeats))
        start += period * repeats
    return _named(runs)


def _longest_repeat(shapes: Sequence[LayerShape], start: int) -> tuple[int, int]:
    best_period, best_repeats = 1, 1
    left = len(shapes) - start
    for period in range(1, min(LONGEST_PERIOD, left // 2) + 1):
        block = shapes[start : start + period]
        repeats = 1
        while shapes[start + repeats * period : start + (repeats + 1) * period] == block:
            repeats += 1
        # A block that does not repeat is no period: only its first layer is taken, and the search goes on behind it.
        covers = period * repeats if repeats > 1 else 1
        # Of equal cover the shorter period stays: a block of two equal periods would be a coarser unit to split.
        if covers > best_period * best_repeats:
            best_period, best_repeats = period, repeats
        if covers == left:
            break
    return best_period, best_repeats


def _named(runs: Sequence[tuple[tuple[LayerShape, ...], int]]) -> tuple[Run, ...]:
    seen: dict[str, int] = {}
    named = []
    for block, count in runs:
        base = shape_name(block[0]) if len(block) == 1 else "pattern"
        seen[base] = seen.get(base, 0) + 1
        name = base if seen[base] == 1 else f"{base}-{seen[base]}"
        named.append(Run(name=name, block=block, count=count))
    return tuple(named)


def shape_name(shape: LayerShape) -> str:
    """Return the short name of a layer kind: what it computes, and whether it sees but some keys."""
    if shape.mlp is Mlp.NONE:
        base = shape.mixer.value
    elif shape.mixer not in (Mixer.ATTENTION, Mixer.NONE):
        base = f"{shape.mixer.value}-{shape.mlp.value}"
    else:
        base = "mlp" if shape.mixer is Mixer.NONE and shape.mlp is Mlp.DENSE else shape.mlp.value
    base = f"encoder-{base}" if shape.bidirectional else base
    if shape.compression:
        return f"{base}-compressed-{shape.compression}"
    if shape.sparse:
        return f"{base}-sparse" if shape.indexes else f"{base}-reused"
    if shape.window is None:
        return base
    return f"{base}-chunk" if shape.chunked else f"{base}-window"


@lru_cache(maxsize=64)
def by_layer(model: ModelSpec) -> ModelSpec:
    """Return the model as stages are cut from it: one run for every kind of layer, and ``order`` where they alternate.

    Models whose runs are kinds already, one after another, are returned as they are.
    """
    # Reversed, so that of two runs of one kind the first one's name stays.
    singles = {run.block[0]: run.name for run in reversed(model.runs) if len(run.block) == 1}
    if model.order or len(singles) == len(model.runs):
        return model
    shapes = model.shapes
    runs: dict[LayerShape, Run] = {}
    for shape, count in Counter(shapes).items():
        # Kinds that differ in a window's length alone have the same short name; stages count layers by it.
        name = base = singles.get(shape, shape_name(shape))
        number = 1
        while name in {run.name for run in runs.values()}:
            number += 1
            name = f"{base}-{number}"
        runs[shape] = Run(name=name, block=(shape,), count=count)
    place = {shape: kind for kind, shape in enumerate(runs)}
    order = tuple(place[shape] for shape in shapes)
    # Kinds that follow each other in order say all that an order would.
    return replace(model, runs=tuple(runs.values()), order=order if sorted(order) != list(order) else ())


MAX_LAYERS = 10_000
"""Far above any published depth; a larger number is a typing error."""

LAYER_KINDS: dict[str, LayerShape] = {
    "dense": LayerShape(mlp=Mlp.DENSE),
    "moe": LayerShape(mlp=Mlp.MOE),
    "attention": LayerShape(mlp=Mlp.NONE),
    "mlp": LayerShape(mixer=Mixer.NONE, mlp=Mlp.DENSE),
    "experts": LayerShape(mixer=Mixer.NONE, mlp=Mlp.MOE),
    "mamba": LayerShape(mixer=Mixer.MAMBA, mlp=Mlp.NONE),
    "mamba-dense": LayerShape(mixer=Mixer.MAMBA, mlp=Mlp.DENSE),
    "mamba-moe": LayerShape(mixer=Mixer.MAMBA, mlp=Mlp.MOE),
    **{
        mixer.value + ("" if mlp is Mlp.NONE else f"-{mlp.value}"): LayerShape(mixer=mixer, mlp=mlp)
        for mixer in Mixer
        if mixer.is_linear
        for mlp in (Mlp.NONE, Mlp.DENSE, Mlp.MOE)
    },
}
"""Layer kinds by the name used in ``blocks``: a mixer and an MLP, or one of them alone."""


def mlp_kinds(layers: int, *, moe: bool, dense_layers: int, every: int) -> list[LayerShape]:
    """Return dense and MoE layers: ``dense_layers`` leading dense ones, then each ``every``-th is MoE."""
    if not moe:
        return [LAYER_KINDS["dense"]] * layers
    period = [LAYER_KINDS["dense"]] * (every - 1) + [LAYER_KINDS["moe"]]
    rest = [period[index % every] for index in range(layers - dense_layers)]
    return [LAYER_KINDS["dense"]] * dense_layers + rest


def with_windows(
    shapes: Sequence[LayerShape], window: int, pattern: Sequence[bool], *, chunked: bool = False
) -> list[LayerShape]:
    """Give layers a window, or chunks, where the repeated pattern is True."""
    return [
        replace(shape, window=window, chunked=chunked)
        if pattern[index % len(pattern)] and shape.mixer is Mixer.ATTENTION
        else shape
        for index, shape in enumerate(shapes)
    ]


def with_indexers(shapes: Sequence[LayerShape], every: int, offset: int) -> list[LayerShape]:
    """Let attention choose keys; an indexer is in the layers up to ``offset`` - 1 and then in each ``every``-th."""
    return [
        replace(shape, sparse=True, indexes=max(index - offset + 1, 0) % every == 0)
        if shape.mixer is Mixer.ATTENTION
        else shape
        for index, shape in enumerate(shapes)
    ]


@lru_cache(maxsize=64)
def indexer_pattern(shapes: tuple[LayerShape, ...]) -> tuple[int, int] | None:
    """Return the least ``every`` and ``offset`` that give the layers that have an indexer, None where none does."""
    places = [index for index, shape in enumerate(shapes) if shape.sparse]
    without = [index for index in places if not shapes[index].indexes]
    if not without:
        return 1, 0
    # the layer at the offset is the first without one, or lies behind the last before it that attends
    before = max((index for index in places if index < without[0]), default=-1)
    for every in range(2, len(shapes) + 2):
        for offset in range(before + 1, without[0] + 1):
            if all((max(i - offset + 1, 0) % every == 0) == shapes[i].indexes for i in places):
                return every, offset
    return None


def with_width(shapes: Sequence[LayerShape], ffn: int) -> list[LayerShape]:
    """Give dense layers that state no width of their own the model's."""
    return [
        replace(shape, ffn=ffn) if shape.mlp is Mlp.DENSE and not shape.ffn else shape for shape in shapes
    ]
