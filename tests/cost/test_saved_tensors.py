"""What real blocks keep for their backward pass, counted by saved_tensors_hooks (benchmarks/referees records it)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from checks.saved import LIMITS, blocks, kept_bytes

RECORD = json.loads((Path(__file__).parents[1] / "data" / "referees" / "saved_tensors.json").read_text())


def test_every_kind_of_block_was_counted() -> None:
    """Dense, windowed, with experts and with latent attention, eager and compiled."""
    assert [row["block"] for row in RECORD] == list(blocks())
    assert {row["block"]["kind"] for row in RECORD} == {"dense", "windowed", "sparse", "latent"}


@pytest.mark.parametrize(
    "row", RECORD, ids=lambda row: "-".join(row["block"][n] for n in ("source", "mode", "kind"))
)
def test_layers_keep_what_real_blocks_keep(row: dict[str, Any]) -> None:
    """Within 1% where kernels are fused, within 5% where they are not."""
    assert kept_bytes(row["block"]) == pytest.approx(row["bytes"], rel=LIMITS[row["block"]["mode"]])
