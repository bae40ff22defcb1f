"""Hugging Face configs: every trap that changes a size, and refusals by name."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from layoutopt.optimizer.cost.parameters import active_parameters, model_parameters
from layoutopt.optimizer.interop.huggingface.config import import_config
from layoutopt.optimizer.interop.huggingface.family import find_family
from layoutopt.optimizer.interop.reading import parse_yaml
from layoutopt.optimizer.specs.errors import InputError
from layoutopt.optimizer.specs.loading import load_workload
from layoutopt.optimizer.specs.model import Mixer, Mlp, ModelSpec, Norm
from layoutopt.optimizer.specs.vocabulary import Precision

SAMPLES = Path(__file__).parent / "samples"
BASE: dict[str, Any] = {
    "hidden_size": 512,
    "intermediate_size": 1408,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "vocab_size": 1000,
}
SPARSE = {"num_local_experts": 8, "num_experts_per_tok": 2}
LATENT = {
    "n_routed_experts": 16,
    "n_shared_experts": 2,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 96,
    "first_k_dense_replace": 2,
    "q_lora_rank": None,
    "kv_lora_rank": 64,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 48,
}


def read(model_type: str, **keys: Any) -> ModelSpec:
    """Import a config made of the base sizes and the given keys."""
    return import_config(json.dumps({"model_type": model_type, **BASE, **keys})).model


def windows(model: ModelSpec) -> list[int | None]:
    """Window of every layer."""
    return [shape.window for run in model.runs for _ in range(run.count) for shape in run.block]


def mlps(model: ModelSpec) -> str:
    """One letter per layer: d dense, m mixture of experts, n none."""
    return "".join(s.mlp.value[0] for run in model.runs for _ in range(run.count) for s in run.block)


def test_llama_defaults_and_explicit_head_dim() -> None:
    """kv heads absent are the heads, head_dim null is hidden/heads, an explicit one wins."""
    plain, wide = read("llama"), read("llama", head_dim=128, num_key_value_heads=2)
    assert (plain.kv_heads, plain.head_dim, plain.gated, plain.tied_embeddings) == (8, 64, True, False)
    assert (wide.kv_heads, wide.head_dim) == (2, 128)
    assert read("llama", head_dim=None, tie_word_embeddings=True).tied_embeddings


def test_head_dim_is_never_hidden_over_heads_where_the_class_has_its_own() -> None:
    """Qwen3 and Gemma carry 128 and 256 whatever hidden/heads is; GLM-4 MoE must say it."""
    assert read("qwen3", num_key_value_heads=2).head_dim == 128
    assert read("gemma2").head_dim == 256
    with pytest.raises(InputError, match="head_dim: missing"):
        read("glm4_moe")


def test_query_projection_of_qwen3_4b() -> None:
    """4096 x 2560 = 10,485,760 elements (paiml/entrenar#262), not hidden x hidden."""
    model = read("qwen3", hidden_size=2560, num_attention_heads=32, num_key_value_heads=8, head_dim=128)
    assert model.heads * model.head_dim * model.hidden == 10_485_760


def test_absent_and_null_windows_differ() -> None:
    """Mistral's absent sliding_window is 4096 by class default, null is off."""
    assert windows(read("mistral")) == [4096] * 6
    assert windows(read("mistral", sliding_window=None)) == [None] * 6


def test_qwen2_window_needs_its_switch() -> None:
    """sliding_window alone does nothing; with the switch it starts at max_window_layers."""
    assert windows(read("qwen2", num_key_value_heads=8, sliding_window=64)) == [None] * 6
    on = read("qwen2", num_key_value_heads=8, sliding_window=64, use_sliding_window=True, max_window_layers=4)
    assert windows(on) == [None] * 4 + [64] * 2


def test_alternating_and_periodic_windows() -> None:
    """Gemma 2 and gpt-oss alternate from a sliding layer, Gemma 3 runs 5:1, Llama 4 chunks 3 of 4 layers."""
    assert windows(read("gemma2", sliding_window=64)) == [64, None] * 3
    assert windows(read("gpt_oss", **SPARSE)) == [128, None] * 3
    gemma3 = read("gemma3", num_hidden_layers=8, sliding_window=64)
    assert windows(gemma3) == [64] * 5 + [None] + [64] * 2
    llama4 = read("llama4", **SPARSE)
    assert windows(llama4) == [8192] * 3 + [None] + [8192] * 2
    assert windows(read("llama4", **SPARSE, no_rope_layers=[1, 1, 0, 1, 1, 0])) == [8192, 8192, None] * 2


def test_listed_layer_types_win() -> None:
    """A layer_types list decides over the class's pattern."""
    kinds = ["full_attention", "sliding_attention"] * 3
    assert windows(read("gemma2", sliding_window=64, layer_types=kinds)) == [None, 64] * 3


def test_patterns_become_few_runs() -> None:
    """A 5:1 pattern over 62 layers is one run of ten 6-layer blocks and a remainder."""
    model = read("gemma3", num_hidden_layers=62)
    assert [(run.count, len(run.block)) for run in model.runs] == [(10, 6), (2, 1)]


def test_mixtral_like_expert_width() -> None:
    """mixtral, gpt_oss, granitemoe and minimax_m2 have experts of intermediate_size and no dense layer."""
    for name in ("mixtral", "gpt_oss", "granitemoe", "minimax_m2"):
        model = read(name, **SPARSE)
        assert model.moe is not None
        assert (model.moe.ffn, model.moe.experts, model.moe.shared_ffn, mlps(model)) == (1408, 8, 0, "mmmmmm")


def test_qwen3_moe_resaved_key_does_not_change_the_width() -> None:
    """num_local_experts (v5) and num_experts are the same; the width stays moe_intermediate_size."""
    keys = {"moe_intermediate_size": 96, "num_experts_per_tok": 4, "num_key_value_heads": 2}
    old, new = read("qwen3_moe", num_experts=16, **keys), read("qwen3_moe", num_local_experts=16, **keys)
    assert old == new
    assert old.moe is not None and (old.moe.ffn, old.moe.experts) == (96, 16)


def test_sparse_layers_by_step_and_exception() -> None:
    """Layer i is sparse iff it is not in mlp_only_layers and (i+1) % decoder_sparse_step is 0."""
    keys = {"num_experts": 16, "num_key_value_heads": 2}
    assert mlps(read("qwen3_moe", **keys, decoder_sparse_step=2)) == "dmdmdm"
    assert mlps(read("qwen3_moe", **keys, mlp_only_layers=[0, 5])) == "dmmmmd"


def test_qwen2_moe_shared_expert_and_gate() -> None:
    """The shared expert has its own width and a gate of one row."""
    moe = read("qwen2_moe", num_key_value_heads=8, shared_expert_intermediate_size=777).moe
    assert moe is not None and (moe.shared_ffn, moe.shared_gate) == (777, True)


def test_deepseek_latent_attention() -> None:
    """Dense layers first, shared experts of the expert width, null q_lora_rank is a full projection."""
    model = read("deepseek_v2", **LATENT, head_dim=16, num_key_value_heads=8)
    assert mlps(model) == "ddmmmm"
    assert model.mla is not None and model.moe is not None
    assert (model.mla.q_lora_rank, model.mla.v_head_dim, model.moe.shared_ffn) == (0, 48, 192)
    assert (model.head_dim, model.moe.router_bias) == (48, False)


def test_resaved_head_dim_is_ignored_with_latent_attention() -> None:
    """A re-saved file's head_dim is the rope dimension and must not change anything."""
    assert read("deepseek_v3", **LATENT, head_dim=16) == read("deepseek_v3", **LATENT)


def test_mtp_layers_are_beside_the_decoder_layers() -> None:
    """num_nextn_predict_layers counts MTP, which num_hidden_layers does not contain."""
    model = read("deepseek_v3", **LATENT, num_nextn_predict_layers=1)
    assert (model.layers, model.mtp_layers) == (6, 1)


def test_node_limited_routing() -> None:
    """Four of eight groups limit a token; one group is no limit."""
    limited, free = (read("deepseek_v3", **LATENT, n_group=n, topk_group=k).moe for n, k in ((8, 4), (1, 1)))
    assert limited is not None and free is not None
    assert (limited.binding_groups, free.binding_groups) == ((8, 4), None)


def test_llama4_interleaving_and_widths() -> None:
    """Dense layers have intermediate_size_mlp, experts and the shared expert intermediate_size."""
    model = read("llama4", **SPARSE, interleave_moe_layer_step=2, intermediate_size_mlp=4096)
    assert mlps(model) == "dmdmdm"
    assert model.moe is not None and (model.moe.ffn, model.moe.shared_ffn) == (1408, 1408)
    assert {s.ffn for run in model.runs for s in run.block if s.mlp is Mlp.DENSE} == {4096}


def test_gating_follows_the_class_not_the_activation() -> None:
    """silu in a GPT-NeoX file does not make it gated, gelu in a Gemma file does not ungate it."""
    assert not read("gpt_neox", hidden_act="silu").gated
    assert read("gemma", num_key_value_heads=1, hidden_act="gelu").gated
    assert not read("nemotron", hidden_act="relu2").gated


def test_older_key_names() -> None:
    """GPT-2, BLOOM, OPT, Falcon and the legacy RefinedWeb spell their sizes differently."""
    gpt2 = import_config('{"model_type":"gpt2","n_embd":192,"n_layer":3,"n_head":3,"n_positions":512}').model
    assert (gpt2.hidden, gpt2.layers, gpt2.heads, gpt2.learned_positions, gpt2.vocab) == (
        192,
        3,
        3,
        512,
        50257,
    )
    assert gpt2.tied_embeddings and gpt2.attention_bias and gpt2.norm is Norm.LAYER
    assert gpt2.runs[0].block[0].ffn == 768
    bloom = import_config('{"model_type":"bloom","hidden_size":64,"n_layer":2,"n_head":4}').model
    assert bloom.embedding_norm and bloom.runs[0].block[0].ffn == 256 and bloom.vocab == 250880
    opt = import_config('{"model_type":"opt","hidden_size":64,"num_hidden_layers":2,"num_attention_heads":4,'
                        '"ffn_dim":100,"max_position_embeddings":128}').model  # fmt: skip
    assert (opt.runs[0].block[0].ffn, opt.learned_positions) == (100, 130)


def test_falcon_kv_heads() -> None:
    """multi_query means one kv head whatever num_kv_heads says; the new architecture groups."""
    size = {"hidden_size": 512, "num_hidden_layers": 2, "num_attention_heads": 8, "vocab_size": 100}
    cases: list[tuple[dict[str, Any], int]] = [
        ({"multi_query": True, "num_kv_heads": 8}, 1),
        ({"multi_query": False}, 8),
        ({"new_decoder_architecture": True, "num_kv_heads": 4}, 4),
    ]
    for keys, kv_heads in cases:
        assert import_config(json.dumps({"model_type": "falcon", **size, **keys})).model.kv_heads == kv_heads
    legacy = {"model_type": "RefinedWeb", "hidden_size": 512, "n_layer": 2, "n_head": 8, "n_head_kv": 2}
    assert import_config(json.dumps(legacy)).model.kv_heads == 2


def test_starcoder_multi_query() -> None:
    """gpt_bigcode has one kv head under multi_query, which is its default."""
    size = '"n_embd":64,"n_layer":2,"n_head":4'
    assert import_config('{"model_type":"gpt_bigcode",' + size + "}").model.kv_heads == 1
    assert import_config('{"model_type":"gpt_bigcode",' + size + ',"multi_query":false}').model.kv_heads == 4


def test_hybrid_stacks_of_mamba_attention_and_experts() -> None:
    """Letters and words describe the same blocks; absent sizes are the class's."""
    size = {"model_type": "nemotron_h", "hidden_size": 512, "vocab_size": 100}
    letters = import_config(json.dumps({**size, "hybrid_override_pattern": "M-M*E"})).model
    words = ["linear_attention", "mlp", "mamba", "full_attention", "moe"]
    listed = import_config(json.dumps({**size, "layers_block_type": words})).model
    assert letters.runs == listed.runs
    kinds = [(shape.mixer, shape.mlp) for run in letters.runs for shape in run.block]
    assert kinds[3] == (Mixer.ATTENTION, Mlp.NONE) and kinds[0] == (Mixer.MAMBA, Mlp.NONE)
    assert letters.mamba is not None and (letters.mamba.state, letters.mamba.groups) == (128, 8)


def test_wrappers_are_descended_into() -> None:
    """The text model's sizes count, not the outer ones; tying is inherited from outside."""
    result = import_config((SAMPLES / "hf_vlm_wrapper.json").read_text())
    assert (result.model.layers, result.model.hidden, result.model.vocab) == (5, 256, 999)
    assert result.model.tied_embeddings
    inner = {"model_type": "gemma3_text", "hidden_size": 640, "num_hidden_layers": 6}
    bare = import_config(json.dumps({"model_type": "gemma3", "language_config": inner})).model
    assert (bare.heads, bare.kv_heads, bare.head_dim, bare.vocab, bare.tied_embeddings) == (
        8,
        4,
        256,
        262208,
        True,
    )


@pytest.mark.parametrize(
    ("model_type", "reason"),
    [
        ("lara_mini", "linear attention"),
        ("jamba", "Mamba-1"),
        ("gemma3n", "per-layer embeddings"),
        ("mamba", "Mamba-1"),
        ("nemotron-nas", "block_configs"),
    ],
)
def test_refused_by_name_with_the_reason(model_type: str, reason: str) -> None:
    """What has no cost in the model is refused, and the message says why."""
    with pytest.raises(InputError, match=f"architecture {model_type} is not supported: .*{reason}"):
        read(model_type)


def test_unknown_architecture_is_never_guessed() -> None:
    """A file with all sizes but an unknown model_type is refused by its name."""
    with pytest.raises(InputError, match="architecture 'llama9' is not known"):
        read("llama9")


def known_architectures() -> list[str]:
    """Every ``model_type`` that imports."""
    folder = resources.files("layoutopt.optimizer.interop.huggingface")
    table = parse_yaml(folder.joinpath("families.yaml").read_text(encoding="utf-8"), "families.yaml")
    return sorted({*table["families"], *table["aliases"]})


def test_every_family_imports() -> None:
    """Each architecture in the table builds a model from its sizes and class defaults."""
    for name in known_architectures():
        keys: dict[str, Any] = {"head_dim": 64, "num_key_value_heads": 2, **LATENT}
        if find_family(name).attention == "falcon" or name in ("gpt2", "gpt_bigcode", "bloom"):
            keys |= {"n_layer": 6, "n_head": 8, "n_embd": 512}
        if name == "nemotron_h":
            keys["hybrid_override_pattern"] = "M-*E-M"
        if name == "minimax":
            keys["layer_types"] = ["full_attention"] * 6
        assert read(name, **keys).layers == 6, name


def test_notes_name_the_defaults_used() -> None:
    """What was not in the file is said; storage quantisation is not training precision."""
    result = import_config((SAMPLES / "hf_llama.json").read_text(), name="mine")
    assert any("max_position_embeddings=2048" in note for note in result.notes)
    assert (result.model.name, result.precision, result.sequence_length) == ("mine", Precision.BF16, 2048)
    stored = import_config(
        json.dumps({"model_type": "llama", **BASE, "quantization_config": {"quant_method": "fp8"}})
    )
    assert any("fp8 is how weights are stored" in note for note in stored.notes)


def test_sequence_length_before_rope_scaling() -> None:
    """The suggestion is the pre-training length where the file states one."""
    scaled = {"rope_scaling": {"rope_type": "yarn", "original_max_position_embeddings": 4096}}
    text = json.dumps({"model_type": "llama", **BASE, "max_position_embeddings": 131072, **scaled})
    assert import_config(text).sequence_length == 4096


PUBLISHED: dict[str, dict[str, Any]] = {
    "llama3-70b": {
        "model_type": "llama",
        "hidden_size": 8192,
        "intermediate_size": 28672,
        "num_hidden_layers": 80,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
    },
    "qwen3-30b-a3b": {
        "model_type": "qwen3_moe",
        "hidden_size": 2048,
        "head_dim": 128,
        "intermediate_size": 6144,
        "moe_intermediate_size": 768,
        "num_hidden_layers": 48,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "vocab_size": 151936,
    },
    "deepseek-v3": {
        "model_type": "deepseek_v3",
        "hidden_size": 7168,
        "intermediate_size": 18432,
        "moe_intermediate_size": 2048,
        "num_hidden_layers": 61,
        "num_attention_heads": 128,
        "num_nextn_predict_layers": 1,
        "vocab_size": 129280,
    },
    "gpt-oss-120b": {
        "model_type": "gpt_oss",
        "hidden_size": 2880,
        "intermediate_size": 2880,
        "num_hidden_layers": 36,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "num_local_experts": 128,
        "num_experts_per_tok": 4,
        "vocab_size": 201088,
    },
    "mixtral-8x7b": {
        "model_type": "mixtral",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "sliding_window": None,
        "vocab_size": 32000,
    },
    "bloom-176b": {"model_type": "bloom", "hidden_size": 14336, "n_layer": 70, "n_head": 112},
}
"""Sizes of public models as their config.json has them; what is left out is the class default."""


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_published_config_has_the_built_in_models_parameters(name: str) -> None:
    """Importing a public model's config counts the same parameters as the built-in model of that name."""
    imported = import_config(json.dumps(PUBLISHED[name])).model
    built_in = load_workload(name).model
    assert (imported.layers, imported.mtp_layers) == (built_in.layers, built_in.mtp_layers)
    assert model_parameters(imported) == pytest.approx(model_parameters(built_in), rel=1e-6)
    assert active_parameters(imported) == pytest.approx(active_parameters(built_in), rel=1e-6)
