"""huggingface/accelerate: Hugging Face's trainer on PyTorch FSDP, with tensor and context parallelism."""

from __future__ import annotations

from dataclasses import replace

from layoutopt.optimizer.frameworks.llm_foundry import DATA_PARALLEL
from layoutopt.optimizer.frameworks.record import NEWEST, Family, FrameworkRecord, PublishedRelease

_NEWEST = replace(DATA_PARALLEL, fixed_axes=("pp", "vp", "ep", "etp"))

RECORD = FrameworkRecord(
    name="accelerate",
    family=Family.PLAIN_FSDP,
    releases=(PublishedRelease(number=NEWEST, date="", abilities=_NEWEST),),
    exports="1.15",
)
