"""Megatron-DeepSpeed: Megatron-LM on DeepSpeed's engine, counted by months, since nobody numbers it.

bigscience-workshop's fork of 2021 carries Megatron-LM v2.4, deepspeedai's of 2023 what Megatron-LM has had since
2022 and Ulysses.
"""

from __future__ import annotations

from dataclasses import replace

from layoutopt.optimizer.frameworks.abilities import HOST_OPTIMIZER, SIXTEEN_BIT, WHOLE_LAYERS, Abilities
from layoutopt.optimizer.frameworks.record import (
    FrameworkRecord,
    LaunchFormat,
    PublishedRelease,
    TrainerFamily,
    Unstated,
)
from layoutopt.optimizer.frameworks.stage_rule import NEAR_EQUAL, Recomputation, Split, StageRule
from layoutopt.optimizer.specs.vocabulary import Schedule

_ULYSSES = Abilities(
    schedules=(Schedule.NONE, Schedule.ONE_F_ONE_B, Schedule.ZB_H1),  # --enable-zbh1-pipeline
    fixed_axes=("vp",),  # --num-layers-per-virtual-pipeline-stage is parsed, the engine does not interleave
    modules=("core_attn",),
    precisions=SIXTEEN_BIT,
    savers=HOST_OPTIMIZER,  # --cpu-optimizer
    # DeepSpeed runtime/utils.py (partition_balanced, since 0.12.5)
    stage_rule=StageRule(split=Split.LARGER_FIRST, recomputation=Recomputation.UNIFORM_COUNT),
)
# No --sequence-parallel, --ds-sequence-parallel-size, --recompute-granularity selective, zero-bubble schedule.
_BIGSCIENCE = replace(
    _ULYSSES,
    schedules=_ULYSSES.schedules[:2],
    fixed_axes=("vp", "cp", "ep", "etp"),
    sp=False,
    modules=(),
    granularities=WHOLE_LAYERS,
    stage_rule=NEAR_EQUAL,
)

RECORD = FrameworkRecord(
    name="megatron-deepspeed",
    family=TrainerFamily.DEEPSPEED_ENGINE,
    releases=(
        PublishedRelease(number=(2021, 7), date="2021-07", abilities=_BIGSCIENCE),
        PublishedRelease(number=(2023, 8), date="2023-08", abilities=_ULYSSES),
    ),
    unstated=Unstated(
        dropout=True,  # megatron/arguments.py: --attention-dropout and --hidden-dropout are 0.1
        tied=True,
        modules=("core_attn",),
        equal_stages=True,
    ),  # --untie-embeddings-and-output-weights
    exports="2025-07",
    imports=(
        LaunchFormat(
            kind="megatron-deepspeed",
            reader="import_megatron_deepspeed",
            sign=r"--deepspeed_config\b|--zero-stage\b|--ds-sequence-parallel-size\b",
        ),
    ),
    dated=True,
)
