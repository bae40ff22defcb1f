"""The trainer of the Llama 3 paper (arXiv:2407.21783), which is not published."""

from __future__ import annotations

from dataclasses import replace

from layoutopt.optimizer.frameworks.abilities import FREEST, PP_BEFORE_DP
from layoutopt.optimizer.frameworks.record import (
    NEWEST,
    FrameworkRecord,
    PublishedRelease,
    TrainerFamily,
    Unstated,
)
from layoutopt.optimizer.specs.vocabulary import Schedule

# Section 3.3.2: from depth-first (interleaved 1F1B) to breadth-first.
_SCHEDULES = (Schedule.NONE, Schedule.GPIPE, Schedule.ONE_F_ONE_B, Schedule.INTERLEAVED)

RECORD = FrameworkRecord(
    name="meta-internal",
    family=TrainerFamily.FREEST,
    releases=(
        PublishedRelease(
            number=NEWEST, date="", abilities=replace(FREEST, schedules=_SCHEDULES, switches={})
        ),
    ),
    unstated=Unstated(mesh_order=PP_BEFORE_DP),  # section 3.3.2: [TP, CP, PP, DP], innermost first
    exports=None,
    imports=(),
)
