"""Which layers each virtual stage of a measured run holds."""

from __future__ import annotations

import re
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from layoutopt.optimizer.evidence.case import SkipRow
from layoutopt.optimizer.frameworks.record import TrainerFamily
from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.space.stage_splits import nanotron_counts
from layoutopt.optimizer.space.stages import kinds_of, model_order
from layoutopt.optimizer.specs.errors import InputError
from layoutopt.optimizer.specs.layout import VirtualStage
from layoutopt.optimizer.specs.layout_string import StageItems, parse_layout_string
from layoutopt.optimizer.specs.vocabulary import Granularity

if TYPE_CHECKING:
    from collections.abc import Sequence

    from layoutopt.optimizer.evidence.run import MeasuredRun
    from layoutopt.optimizer.specs.layout import Recompute
    from layoutopt.optimizer.specs.model import ModelSpec
    from layoutopt.optimizer.specs.vocabulary import Schedule

ENDS_AS_LAYERS = "embedding+loss as layers"
_LAYOUT_STRING = re.compile(r"E[EtmL|,*0-9()]*")


def stages_of(
    run: MeasuredRun,
    framework: Framework,
    model: ModelSpec,
    *,
    vp: int,
    schedule: Schedule,
    recompute: Recompute,
) -> tuple[VirtualStage, ...]:
    """Build the stage list of a row, or raise SkipRow where its split is not known.

    The stated split counts. Otherwise layers that divide are split evenly; embedding and loss count as one
    layer each if that divides; then the framework's recipe for this depth; DeepSpeed fills stages from the
    front, nanotron by its own count of each block's work.
    """
    import numpy as np

    pp = run.pp or 1
    if framework is Framework.NANOTRON and run.stage_split is None:
        items = _items(nanotron_counts(model, pp), 0)
    else:
        items = split_of(run, framework, layers=model.layers, mtp=model.mtp_layers, stages=pp * vp)
    order = model_order(pp, vp, schedule)
    counts = np.array([item.layers for item in items], dtype=np.int64)
    listed = np.empty_like(counts)
    listed[order] = counts
    kinds = kinds_of(model, listed, order)
    place = {int(entry): position for position, entry in enumerate(order)}
    full = recompute.granularity is Granularity.FULL
    return tuple(
        _stage(entry, pp, items[place[entry]], model, kinds[entry], full=full) for entry in range(pp * vp)
    )


def _stage(
    entry: int, pp: int, items: StageItems, model: ModelSpec, kinds: Sequence[int], *, full: bool
) -> VirtualStage:
    names = [run.name for run in model.runs]
    return VirtualStage(
        rank=entry % pp,
        chunk=entry // pp,
        layers=items.layers,
        kinds={name: int(count) for name, count in zip(names, kinds, strict=True) if count},
        recomputed=items.layers if full else 0,
        embedding=items.embedding,
        head=items.loss,
        mtp=items.mtp,
    )


def split_of(
    run: MeasuredRun, framework: Framework, *, layers: int, mtp: int, stages: int
) -> tuple[StageItems, ...]:
    """Return the items of every virtual stage in the model's order."""
    stated = run.stage_split
    if stated and stated != ENDS_AS_LAYERS:
        return _stated(stated, layers=layers, mtp=mtp, stages=stages)
    counts = _even(layers, stages) if stated is None else None
    counts = counts or _with_ends(layers, stages) or _even(layers, stages)
    if counts:
        return _items(counts, mtp)
    recipe = _recipes().get((framework, layers, stages))
    if recipe:
        return _items([item.layers for item in parse_layout_string(recipe)], mtp)
    if framework.record.family is TrainerFamily.DEEPSPEED_ENGINE:
        return _items(_from_the_front(layers, stages), mtp)
    raise SkipRow(f"split of {layers} layers over {stages} virtual stages not stated")


def _stated(text: str, *, layers: int, mtp: int, stages: int) -> tuple[StageItems, ...]:
    if not _LAYOUT_STRING.fullmatch(text):
        raise SkipRow(f"stage split {text!r} is not understood")
    try:
        items = parse_layout_string(text)
    except InputError as error:
        raise SkipRow(str(error)) from None
    if len(items) != stages:
        raise SkipRow(f"stage split has {len(items)} stages, pp*vp is {stages}")
    if sum(item.layers for item in items) != layers:
        raise SkipRow(f"stage split has {sum(item.layers for item in items)} layers, the model {layers}")
    if mtp and not any(item.mtp for item in items):
        return _items([item.layers for item in items], mtp)
    if sum(item.mtp for item in items) != mtp:
        raise SkipRow(f"stage split has {sum(item.mtp for item in items)} MTP layers, the model {mtp}")
    return items


def _items(counts: Sequence[int], mtp: int) -> tuple[StageItems, ...]:
    last = len(counts) - 1
    return tuple(
        StageItems(layers=count, mtp=mtp if index == last else 0, embedding=index == 0, loss=index == last)
        for index, count in enumerate(counts)
    )


def _even(layers: int, stages: int) -> list[int] | None:
    return [layers // stages] * stages if layers % stages == 0 else None


def _with_ends(layers: int, stages: int) -> list[int] | None:
    """Embedding and loss as one layer each (Megatron-LM ``--account-for-*-in-pipeline-split``; Llama 3)."""
    share, rest = divmod(layers + 2, stages)
    return None if rest or stages == 1 else [share - (index in (0, stages - 1)) for index in range(stages)]


def _from_the_front(layers: int, stages: int) -> list[int]:
    """Fill stages to the ceiling in turn (deepspeedai/DeepSpeed runtime/utils.py partition_balanced)."""
    share = -(-layers // stages)
    return [max(0, min(share, layers - index * share)) for index in range(stages)]


@cache
def _recipes() -> dict[tuple[Framework, int, int], str]:
    import yaml

    text = resources.files("layoutopt.optimizer.evidence").joinpath("splits.yaml").read_text(encoding="utf-8")
    entries: list[dict[str, Any]] = yaml.safe_load(text)
    return {
        (Framework(name), entry["layers"], stages): layout
        for entry in entries
        for name in entry["frameworks"]
        for stages, layout in entry["splits"].items()
    }
