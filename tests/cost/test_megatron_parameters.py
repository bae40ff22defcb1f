"""Ranks of Megatron-LM's own models, built on the meta device by ``benchmarks/referees``, hold what we count."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from checks.launches import rank_parameters

from layoutopt.optimizer.frameworks.preset import load_preset
from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.specs.canonical import layout_from_plain, workload_from_plain

RECORDED: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[1] / "data" / "referees" / "megatron_parameters.json").read_text()
)


def ours(row: dict[str, Any]) -> list[int]:
    """Of the first, the middle and the last pipeline rank."""
    layout, model = layout_from_plain(row["layout"]), workload_from_plain(row["workload"]).model
    held = rank_parameters(layout, model, load_preset(Framework.MEGATRON, f"core {row['release']}"))
    return [held[place] for place in (0, layout.pp // 2, -1)]


@pytest.mark.parametrize(
    "row", RECORDED, ids=lambda row: f"{row['release']}-{row['workload']['model']['name']}"
)
def test_ranks_hold_what_megatron_builds(row: dict[str, Any]) -> None:
    """Exported launches, with Transformer Engine's classes."""
    assert ours(row) == row["parameters"]


def test_enough_plans_are_recorded() -> None:
    """Of random layouts and built-in models: experts, latent attention, chosen keys, prediction layers, pipelines."""
    models = [row["workload"]["model"] for row in RECORDED]
    assert len(RECORDED) >= 40 and len({model["name"] for model in models}) >= 15
    parts = Counter(
        part for model in models for part in ("moe", "mla", "indexer", "mtp_layers") if model.get(part)
    )
    assert all(parts[part] >= 2 for part in ("moe", "mla", "indexer", "mtp_layers"))
    assert sum(row["layout"]["pp"] > 1 for row in RECORDED) >= 20
