"""Turn a list of layers into runs of equal blocks, the form in which models are split over stages."""

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
        covers = period * repeats if repeats > 1 else 1
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
    singles = {run.block[0]: run.name for run in reversed(model.runs) if len(run.block) == 1}
    if model.order or len(singles) == len(model.runs):
        return model
    shapes = model.shapes
    runs: dict[LayerShape, Run] = {}
    for shape, count in Counter(shapes).items():
        name = base = singles.get(shape, shape_name(shape))
        number = 1
        while name in {run.name for run in runs.values()}:
            number += 1
            name = f"{base}-{number}"
        runs[shape] = Run(name=name, block=(shape,), count=count)
    place = {shape: kind for kind, shape in enumerate(runs)}
    order = tuple(place[shape] for shape in shapes)
    return replace(model, runs=tuple(runs.values()), order=order if sorted(order) != list(order) else ())
