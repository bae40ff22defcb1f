"""Degrees, schedule and recomputation of a measured run."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Any

from layoutopt.optimizer.cost.schedules import SCHEDULES
from layoutopt.optimizer.evidence.case import SkipRow
from layoutopt.optimizer.frameworks.record import TrainerFamily
from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.space.stage_splits import nanotron_counts
from layoutopt.optimizer.space.stages import kinds_of, model_order
from layoutopt.optimizer.specs.document import packaged
from layoutopt.optimizer.specs.errors import InputError
from layoutopt.optimizer.specs.layout import Layout, Recompute, VirtualStage
from layoutopt.optimizer.specs.layout_string import StageItems, parse_layout_string
from layoutopt.optimizer.specs.vocabulary import (
    OP_MODULE,
    RECOMPUTE_MODULES,
    Granularity,
    Schedule,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from layoutopt.optimizer.evidence.run import MeasuredRun
    from layoutopt.optimizer.specs.model import ModelSpec
    from layoutopt.optimizer.specs.vocabulary import Precision


ENDS_AS_LAYERS = "embedding+loss as layers"
_LAYOUT_STRING = re.compile(r"E[EtmL|,*0-9()]*")
_COUNTED = re.compile(r"E\+(\d{1,4}(?:,\d{1,4}(?:x\d{1,4})?)*)\+L")
"""Layers of every stage, ``6x8`` six stages of eight, the embedding on the first and the head on the last."""

_WITH_ENDS = re.compile(r"layers incl\. embedding \(first\) and head \(last\): \[(\d{1,4}(?:, \d{1,4})+)\]")
"""Layers of every stage with the embedding and the head counted as one layer each."""


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
    # nanotron weighs blocks itself, so that even its layers that divide are not split evenly.
    if framework is Framework.NANOTRON and run.stage_split is None:
        items = _items(nanotron_counts(model, pp), 0)
    else:
        items = split_of(run, framework, layers=model.layers, mtp=model.mtp_layers, stages=pp * vp)
    # Splits are written in the model's order, stages stand chunk by chunk: in a V schedule the two differ.
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
    """Return the items of every virtual stage in the model's order.

    Raises ``SkipRow`` where it follows from nothing.
    """
    stated = run.stage_split
    if stated and stated != ENDS_AS_LAYERS:
        return _stated(stated, layers=layers, mtp=mtp, stages=stages)
    counts = _even(layers, stages) if stated is None else None
    # Where the row says so, ends as layers come before even stages, else after them.
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
    items = _listed(text)
    if len(items) != stages:
        raise SkipRow(f"stage split has {len(items)} stages, pp*vp is {stages}")
    if sum(item.layers for item in items) != layers:
        raise SkipRow(f"stage split has {sum(item.layers for item in items)} layers, the model {layers}")
    # Counts of layers have no word for prediction layers, which trainers keep with the head.
    if mtp and not any(item.mtp for item in items):
        return _items([item.layers for item in items], mtp)
    if sum(item.mtp for item in items) != mtp:
        raise SkipRow(f"stage split has {sum(item.mtp for item in items)} MTP layers, the model {mtp}")
    return items


def _listed(text: str) -> tuple[StageItems, ...]:
    """Read a split: a Megatron layout string, or the layers of every stage in one of two words."""
    if match := _COUNTED.fullmatch(text):
        return _items([count for part in match[1].split(",") for count in _repeated(part)], 0)
    if match := _WITH_ENDS.fullmatch(text):
        counts = [int(count) for count in match[1].split(", ")]
        last = len(counts) - 1
        return _items([count - (index in (0, last)) for index, count in enumerate(counts)], 0)
    if not _LAYOUT_STRING.fullmatch(text):
        raise SkipRow(f"stage split {text!r} is not understood")
    try:
        return parse_layout_string(text)
    except InputError as error:
        raise SkipRow(str(error)) from None


def _repeated(part: str) -> list[int]:
    times, _, count = part.rpartition("x")
    return [int(count)] * int(times or 1)


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
    entries: list[dict[str, Any]] = packaged("evidence", "splits")
    return {
        (Framework(name), entry["layers"], stages): layout
        for entry in entries
        for name in entry["frameworks"]
        for stages, layout in entry["splits"].items()
    }


def layout_of(
    run: MeasuredRun, framework: Framework, model: ModelSpec, precision: Precision, *, zero: int
) -> Layout:
    """Build the layout of a row, or raise SkipRow for what it leaves open or contradicts."""
    check_degrees(run)
    pp = run.pp or 1
    vp = run.vp or 1
    dp, micro_batch = run.dp or 1, run.micro_batch or 1
    schedule = _schedule(run, pp, vp)
    recompute = recompute_of(run, framework)
    tp = run.tp or 1
    return Layout(
        tp=tp,
        # On wherever tensor parallelism is, unless the row says that it is off.
        sp=tp > 1 and run.sp is not False,
        cp=run.cp or 1,
        pp=pp,
        vp=vp,
        ep=run.ep or 1,
        etp=_expert_tensor(run, framework),
        dp=dp,
        zero=zero,
        hsdp_shard=run.zero.shard if run.zero else None,
        micro_batch=micro_batch,
        micro_batches=(run.global_batch or 0) // (dp * micro_batch),
        recompute=recompute,
        schedule=schedule,
        mesh_order=framework.record.unstated.mesh_order,
        precision=precision,
        stages=stages_of(run, framework, model, vp=vp, schedule=schedule, recompute=recompute),
    )


def check_degrees(run: MeasuredRun) -> None:
    """Raise SkipRow unless the degrees are stated and multiply up to the GPUs and the batch."""
    for column in ("tp", "pp", "dp"):
        if getattr(run, column) is None:
            raise SkipRow(f"{column} not stated")
    # With one stage there is nothing to cut into chunks.
    if run.pp != 1 and run.vp is None:
        raise SkipRow("vp not stated, and pp > 1")
    if run.micro_batch is None:
        raise SkipRow("micro-batch not stated")
    if run.global_batch is None:
        raise SkipRow("global batch not stated")
    # ep and etp lie inside dp, cp and tp: they take no GPUs of their own.
    product = (run.tp or 1) * (run.cp or 1) * (run.pp or 1) * (run.dp or 1)
    if product != run.n_gpus:
        factors = f"tp {run.tp} x cp {run.cp or 1} x pp {run.pp} x dp {run.dp}"
        raise SkipRow(f"{factors} = {product} GPUs, not {run.n_gpus}")
    _check_batch(run)


def _check_batch(run: MeasuredRun) -> None:
    share = (run.dp or 1) * (run.micro_batch or 1)
    batch = run.global_batch or 0
    if batch < share:
        raise SkipRow(f"global batch {batch} below dp x micro-batch = {share}")
    if batch % share:
        raise SkipRow(f"global batch {batch} is no multiple of dp x micro-batch = {share}")


def _schedule(run: MeasuredRun, pp: int, vp: int) -> Schedule:
    if pp == 1:
        if vp > 1:
            raise SkipRow(f"vp {vp} without pipeline stages")
        return Schedule.NONE
    usual = Schedule.INTERLEAVED if vp > 1 else Schedule.ONE_F_ONE_B
    try:
        schedule = Schedule(run.schedule) if run.schedule else usual
    except ValueError:
        raise SkipRow(f"schedule {run.schedule!r} is not known") from None
    known = SCHEDULES[schedule]
    if schedule is Schedule.NONE or not known.min_chunks <= vp <= (known.max_chunks or vp):
        raise SkipRow(f"schedule {schedule.value} does not run pp {pp} with vp {vp}")
    return schedule


def _expert_tensor(run: MeasuredRun, framework: Framework) -> int:
    """Expert tensor degree; where it is not stated: 1 in Megatron-Bridge recipes, tp in Megatron-LM."""
    if not run.is_moe or (run.tp or 1) == 1:
        return 1
    if run.etp is not None:
        return run.etp
    return framework.record.unstated.etp(run.tp or 1, run.ep or 1)


SELECTIVE_OP = "other:selective-op-SAC"
"""How measured-run tables write torchtitan's selective-op checkpointing."""


def recompute_of(run: MeasuredRun, framework: Framework) -> Recompute:
    """Read the recomputation of a row; nothing stated counts as none.

    Raises ``SkipRow`` for kinds that are not modelled.
    """
    word = run.recompute or "none"
    if word == SELECTIVE_OP:
        return Recompute(granularity=Granularity.SELECTIVE, modules=(OP_MODULE,))
    if word.startswith("other:"):
        raise SkipRow(f"recomputation {word.removeprefix('other:')!r} is not modelled")
    try:
        granularity = Granularity(word)
    except ValueError:
        raise SkipRow(f"recomputation {word!r} is none of none, selective, full") from None
    if granularity is not Granularity.SELECTIVE:
        return Recompute(granularity=granularity)
    return Recompute(granularity=granularity, modules=_modules(run, framework))


def _modules(run: MeasuredRun, framework: Framework) -> tuple[str, ...]:
    words = set(re.split(r"[\s,+;]+", (run.recompute_modules or "").strip())) - {"", "default"}
    if not words:
        if not framework.record.unstated.modules:
            raise SkipRow("modules of selective recomputation not stated")
        return framework.record.unstated.modules
    unknown = sorted(words - set(RECOMPUTE_MODULES))
    if unknown:
        raise SkipRow(f"recomputed module {unknown[0]!r} is not modelled")
    return tuple(sorted(words))
