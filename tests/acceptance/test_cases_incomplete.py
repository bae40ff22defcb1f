"""Public reports that leave out what a price needs: the answer names what is missing, and never guesses it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import yaml

from layoutopt.optimizer.specs.errors import InputError
from layoutopt.optimizer.specs.loading import load_cluster, load_workload, parse_layout

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from layoutopt.optimizer.specs.errors import Problem

MODEL_KEYS = {"tied": "tied_embeddings", "topk": "top_k", "moe_ffn": "ffn"}
NOT_IN_MODEL_FILE = ("name", "seq", "params_b", "active_b")
EXPERT_KEYS = ("experts", "topk", "moe_ffn", "dense_layers")
TRAINING_KEYS = {"seq": "sequence_length"}
LAYOUT_KEYS = ("tp", "sp", "cp", "pp", "vp", "ep", "etp", "dp", "zero", "mbs", "recompute")


def write_model(case: dict[str, Any], folder: Path) -> Path:
    """Write down what the report states of model and training, as it states it."""
    stated, layout = case["model"], case["layout"]
    flat = {
        name: value
        for name, value in stated.items()
        if name not in (*NOT_IN_MODEL_FILE, *EXPERT_KEYS, "mla", "shared_experts")
    }
    architecture = {MODEL_KEYS.get(name, name): value for name, value in flat.items()}
    architecture |= {
        name: bool(architecture[name]) for name in ("gated", "tied_embeddings") if name in architecture
    }
    experts = {MODEL_KEYS.get(name, name): stated[name] for name in EXPERT_KEYS if name in stated}
    if experts:
        architecture["moe"] = experts
    training = {ours: stated[theirs] for theirs, ours in TRAINING_KEYS.items() if theirs in stated}
    training |= {"global_batch": layout["gbs"]} if "gbs" in layout else {}
    training |= {"precision": layout["precision"]} if "precision" in layout else {}
    path = folder / "model.yaml"
    path.write_text(yaml.safe_dump({"architecture": architecture, "training": training}), encoding="utf-8")
    return path


def write_layout(case: dict[str, Any]) -> str:
    """Write down what the report states of the layout, as it states it, without blanks."""
    stated = {name: case["layout"][name] for name in LAYOUT_KEYS if name in case["layout"]}
    return ",".join(
        f"{name}={str(value).replace(' ', '_').replace(',', ';')}" for name, value in stated.items()
    )


def problems_of(read: Callable[[str], object], source: str) -> list[Problem]:
    """Collect what is wrong or missing."""
    try:
        read(source)
    except InputError as error:
        return list(error.problems)
    return []


@pytest.fixture
def incomplete(cases: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The reports that lack a quantity that decides the answer."""
    return {name: case for name, case in cases.items() if case["computable"] == "no"}


def test_incomplete_reports_are_answered_with_what_is_missing(
    incomplete: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    """Each gets lines that name what is missing or no value; nothing that the report states is called missing."""
    assert incomplete
    for name, case in incomplete.items():
        model, cluster, layout = write_model(case, tmp_path), case["cluster"], write_layout(case)
        found = problems_of(load_workload, str(model))
        found += problems_of(load_cluster, f"{cluster['gpu']}x{cluster['n_gpus']}")
        found += problems_of(parse_layout, layout)
        assert found, name
        assert all("\n" not in str(problem) for problem in found)
        written = yaml.safe_load(model.read_text(encoding="utf-8"))
        for problem in found:
            section, _, key = problem.key.partition(".")
            if problem.what == "missing" and "." not in key:
                assert key not in written[section], (name, str(problem))
