"""huggingface/accelerate: Hugging Face's trainer on PyTorch FSDP, with tensor and context parallelism."""

from __future__ import annotations

from dataclasses import replace

from layoutopt.optimizer.frameworks.abilities import HOST_OPTIMIZER, SIXTEEN_BIT
from layoutopt.optimizer.frameworks.llm_foundry import DATA_PARALLEL
from layoutopt.optimizer.frameworks.record import (
    FrameworkRecord,
    LaunchFormat,
    PublishedRelease,
    TrainerFamily,
    Unstated,
)
from layoutopt.optimizer.specs.vocabulary import Optimizer

# Newest first: what each release lacks that the one behind it has. Names were searched in the source distributions
# on PyPI, whose days of upload are the dates below.
_1_10 = replace(
    DATA_PARALLEL,
    fixed_axes=("pp", "vp", "ep", "etp"),
    savers=HOST_OPTIMIZER,  # fsdp_offload_params, which comes with FSDP
    optimizers=(Optimizer.ADAMW, Optimizer.ADAM_8BIT, Optimizer.LION, Optimizer.SGD, Optimizer.ADAFACTOR),
)
_1_5 = replace(_1_10, fixed_axes=(*_1_10.fixed_axes, "cp"))  # ParallelismConfig.cp_size
_0_26 = replace(_1_5, fixed_axes=DATA_PARALLEL.fixed_axes)  # TorchTensorParallelPlugin
_0_10 = replace(_0_26, hsdp_zero=(), precisions=SIXTEEN_BIT)  # HYBRID_SHARD, mixed_precision fp8

RECORD = FrameworkRecord(
    name="accelerate",
    family=TrainerFamily.PLAIN_FSDP,
    releases=(
        PublishedRelease(number=(0, 10), date="2022-06-15", abilities=_0_10),
        PublishedRelease(number=(0, 26), date="2024-01-10", abilities=_0_26),
        PublishedRelease(number=(1, 5), date="2025-03-12", abilities=_1_5),
        PublishedRelease(number=(1, 10), date="2025-08-07", abilities=_1_10),
        PublishedRelease(number=(1, 15), date="2026-09-09", abilities=_1_10),
    ),
    unstated=Unstated(zero=3),
    optimizers={  # huggingface/transformers TrainingArguments.optim
        Optimizer.ADAMW: "adamw_torch_fused",
        Optimizer.ADAM_8BIT: "adamw_bnb_8bit",
        Optimizer.LION: "lion_32bit",
        Optimizer.SGD: "sgd",
        Optimizer.ADAFACTOR: "adafactor",
    },
    loads_models=True,
    exports="1.15",
    imports=(
        LaunchFormat(
            kind="accelerate-yaml",
            reader="import_accelerate",
            sign=r"^distributed_type:|^fsdp_config:|^parallelism_config:",
        ),
    ),
)
