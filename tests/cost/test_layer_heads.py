"""Layers whose heads differ: value heads of another width, window layers with other heads and sinks, chosen blocks."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from layoutopt.optimizer.cost.estimate import Estimate, estimate
from layoutopt.optimizer.cost.factory import build_cost_model
from layoutopt.optimizer.cost.flops import attention_flops, mixer_linear_flops
from layoutopt.optimizer.cost.matrices import mixer_matrices
from layoutopt.optimizer.cost.parameters import attention_parameters, layer_parameters
from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.interop.files import model_file
from layoutopt.optimizer.interop.huggingface.config import import_config
from layoutopt.optimizer.solve.judge import judge_layout
from layoutopt.optimizer.specs.errors import InputError
from layoutopt.optimizer.specs.loading import load_cluster, parse_layout, parse_workload

if TYPE_CHECKING:
    from layoutopt.optimizer.specs.model import LayerShape, ModelSpec
    from layoutopt.optimizer.specs.workload import Workload

COUNTED = json.loads((Path(__file__).parents[1] / "data" / "families.json").read_text())
TRAINING = {"sequence_length": 8192, "global_batch": 64, "precision": "bf16"}


def imported(family: str, **changes: object) -> ModelSpec:
    """Read the family's small model, with ``changes`` to its configuration."""
    return import_config(json.dumps(COUNTED[family]["config"] | changes), "config.json").model


def workload(model: ModelSpec, **training: int) -> Workload:
    """Write a model file and read it again."""
    return parse_workload(yaml.safe_dump(model_file(model, {**TRAINING, **training})), "model.yaml")


def priced(model: ModelSpec, layout: str, **training: int) -> Estimate:
    """Price a layout on 16 GPUs."""
    work, machine = workload(model, **training), load_cluster("h100x16")
    cost = build_cost_model(work.model, work.training, machine, framework=Framework.ANY)
    return estimate(cost, parse_layout(layout).complete(work, machine))


def kinds(model: ModelSpec) -> tuple[LayerShape, LayerShape]:
    """Return a window layer and a layer without."""
    shapes = model.shapes
    return next(s for s in shapes if s.window), next(s for s in shapes if not s.window)


def test_window_layers_have_heads_of_their_own() -> None:
    """MiMo-V2: 8 query heads of 96, values of 64; 2 key-value heads, 4 and sinks with a window; all by hand."""
    model = imported("mimo_v2_flash")
    window, full = kinds(model)
    for shape, groups, sinks in ((window, 4, 8), (full, 2, 0)):
        weights = 512 * (8 * 96 + groups * (96 + 64) + 8 * 64)
        assert attention_parameters(model, shape).total == weights + sinks
        assert mixer_linear_flops(model, shape) == 2 * weights
        assert sum(m.count * m.elements for m in mixer_matrices(model, shape)) == weights
    seen = 129 * (1 - 129 / (2 * 8192))
    assert attention_flops(model, window, 8192, causal=True) == pytest.approx(2 * seen * 8 * (96 + 64))
    assert attention_flops(model, full, 8192, causal=True) == pytest.approx(2 * 4096 * 8 * (96 + 64))


@pytest.mark.parametrize(
    ("changes", "windows"),
    [
        ({}, [0, 1, 1, 1, 1, 0, 1, 1]),
        ({"layer_types": None, "hybrid_layer_pattern": [0, 1] * 4}, [0, 1] * 4),
        ({"layer_types": None}, [0, 1, 1, 1, 1, 0, 1, 1]),
    ],
)
def test_which_layers_have_a_window(changes: dict[str, object], windows: list[int]) -> None:
    """By the newer list, by the released one, and by the class's period; a length before the query is one less."""
    config = {key: value for key, value in COUNTED["mimo_v2_flash"]["config"].items() if key not in changes}
    config |= {key: value for key, value in changes.items() if value is not None}
    config |= {"model_type": "mimo_v2", "sliding_window_size": 64, "swa_num_key_value_heads": 8}
    model = import_config(json.dumps(config), "config.json").model
    assert [int(shape.window is not None) for shape in model.shapes] == windows
    assert {shape.window for shape in model.shapes if shape.window} == {65}
    assert model.window_kv_heads == 8


def test_the_price_follows_the_heads_of_each_layer() -> None:
    """Narrower values and fewer key-value heads take less memory and less time than one width and number for all."""
    mixed = imported("mimo_v2_flash")
    widest = replace(mixed, v_head_dim=None, kv_heads=4, window_kv_heads=None, window_sinks=False)
    layout = "tp=2,pp=1,ep=8,dp=8,mb=1,zero=1"
    less, more = priced(mixed, layout), priced(widest, layout)
    assert less.step_time_s < more.step_time_s
    assert less.memory.peak_bytes < more.memory.peak_bytes


@pytest.mark.parametrize("framework", [Framework.MEGATRON, Framework.MEGATRON_BRIDGE, Framework.TORCHTITAN])
def test_no_framework_is_said_to_build_them(framework: Framework) -> None:
    """The rule names each part."""
    work, machine = workload(imported("mimo_v2_flash")), load_cluster("h100x16")
    whole = parse_layout("tp=2,pp=1,ep=8,dp=8,mb=1,zero=1").complete(work, machine)
    judged = judge_layout(work, machine, whole, framework=framework)
    text = next(str(rule.message) for rule in judged.broken if rule.rule == "model_supported")
    for part in (
        "value heads of another width",
        "other heads in layers",
        "sinks in layers with a window alone",
    ):
        assert part in text


@pytest.mark.parametrize(("tp", "broken"), [(2, False), (4, True)])
def test_tensor_degrees_divide_the_heads_of_every_layer(tp: int, broken: bool) -> None:
    """Two key-value heads in some layers and four in others are not spread over four ranks."""
    work, machine = workload(imported("mimo_v2_flash")), load_cluster("h100x16")
    whole = parse_layout(f"tp={tp},pp=1,ep=4,mb=1,zero=1").complete(work, machine)
    judged = judge_layout(work, machine, whole, framework=Framework.ANY)
    assert ("kv_heads_mod_tp" in {rule.rule for rule in judged.broken}) is broken


def test_chosen_blocks_by_hand() -> None:
    """MiniMax-M3: 4 heads of 128 choose 16 blocks of 128 keys each; three layers attend to all."""
    model = imported("minimax_m3_vl_text")
    assert [shape.sparse for shape in model.shapes] == [False] * 3 + [True] * 5
    full, chosen = model.shapes[0], model.shapes[-1]
    indexer = 512 * 4 * 128 + 512 * 128 + 2 * 128
    assert layer_parameters(model, chosen).total - layer_parameters(model, full).total == indexer
    width, keys = 2 * model.heads * model.head_dim, 2048 * (1 - 2048 / (2 * 131_072))
    scores = 2 * 65_536 * 4 * 128
    assert attention_flops(model, chosen, 131_072, causal=True) == pytest.approx(2 * keys * width + scores)


def test_long_sequences_are_cheaper_with_chosen_blocks() -> None:
    """At 4,096 tokens the indexer costs more than it saves; of 131,072 a query sees a sixty-fourth."""
    model = imported("minimax_m3_vl_text", num_attention_heads=64, num_key_value_heads=4)
    every = imported(
        "minimax_m3_vl_text",
        num_attention_heads=64,
        num_key_value_heads=4,
        layer_types=["full_attention"] * 8,
    )
    layout = "tp=4,pp=1,ep=4,dp=4,mb=1,zero=1"
    ratio = [
        priced(model, layout, sequence_length=n, global_batch=16).step_time_s
        / priced(every, layout, sequence_length=n, global_batch=16).step_time_s
        for n in (4096, 131_072)
    ]
    assert ratio[0] > 1
    assert ratio[1] < 0.7


@pytest.mark.parametrize("family", ["mimo_v2_flash", "minimax_m3_vl_text"])
def test_model_files_hold_them(family: str) -> None:
    """Written and read again it is the same model."""
    model = imported(family)
    assert workload(model).model == model


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("window_kv_heads: 2", "architecture.window_kv_heads: is not used"),
        ("window_sinks: true", "architecture.window_sinks: is not used"),
        (
            "sliding_window: 8\n  window_kv_heads: 3",
            "architecture.window_kv_heads: heads 4 is not a multiple of 3",
        ),
        ("indexer: {heads: 2, head_dim: 16, top_k: 65, block: 2}", "top_k: is not a multiple of block 2"),
        (
            "indexer: {heads: 2, head_dim: 16, top_k: 64, dense_layers: 2}",
            "dense_layers: leave no layer of 2",
        ),
    ],
)
def test_what_does_not_fit_is_one_line(text: str, message: str) -> None:
    """Parts that no layer uses, and sizes that do not divide."""
    file = f"architecture:\n  layers: 2\n  hidden: 64\n  heads: 4\n  ffn: 128\n  vocab: 100\n  {text}\n"
    file += "training: {sequence_length: 64, global_batch: 8, precision: bf16}\n"
    with pytest.raises(InputError, match=message):
        parse_workload(file, "m.yaml")


@pytest.mark.parametrize("key", ["swa_head_dim", "swa_num_attention_heads"])
def test_widths_that_differ_by_layer_are_refused_by_key(key: str) -> None:
    """Only key-value heads may differ."""
    with pytest.raises(InputError, match=f"{key}: 32 in layers with a window"):
        imported("mimo_v2_flash", **{key: 32})
