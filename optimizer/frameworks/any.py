"""No trainer in particular: whatever some trainer can launch."""

from __future__ import annotations

from layoutopt.optimizer.frameworks.abilities import FREEST
from layoutopt.optimizer.frameworks.record import NEWEST, Family, FrameworkRecord, PublishedRelease

RECORD = FrameworkRecord(
    name="any",
    family=Family.FREEST,
    releases=(PublishedRelease(number=NEWEST, date="", abilities=FREEST),),
    exports=None,
)
