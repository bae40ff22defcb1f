"""The layers of a model file: which kind each one is, from the few keys that users write."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

from layoutopt.optimizer.specs.model import LayerShape, Mixer, Mlp

if TYPE_CHECKING:
    from collections.abc import Sequence

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
