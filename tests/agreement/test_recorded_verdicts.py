"""Verdicts of the trainers' own validators on launches that the rules judged too (``benchmarks/referees`` records them)."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
RECORDED: dict[str, dict[str, Any]] = json.loads(
    (ROOT / "tests" / "data" / "referees" / "verdicts.json").read_text()
)
PAGE = (ROOT / "docs" / "referees.md").read_text()


@pytest.mark.parametrize("validator", RECORDED)
def test_no_trainer_refuses_what_we_call_valid(validator: str) -> None:
    """Nor derives other sizes from it than the plan states."""
    row = RECORDED[validator]
    assert (row["valid here, refused there"], row["other sizes"]) == (0, 0)
    assert row["valid by both"] + sum(row["valid there, refused here"].values()) <= row["launches"]


def test_two_hundred_exports_are_accepted() -> None:
    """By the releases together, and of every trainer some."""
    accepted = [row["valid by both"] for row in RECORDED.values()]
    assert sum(accepted) >= 200 and min(accepted) > 0
    assert sum(re.fullmatch(r"0\.1\d", name) is not None for name in RECORDED) == 10


@pytest.mark.parametrize("validator", RECORDED)
def test_the_page_states_the_counts(validator: str) -> None:
    """Launches and those valid by both in its tables; a reason for every rule that is stricter than the validator."""
    row = RECORDED[validator]
    stricter = sum(row["valid there, refused here"].values())
    assert f"| {row['launches']:,} | {row['valid by both']:,} | 0 | {stricter:,} |" in PAGE
    assert [rule for rule in row["valid there, refused here"] if f"`{rule}`" not in PAGE] == []
