"""NVIDIA-NeMo/Automodel: Hugging Face models under FSDP2 and PyTorch's pipelines."""

from __future__ import annotations

from dataclasses import replace

from layoutopt.optimizer.frameworks.record import (
    NEWEST,
    FrameworkRecord,
    PublishedRelease,
    TrainerFamily,
    Unstated,
)
from layoutopt.optimizer.frameworks.torchtitan import PYTORCH

RECORD = FrameworkRecord(
    name="nemo-automodel",
    family=TrainerFamily.PYTORCH_PIPELINES,
    releases=(PublishedRelease(number=NEWEST, date="", abilities=replace(PYTORCH, etp=False, switches={})),),
    unstated=Unstated(zero=3),
    exports=None,
    imports=(),
)
