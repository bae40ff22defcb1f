"""pytorch/torchtitan, counted in releases and, where none is numbered yet, in eras of its configuration."""

from __future__ import annotations

from dataclasses import replace

from layoutopt.optimizer.frameworks.abilities import HOST_OPTIMIZER, Abilities
from layoutopt.optimizer.frameworks.record import (
    FrameworkRecord,
    LaunchFormat,
    PublishedRelease,
    Release,
    TrainerFamily,
    Unstated,
)
from layoutopt.optimizer.frameworks.stage_rule import NEAR_EQUAL, Split
from layoutopt.optimizer.frameworks.switches import OFF_ON
from layoutopt.optimizer.specs.vocabulary import OP_MODULE, Fp8Recipe, Precision, Schedule

ERA_A: Release = (0, 2)
ERA_B: Release = (0, 3)
CHUNKED_LOSS: Release = (0, 3, 1)
ERA_C: Release = (0, 4)
"""Configuration eras: A up to v0.2.2 (TOML), B from 2026-02-23 (dataclasses), C from 2026-08-20 (batches in
tokens). B and C have no numbered release yet, so they stand as the next minor numbers. From ``CHUNKED_LOSS`` on, inside
era B, the configurations of all models make their logits in parts (#2937).
"""

PYTORCH = Abilities(
    # PyTorch's schedule classes; InterleavedZeroBubble, LoopedBFS and schedule files have no model here.
    schedules=(
        Schedule.NONE,
        Schedule.GPIPE,
        Schedule.ONE_F_ONE_B,
        Schedule.INTERLEAVED,
        Schedule.ZB_V,
        Schedule.DUALPIPE_V,
    ),
    zero=(0, 2, 3),
    hsdp_zero=(2, 3),
    # training.mixed_precision_param bfloat16; converters for float8, mxfp8 and, in Python configurations, nvfp4
    precisions=(Precision.BF16, Precision.FP8, Precision.MXFP8, Precision.NVFP4),
    savers=HOST_OPTIMIZER,  # training.enable_cpu_offload
    modules=(OP_MODULE,),  # SelectiveAC saves by operator, not by module
    # compile.enable, compile.enable_async_tensor_parallel, and components/loss.py ChunkedLossWrapper
    switches={"tp_overlap": OFF_ON, "loss_chunks": (1, 8), "compiled": OFF_ON},
    stage_rule=replace(NEAR_EQUAL, launch=Split.FREE),  # module_fqns_per_model_part takes any list
)
# The TOML era also shards embeddings and norms along the sequence whenever tp > 1; same axes otherwise.
_TOML = replace(
    PYTORCH, precisions=PYTORCH.precisions[:-1], switches={"tp_overlap": OFF_ON, "compiled": OFF_ON}
)
_DATACLASSES = replace(PYTORCH, switches=_TOML.switches)

PLAIN_CONFIGURATIONS = (
    "llama3_8b", "llama3_70b", "deepseek_v3_671b", "qwen3_32b", "qwen3_30b_a3b", "gpt_oss_120b",
)  # fmt: skip
"""Configurations of built-in models that convert no matrix to 8 bits while they are built.

torchtitan/models/*/config_registry.py at b5bcd76 (2026-08-21): llama3_405b converts to float8, qwen3 has none for
235B-A22B, deepseek_v3 none for 236B.
"""

RECORD = FrameworkRecord(
    name="torchtitan",
    family=TrainerFamily.PYTORCH_PIPELINES,
    releases=(
        PublishedRelease(number=(0, 1), date="2025-06-17", abilities=_TOML),
        PublishedRelease(number=ERA_A, date="2025-10-17", abilities=_TOML),
        PublishedRelease(number=(0, 2, 1), date="2025-12-26", abilities=_TOML),
        PublishedRelease(number=(0, 2, 2), date="2026-02-20", abilities=_TOML),
        PublishedRelease(number=ERA_B, date="2026-02-23", abilities=_DATACLASSES),
        PublishedRelease(number=CHUNKED_LOSS, date="2026-04-27", abilities=PYTORCH),
        PublishedRelease(number=ERA_C, date="2026-08-20", abilities=PYTORCH),
    ),
    unstated=Unstated(zero=3, etp_is_tp="without ep"),
    fp8_recipes={Fp8Recipe.CURRENT: "tensorwise", Fp8Recipe.ROWWISE: "rowwise"},  # recipe_name
    exports="era C",
    imports=(
        LaunchFormat(
            kind="torchtitan-python",
            reader="import_python",
            sign=r"ParallelismConfig\(|\.parallelism\.|from torchtitan",
        ),
        LaunchFormat(
            kind="torchtitan-toml",
            reader="import_toml",
            sign=r"^\[parallelism\]|^\[training\]|\btorchtitan\.train\b",
        ),
    ),
    names={"era a": ERA_A, "era b": ERA_B, "era c": ERA_C},
)
