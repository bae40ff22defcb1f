"""mosaicml/llm-foundry: PyTorch FSDP alone."""

from __future__ import annotations

from layoutopt.optimizer.frameworks.abilities import SIXTEEN_BIT, WHOLE_LAYERS, Abilities
from layoutopt.optimizer.frameworks.record import FrameworkRecord, PublishedRelease, TrainerFamily, Unstated
from layoutopt.optimizer.frameworks.stage_rule import NEAR_EQUAL
from layoutopt.optimizer.specs.vocabulary import Precision, Schedule

DATA_PARALLEL = Abilities(
    schedules=(Schedule.NONE,),
    fixed_axes=("tp", "cp", "pp", "vp", "ep", "etp"),
    zero=(0, 2, 3),
    hsdp_zero=(2, 3),
    granularities=WHOLE_LAYERS,
    precisions=(*SIXTEEN_BIT, Precision.FP8),
    sp=False,
    stage_rule=NEAR_EQUAL,
)

RECORD = FrameworkRecord(
    name="llm-foundry",
    family=TrainerFamily.PLAIN_FSDP,
    releases=(PublishedRelease(number=(0, 1), date="2023-05-10", abilities=DATA_PARALLEL),),
    unstated=Unstated(zero=3),
    exports=None,
    imports=(),
)
