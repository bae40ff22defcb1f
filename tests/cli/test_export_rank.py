"""Near-ties can be exported as the answer can."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from layoutopt.optimizer.report.commands.export import read_plan
from layoutopt.optimizer.specs.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path


def test_rank_two_is_the_first_near_tie(plan_text: str, tmp_path: Path) -> None:
    """Every rank of a plan is a whole layout of its question; what is beyond is said with what there is."""
    plan = json.loads(plan_text)
    file = tmp_path / "plan.json"
    file.write_text(plan_text)
    count = len(plan["alternatives"])
    assert count >= 1
    _, answer = read_plan(str(file))
    _, second = read_plan(str(file), 2)
    assert second != answer
    stated = plan["alternatives"][0]["layout"]
    assert (second.tp, second.pp, second.dp, second.micro_batch) == tuple(
        stated[name] for name in ("tp", "pp", "dp", "micro_batch")
    )
    with pytest.raises(
        InputError, match=f"--rank: {count + 2} is not in the plan, which holds {count + 1} layouts"
    ):
        read_plan(str(file), count + 2)
