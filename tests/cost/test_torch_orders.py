"""What every rank holds in flight is what the orders of torch's own schedules hold (recorded by ``benchmarks/referees``)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from checks.orders_of_torch import SHAPES, held

RECORDED = json.loads((Path(__file__).parents[1] / "data" / "referees" / "torch_orders.json").read_text())


@pytest.mark.parametrize("row", RECORDED, ids=lambda row: "-".join(map(str, row["shape"].values())))
def test_ranks_hold_what_torch_holds(row: dict[str, Any]) -> None:
    """The most chunks at once, rank by rank."""
    assert held(row["shape"]) == row["held"]


def test_every_shape_is_recorded() -> None:
    """None is left out of the record."""
    assert [row["shape"] for row in RECORDED] == SHAPES
