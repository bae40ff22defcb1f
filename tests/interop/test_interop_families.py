"""Hugging Face families: parameter counts are those of the instantiated model, and what is left out is said."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from layoutopt.cli import main
from layoutopt.optimizer.cost.parameters import model_parameters
from layoutopt.optimizer.interop.huggingface.config import import_config
from layoutopt.optimizer.interop.huggingface.family import find_family
from layoutopt.optimizer.report.api import load_model
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


FLAT_VL = {
    **{"model_type": "qwen2_5_vl", "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 1024, "tie_word_embeddings": False},
    **{"max_position_embeddings": 4096, "vision_config": {"depth": 2}, "rope_scaling": {"type": "mrope"}},
}
"""Text keys beside the tower's, as releases of Qwen2-VL and Qwen2.5-VL have them."""


@pytest.mark.parametrize("kind", ["minimax_m3", "minimax_m3_vl"])
@pytest.mark.parametrize("flat", [True, False])
def test_minimax_m3_is_known_by_its_released_names(kind: str, flat: bool) -> None:
    """Flat or nested it counts as the class's text part, and says that vision is left out."""
    counted = dict(COUNTED["minimax_m3_vl_text"]["config"])
    whole = import_config(json.dumps(counted)).model
    text = {**counted, "model_type": kind} if flat else {"text_config": counted, "model_type": kind}
    found = import_config(json.dumps({**text, "vision_config": {"num_hidden_layers": 2}})).model
    assert model_parameters(found) == model_parameters(whole)
    assert found.left_out == ("vision",)
    listed = {**counted, "moe_layer_freq": [0] + [1] * (whole.layers - 1)}
    listed.pop("mlp_layer_types", None)
    kinds = [shape.mlp.value for shape in import_config(json.dumps(listed)).model.shapes]
    assert kinds == ["dense"] + ["moe"] * (whole.layers - 1)


@pytest.mark.parametrize("spelling", ["layer_types", "sparse_attention_config"])
def test_minimax_m3_has_block_sparse_layers_in_either_spelling(spelling: str) -> None:
    """Neither is passed over as full attention; the listed kinds go first."""
    config = {**COUNTED["minimax_m3_vl_text"]["config"], "model_type": "minimax_m3"}
    layers = config["num_hidden_layers"]
    newer = ["full_attention"] * 2 + ["minimax_m3_sparse"] * (layers - 2)
    sizes = {
        "sparse_num_index_heads": 2,
        "sparse_index_dim": 64,
        "sparse_block_size": 32,
        "sparse_topk_blocks": 8,
    }
    if spelling == "layer_types":
        config["layer_types"] = newer
    else:
        del config["layer_types"]
        config[spelling] = {"sparse_attention_freq": [0, 0] + [1] * (layers - 2), **sizes}
    model = import_config(json.dumps(config)).model
    assert [shape.sparse for shape in model.shapes] == [False] * 2 + [True] * (layers - 2)
    assert model.indexer is not None
    numbers = model.indexer.heads, model.indexer.head_dim, model.indexer.block, model.indexer.top_k
    assert numbers == ((4, 128, 128, 2048) if spelling == "layer_types" else (2, 64, 32, 256))


@pytest.mark.parametrize("kind", ["nested", "qwen2_vl", "qwen2_5_vl"])
def test_the_vision_part_is_named_as_left_out(kind: str) -> None:
    """A multimodal model's answer is about its language part alone, and says so, nested or flat."""
    nested = (DATA / "faults" / "hf_config" / "qwen3_vl_nested.json").read_text()
    found = import_config(nested if kind == "nested" else json.dumps({**FLAT_VL, "model_type": kind}))
    assert "only the language part is read; left out: vision" in found.notes
    assert found.model.left_out == ("vision",)


def test_the_language_part_of_a_model_that_speaks_is_found_inside_its_thinker() -> None:
    """Two levels down; what hears, sees and speaks is named, and the thinker says whether its ends are tied."""
    text = COUNTED["qwen2_5_omni_text"]["config"]
    thinker = {"text_config": text, "audio_config": {}, "vision_config": {}, "tie_word_embeddings": False}
    outer = {
        "model_type": "qwen2_5_omni",
        "thinker_config": thinker,
        "talker_config": {},
        "token2wav_config": {},
    }
    model = import_config(json.dumps(outer)).model
    head = text["vocab_size"] * text["hidden_size"]
    assert model_parameters(model) == COUNTED["qwen2_5_omni_text"]["parameters"] + head
    assert set(model.left_out) == {"audio", "vision", "talker", "token2wav"}


def test_parts_that_a_family_leaves_out_are_named_where_they_are_on() -> None:
    """Not where the file switches them off, and not for models without towers."""
    config = {**FLAT_VL, "model_type": "stablelm"}
    del config["vision_config"]
    assert import_config(json.dumps(config)).model.left_out == ()
    found = import_config(json.dumps({**config, "qk_layernorm": True}))
    assert found.model.left_out == ("norms of queries and keys",)
    assert "left out: norms of queries and keys" in found.notes


def test_what_is_left_out_stays_in_files_plans_and_answers(tmp_path: Path) -> None:
    """Model file, text, JSON, plan, page, launch file and Python results, from the import on."""
    source, model = tmp_path / "config.json", tmp_path / "vl.yaml"
    source.write_text(json.dumps(FLAT_VL))
    model.write_text(_printed("import", str(source), "-q"))
    remark = "qwen2_5_vl leaves out vision: counted neither in parameters nor in time nor in memory"
    assert "left_out" in model.read_text()
    asked = (str(model), "h100x8", "--batch", "8", "--precision", "bf16")
    layout = ("--layout", "tp=1,zero=1", "-q")
    assert remark in " ".join(_printed("evaluate", *asked, *layout).split())  # wrapped at any width
    assert remark in json.loads(_printed("evaluate", *asked, *layout, "--json"))["warnings"]
    plan, page = tmp_path / "plan.json", tmp_path / "plan.html"
    _printed("solve", *asked, "-q", "-o", str(plan), "--report", str(page))
    written = json.loads(plan.read_text())
    assert remark in written["warnings"]
    assert written["inputs"]["workload"]["model"]["left_out"] == ["vision"]
    assert "without its vision" in page.read_text()
    assert remark in json.loads(_printed("simulate", str(plan), "--json", "-q"))["warnings"]
    assert remark in json.loads(_printed("pareto", *asked, "--of", "time,memory", "--json", "-q"))["warnings"]
    assert remark in _printed("export", str(plan), "--to", "megatron", "-q")
    notes: list[str] = []
    workload = load_model(model, global_batch=8, precision="bf16", notes=notes)
    assert workload.model.left_out == ("vision",)
    assert any(remark in note for note in notes)


def _printed(*words: str) -> str:
    found = CliRunner().invoke(main, list(words))
    assert found.exit_code == 0, found.output
    return found.stdout


@pytest.mark.parametrize("name", ["falcon_h1", "granitemoehybrid", "lfm2", "hy_v4", "longcat_flash"])
def test_families_that_the_model_cannot_hold_say_why(name: str) -> None:
    """By name and reason, never by a near name."""
    with pytest.raises(InputError) as caught:
        import_config(
            json.dumps({"model_type": name, "hidden_size": 64, "num_hidden_layers": 2}), "config.json"
        )
    assert f"architecture {name} is not supported: " in str(caught.value)


RELEASED_V4 = {
    **{"model_type": "deepseek_v4", "hidden_size": 4096, "num_hidden_layers": 43, "vocab_size": 129280},
    "compress_ratios": [128, 128] + [128, 4] * 20 + [128, 0],
}
"""DeepSeek-V4-Flash in its release's words, a prediction layer's ratio behind the layers'; sizes are the class's."""


def test_deepseek_v4_is_described_with_what_is_not_priced(tmp_path: Path) -> None:
    """284,325,869,015 parameters as instantiated; its file gives the same model, and every answer what it leaves out."""
    source, written = tmp_path / "config.json", tmp_path / "v4.yaml"
    source.write_text(json.dumps(RELEASED_V4))
    model = import_config(source.read_text()).model
    assert model_parameters(model) == 284_325_869_015
    assert [(shape.window, shape.compression, shape.sparse) for shape in model.shapes[1:4]] == [
        *((128, 128, False), (128, 128, False), (128, 4, True))
    ]
    written.write_text(_printed("import", str(source), "-q"))
    assert load_model(written, global_batch=8, precision="bf16").model == model
    answer = _printed(
        *(
            "evaluate",
            str(written),
            "h100x256",
            "--framework",
            "accelerate",
            "--batch",
            "256",
            "--seq",
            "2048",
        ),
        *("--precision", "bf16", "--layout", "zero=3,recompute=full", "--json", "-q"),
    )
    found = json.loads(answer)
    words = "counted in parameters, neither in time nor in what activations keep"
    assert any("4 residual streams" in one and words in one for one in found["warnings"])


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        ({"compress_ratios": [128, 4, 16] + [0] * 40}, "compress ratio 16"),
        ({"compress_ratios": [128, 4]}, "2 entries for 43 layers"),
        ({"o_groups": 7}, "64 heads are not a multiple of 7 groups"),
    ],
)
def test_other_compressions_are_refused(changes: dict[str, object], wrong: str) -> None:
    """What the class has no layer for is one line."""
    with pytest.raises(InputError, match=wrong):
        import_config(json.dumps({**RELEASED_V4, **changes}))


def test_compressed_keys_cost_less_the_longer_the_sequence(tmp_path: Path) -> None:
    """Beside the same model whose layers attend to every key; and fewer tokens a key cost more."""
    from layoutopt.optimizer.cost.flops import attention_flops

    model = import_config(json.dumps(RELEASED_V4)).model
    pooled, chosen = model.shapes[2], model.shapes[3]
    every = replace(pooled, window=None, compression=0)
    for length in (16_384, 131_072):
        dense = attention_flops(model, every, length, causal=True)
        window = 128 * (1 - 64 / length)
        share = attention_flops(model, pooled, length, causal=True) / dense
        assert share == pytest.approx((window + length / 256) / (length / 2))
        assert attention_flops(model, chosen, length, causal=True) > share * dense


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


LING = {
    **{
        "model_type": "bailing_moe_v2",
        "hidden_size": 2048,
        "intermediate_size": 5120,
        "num_hidden_layers": 20,
    },
    **{"moe_intermediate_size": 512, "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 128},
    **{"num_experts": 256, "num_experts_per_tok": 8, "num_shared_experts": 1, "first_k_dense_replace": 1},
    **{"vocab_size": 157184, "use_qk_norm": True, "use_qkv_bias": False, "use_bias": False, "n_group": 8},
    **{"topk_group": 4, "moe_router_enable_expert_bias": True, "tie_word_embeddings": False},
}
"""inclusionAI/Ling-mini-2.0 config.json, what decides sizes."""


def test_ling_2_is_its_16_billion_parameters() -> None:
    """16.26 billion, counted module by module of its remote code; 256 experts behind one dense layer."""
    model = import_config(json.dumps(LING)).model
    expert, width = 3 * 2048 * 512, 128 * (16 + 2 * 4)
    layer = 2048 * width + 2048 * 2048 + 2 * 128 + 2 * 2048
    sparse = 257 * expert + 256 * 2048 + 256
    counted = 2 * 157184 * 2048 + 2048 + 20 * layer + 19 * sparse + 3 * 2048 * 5120
    assert model_parameters(model) in (
        counted,
        counted - 19 * 256,
    )  # with or without the router's corrections
    assert model.qk_norm and model.moe is not None and model.moe.router_group_limit == 4


def test_a_nested_llama_part_has_the_classs_layers() -> None:
    """LLaVA-1.5's file states the text part's vocabulary alone; a flat file must state its layers."""
    text = {"model_type": "llama", "vocab_size": 32064}
    imported = import_config(json.dumps({"model_type": "llava", "text_config": text, "vision_config": {}}))
    assert (imported.model.layers, imported.model.hidden) == (32, 4096)
    assert any("num_hidden_layers=32" in note for note in imported.notes)
    with pytest.raises(InputError, match="num_hidden_layers"):
        import_config(json.dumps(text | {"hidden_size": 4096}))
