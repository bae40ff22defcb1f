"""Micro-batches in flight: the orders of torch's own pipeline schedules against what we say every rank holds."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from checks.orders_of_torch import SHAPES, held

INSIDE = Path(__file__).parent / "inside" / "torch_orders.py"
RECORDED = Path(__file__).parents[2] / "tests" / "data" / "referees" / "torch_orders.json"


def referee(python: Path, *, record: bool) -> int:
    """Print how many orders hold what we say; return the number of those that differ."""
    asked = "\n".join(json.dumps(shape) for shape in SHAPES)
    done = subprocess.run([str(python), str(INSIDE)], input=asked, capture_output=True, text=True, check=True)
    rows = [
        {"shape": shape, "held": json.loads(line)}
        for shape, line in zip(SHAPES, done.stdout.splitlines(), strict=True)
    ]
    wrong = [row for row in rows if row["held"] != held(row["shape"])]
    print(f"orders of torch's schedules: {len(rows) - len(wrong)} of {len(rows)} hold what we say")
    for row in wrong:
        print(f"  {row['shape']}: theirs {row['held']}, ours {held(row['shape'])}")
    if record:
        RECORDED.write_text("[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n")
    return len(wrong)
