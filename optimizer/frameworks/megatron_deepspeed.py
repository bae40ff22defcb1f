"""Megatron-DeepSpeed (bigscience-workshop, deepspeedai): Megatron-LM of 2021 on DeepSpeed's engine."""

from __future__ import annotations

from layoutopt.optimizer.frameworks.abilities import HOST_OPTIMIZER, SIXTEEN_BIT, Abilities
from layoutopt.optimizer.frameworks.record import NEWEST, Family, FrameworkRecord, PublishedRelease
from layoutopt.optimizer.frameworks.stage_rule import Recomputation, Split, StageRule
from layoutopt.optimizer.specs.vocabulary import Schedule

_NEWEST = Abilities(
    schedules=(Schedule.NONE, Schedule.ONE_F_ONE_B, Schedule.ZB_H1),  # --enable-zbh1-pipeline
    fixed_axes=("vp",),  # --num-layers-per-virtual-pipeline-stage is parsed, the engine does not interleave
    modules=("core_attn",),
    precisions=SIXTEEN_BIT,
    savers=HOST_OPTIMIZER,  # --cpu-optimizer
    stage_rule=StageRule(split=Split.NEAR_EQUAL, recomputation=Recomputation.UNIFORM_COUNT),
)

RECORD = FrameworkRecord(
    name="megatron-deepspeed",
    family=Family.DEEPSPEED_ENGINE,
    releases=(PublishedRelease(number=NEWEST, date="", abilities=_NEWEST),),
    exports="2025-07",
)
