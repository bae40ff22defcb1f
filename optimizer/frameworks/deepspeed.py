"""deepspeedai/DeepSpeed: its engine, ZeRO, AutoTP and PipelineModule under a JSON configuration."""

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
from layoutopt.optimizer.frameworks.stage_rule import NEAR_EQUAL
from layoutopt.optimizer.frameworks.switches import OFF_ON
from layoutopt.optimizer.specs.vocabulary import Optimizer, Precision, Schedule

# Newest first: what each release lacks that the one behind it has. Keys of the configuration were searched in the
# source distributions on PyPI, whose days of upload are the dates below.
_0_16 = Abilities(
    schedules=(Schedule.NONE, Schedule.ONE_F_ONE_B),  # PipelineModule
    fixed_axes=("vp",),
    hsdp_zero=(3,),
    granularities=WHOLE_LAYERS,
    precisions=SIXTEEN_BIT,
    savers=HOST_OPTIMIZER,  # zero_optimization.offload_optimizer
    optimizers=(Optimizer.ADAMW, Optimizer.LION),
    sp=False,
    etp=False,
    stage_rule=NEAR_EQUAL,
    switches={"dp_overlap": OFF_ON},  # zero_optimization.overlap_comm
)
_0_19 = replace(_0_16, optimizers=(*_0_16.optimizers, Optimizer.MUON))  # 2025-08-26
_0_10 = replace(_0_16, fixed_axes=("vp", "tp"))  # tensor_parallel.autotp_size
_0_9 = replace(_0_10, fixed_axes=("vp", "tp", "cp"))  # sequence/layer.py (Ulysses)
_0_7 = replace(_0_9, hsdp_zero=())  # mics_shard_size
_0_5 = replace(_0_7, precisions=(Precision.FP16,))  # bf16.enabled
_0_3_12 = replace(_0_5, fixed_axes=("vp", "tp", "cp", "ep", "etp"))  # moe/layer.py
_0_3 = replace(_0_3_12, zero=(0, 1, 2), savers=())  # stage 3 and offload_optimizer

RECORD = FrameworkRecord(
    name="deepspeed",
    aliases=("deepspeed-zero3",),
    family=TrainerFamily.DEEPSPEED_ENGINE,
    releases=(
        PublishedRelease(number=(0, 3, 1), date="2020-11-12", abilities=_0_3),
        PublishedRelease(number=(0, 3, 12), date="2021-03-12", abilities=_0_3_12),
        PublishedRelease(number=(0, 5), date="2021-08-17", abilities=_0_5),
        PublishedRelease(number=(0, 7), date="2022-08-01", abilities=_0_7),
        PublishedRelease(number=(0, 9, 2), date="2023-05-03", abilities=_0_9),
        PublishedRelease(number=(0, 10, 2), date="2023-08-31", abilities=_0_10),
        PublishedRelease(number=(0, 16, 4), date="2025-02-20", abilities=_0_16),
        PublishedRelease(number=(0, 19, 6), date="2026-08-27", abilities=_0_19),
        PublishedRelease(
            number=(0, 19, 8), date="2026-10-20", abilities=replace(_0_19, hsdp_zero=())
        ),  # MiCS is gone
    ),
    unstated=Unstated(zero=3),
    optimizers={  # optimizer.type
        Optimizer.ADAMW: "AdamW",
        Optimizer.LION: "Lion",
        Optimizer.MUON: "Muon",
    },
    loads_models=True,
    exports="0.19.6",
    imports=(
        LaunchFormat(
            kind="deepspeed-json",
            reader="import_deepspeed",
            json_keys=frozenset(
                {"zero_optimization", "train_batch_size", "train_micro_batch_size_per_gpu", "bf16", "fp16"}
            ),
        ),
    ),
)
