"""Shapes of pipelines whose orders torch makes, and the chunks that we say every rank holds."""

from __future__ import annotations

from typing import Any

import numpy as np

from layoutopt.optimizer.cost.schedules import in_flight
from layoutopt.optimizer.specs.vocabulary import Schedule

SHAPES: list[dict[str, Any]] = [
    {"schedule": schedule, "pp": pp, "vp": vp, "m": m * pp}
    for schedule, chunks in (
        ("gpipe", (1,)),
        ("1f1b", (1,)),
        ("interleaved", (2, 3, 4)),
        ("zb-v", (2,)),
        ("dualpipe-v", (2,)),
    )
    for vp in chunks
    for pp in (2, 4, 8)
    for m in (1, 2, 3, 5)
    if (schedule, m) != ("dualpipe-v", 1)  # it needs two micro-batches a rank
]


def held(shape: dict[str, Any]) -> list[int]:
    """The most chunks that each rank holds at once."""
    sizes = (np.array([shape[name]]) for name in ("pp", "vp", "m"))
    found: list[int] = (
        np.rint(in_flight(Schedule(shape["schedule"]), *sizes)[0] * shape["vp"]).astype(int).tolist()
    )
    return found
