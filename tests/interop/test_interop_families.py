"""Hugging Face families: parameter counts are those of the instantiated model, and what is left out is said."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from layoutopt.optimizer.cost.parameters import model_parameters
from layoutopt.optimizer.interop.huggingface.config import import_config
from layoutopt.optimizer.interop.huggingface.family import find_family
from layoutopt.optimizer.specs.errors import InputError

DATA = Path(__file__).parents[1] / "data"
COUNTED = json.loads((DATA / "families.json").read_text())
EXPECTED = yaml.safe_load((DATA / "faults" / "expected.yaml").read_text())["hf_config"]


@pytest.mark.parametrize("name", sorted(COUNTED))
def test_parameters_are_those_of_the_instantiated_model(name: str) -> None:
    """To the last one, for a small model of every family (benchmarks/families/count.py built them)."""
    counted = COUNTED[name]
    model = import_config(json.dumps(counted["config"]), "config.json").model
    corrections = counted["corrections"] if model.moe is not None and model.moe.router_bias else 0
    assert model_parameters(model) == counted["parameters"] + corrections


CAUSAL = [
    line
    for line in (DATA / "causal_models.txt").read_text().splitlines()
    if line and not line.startswith("#")
]


@pytest.mark.parametrize("name", CAUSAL)
def test_every_causal_model_of_transformers_is_known_or_refused_by_name(name: str) -> None:
    """None is answered by a near name: its sizes are asked for, or what it has that the model cannot hold is said."""
    try:
        find_family(name)
    except InputError as error:
        wrapper = "gemma4" in name or name in WRAPPERS
        assert f"architecture {name} is not supported: " in str(error) or wrapper


WRAPPERS = (
    "dots3_note",
    "emu3",
    "mllama",
    "got_ocr2",
    "moss_transcribe_diarize",
    "gpt-sw3",
    "qwen3_5",
    "llama4",
)
"""Files of these nest their language part or state another type: the type inside is what is asked."""


def test_at_least_forty_families_are_counted() -> None:
    """The table is not thinned out."""
    assert len(COUNTED) >= 40


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_configurations_that_were_unknown(name: str) -> None:
    """Total or language part as counted with transformers, and tied embeddings as stated."""
    wanted = EXPECTED[name]
    imported = import_config((DATA / "faults" / "hf_config" / f"{name}.json").read_text(), f"{name}.json")
    assert model_parameters(imported.model) == wanted.get("total", wanted.get("language_part"))
    assert imported.model.tied_embeddings == wanted.get("tied", False)


def test_the_vision_part_is_named_as_left_out() -> None:
    """A wrapper's answer is about its language part alone, and says so."""
    text = (DATA / "faults" / "hf_config" / "qwen3_vl_nested.json").read_text()
    assert "only the language part is read; left out: vision" in import_config(text).notes


@pytest.mark.parametrize(
    "name", ["falcon_h1", "granitemoehybrid", "lfm2", "mimo_v2_flash", "deepseek_v4", "olmo_hybrid"]
)
def test_families_that_the_model_cannot_hold_say_why(name: str) -> None:
    """By name and reason, never by a near name."""
    with pytest.raises(InputError) as caught:
        import_config(
            json.dumps({"model_type": name, "hidden_size": 64, "num_hidden_layers": 2}), "config.json"
        )
    assert f"architecture {name} is not supported: " in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "windows"),
    [
        ({}, [1024, 1024, 1024, None]),
        ({"sliding_window_pattern": "LG", "layer_types": None}, [1024, None, 1024, None]),
        ({"sliding_window": None, "layer_types": None}, [None] * 4),
    ],
)
def test_windows_of_periods(changes: dict[str, object], windows: list[int | None]) -> None:
    """Listed kinds, letters of a period, or no window at all."""
    config = json.loads((DATA / "faults" / "hf_config" / "exaone4.json").read_text())
    config |= {"sliding_window": 1024, **changes}
    model = import_config(json.dumps(config)).model
    assert [shape.window for run in model.runs for _ in range(run.count) for shape in run.block] == windows
