"""The trainer of the DeepSeek-V3 report (arXiv:2412.19437), HAI-LLM, which is not published."""

from __future__ import annotations

from dataclasses import replace

from layoutopt.optimizer.frameworks.abilities import FREEST
from layoutopt.optimizer.frameworks.record import NEWEST, FrameworkRecord, PublishedRelease, TrainerFamily
from layoutopt.optimizer.specs.vocabulary import Schedule

# Table 2: 1F1B, ZB1P, DualPipe; github.com/deepseek-ai/DualPipe holds both of its shapes.
_SCHEDULES = (
    Schedule.NONE,
    Schedule.ONE_F_ONE_B,
    Schedule.ZB_H1,
    Schedule.DUALPIPE,
    Schedule.DUALPIPE_V,
)

RECORD = FrameworkRecord(
    name="deepseek-internal",
    family=TrainerFamily.FREEST,
    releases=(
        PublishedRelease(
            number=NEWEST, date="", abilities=replace(FREEST, schedules=_SCHEDULES, switches={})
        ),
    ),
    exports=None,
    imports=(),
)
