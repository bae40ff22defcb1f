"""huggingface/nanotron under its YAML configuration."""

from __future__ import annotations

from layoutopt.optimizer.frameworks.abilities import SIXTEEN_BIT, WHOLE_LAYERS, Abilities
from layoutopt.optimizer.frameworks.record import (
    NEWEST,
    FrameworkRecord,
    LaunchFormat,
    PublishedRelease,
    TrainerFamily,
)
from layoutopt.optimizer.frameworks.stage_rule import Recomputation, Split, StageRule
from layoutopt.optimizer.specs.vocabulary import Schedule

_NEWEST = Abilities(
    schedules=(Schedule.NONE, Schedule.GPIPE, Schedule.ONE_F_ONE_B),  # pp_engine afab and 1f1b
    fixed_axes=("vp", "ep", "etp"),
    zero=(0, 1),
    granularities=WHOLE_LAYERS,
    precisions=SIXTEEN_BIT,
    stage_rule=StageRule(split=Split.BY_COST, recomputation=Recomputation.ALL_OR_NONE),
)

RECORD = FrameworkRecord(
    name="nanotron",
    family=TrainerFamily.OWN,
    releases=(PublishedRelease(number=NEWEST, date="", abilities=_NEWEST),),
    exports="2026-04",
    imports=(
        LaunchFormat(
            kind="nanotron-yaml",
            reader="import_nanotron",
            sign=r"^tokens:|batch_accumulation_per_replica|\brun_train\.py\b",
        ),
    ),
)
