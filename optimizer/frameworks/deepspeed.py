"""deepspeedai/DeepSpeed: its engine, ZeRO, AutoTP and PipelineModule under a JSON configuration."""

from __future__ import annotations

from layoutopt.optimizer.frameworks.abilities import HOST_OPTIMIZER, SIXTEEN_BIT, WHOLE_LAYERS, Abilities
from layoutopt.optimizer.frameworks.record import NEWEST, Family, FrameworkRecord, PublishedRelease
from layoutopt.optimizer.frameworks.stage_rule import NEAR_EQUAL
from layoutopt.optimizer.specs.vocabulary import Schedule

_NEWEST = Abilities(
    schedules=(Schedule.NONE, Schedule.ONE_F_ONE_B),  # PipelineModule
    fixed_axes=("vp",),
    hsdp_zero=(3,),
    granularities=WHOLE_LAYERS,
    precisions=SIXTEEN_BIT,
    savers=HOST_OPTIMIZER,  # zero_optimization.offload_optimizer
    sp=False,
    etp=False,
    stage_rule=NEAR_EQUAL,
)

RECORD = FrameworkRecord(
    name="deepspeed",
    aliases=("deepspeed-zero3",),
    family=Family.DEEPSPEED_ENGINE,
    releases=(PublishedRelease(number=NEWEST, date="", abilities=_NEWEST),),
    exports="0.19.6",
)
