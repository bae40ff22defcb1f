"""Degrees, schedule and recomputation of a measured run."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from layoutopt.optimizer.cost.schedules import SCHEDULES
from layoutopt.optimizer.evidence.case import SkipRow
from layoutopt.optimizer.evidence.case_stages import stages_of
from layoutopt.optimizer.specs.layout import Layout, Recompute
from layoutopt.optimizer.specs.vocabulary import (
    OP_MODULE,
    RECOMPUTE_MODULES,
    Granularity,
    Schedule,
)

if TYPE_CHECKING:
    from layoutopt.optimizer.evidence.run import MeasuredRun
    from layoutopt.optimizer.frameworks.registry import Framework
    from layoutopt.optimizer.specs.model import ModelSpec
    from layoutopt.optimizer.specs.vocabulary import Precision


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
    if run.pp != 1 and run.vp is None:
        raise SkipRow("vp not stated, and pp > 1")
    if run.micro_batch is None:
        raise SkipRow("micro-batch not stated")
    if run.global_batch is None:
        raise SkipRow("global batch not stated")
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
    return (run.tp or 1) if framework.record.unstated.etp_is_tp else 1


SELECTIVE_OP = "other:selective-op-SAC"
"""How measured-run tables write torchtitan's selective-op checkpointing."""


def recompute_of(run: MeasuredRun, framework: Framework) -> Recompute:
    """Read the recomputation of a row; nothing stated counts as none."""
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
