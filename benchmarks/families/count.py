"""Count the parameters of one small model of every known Hugging Face family, as transformers builds it.

Run with an environment of its own (requirements.txt), where layoutopt need not be installed:
``python benchmarks/families/count.py > tests/data/families.json``; with ``--published`` whole models, for
``tests/data/published_models.json`` (there without keys that sizes do not depend on). Models are built on the meta
device, so nothing is allocated. Routing corrections that transformers keeps as buffers are counted apart.
"""

from __future__ import annotations

import json
import sys
import warnings
from importlib import import_module
from typing import Any

# Two widths of heads: one that is hidden/heads and one that is not, so that a wrong default shows.
SIZES: dict[str, Any] = {
    "vocab_size": 4096,
    "hidden_size": 512,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "intermediate_size": 1536,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
EXPERTS = {"moe_intermediate_size": 256}
FAMILIES = (
    *(
        "apertus",
        "arcee",
        "cohere2",
        "cwm",
        "deepseek_v2",
        "deepseek_v3",
        "dots1",
        "ernie4_5",
        "ernie4_5_moe",
    ),
    *(
        "exaone4",
        "exaone_moe",
        "gemma",
        "gemma2",
        "gemma3_text",
        "glm4",
        "glm4_moe",
        "glm4_moe_lite",
        "gpt_oss",
    ),
    *("granite", "granitemoe", "granitemoeshared", "helium", "hy_v3", "internlm3", "llama", "llama4_text"),
    *(
        "minimax_m2",
        "minimax_m3_vl_text",
        "ministral3",
        "mistral",
        "mixtral",
        "nemotron",
        "olmo2",
        "olmo3",
        "olmoe",
    ),
    *(
        "phi",
        "phi3",
        "phimoe",
        "qwen2",
        "qwen2_moe",
        "qwen3",
        "qwen3_moe",
        "seed_oss",
        "smollm3",
        "solar_open",
    ),
    "starcoder2",
    *("afmoe", "apertus1p5_text", "cohere", "cohere2_moe", "exaone", "flex_olmo", "glm"),
    *(
        "granite_swa",
        "granitemoe_swa",
        "hunyuan_v1_dense",
        "hyperclovax",
        "iquestcoder",
        "jais2",
        "mellum",
        "kolibri1",
    ),
    *(
        "deepseek_v4",
        "mimo_v2_flash",
        "minicpm3",
        "ministral",
        "sarvam_mla",
        "sarvam_moe",
        "stablelm",
        "vaultgemma",
        "glm_ocr_text",
        "olmo_hybrid",
        "qwen2_5_omni_text",
        "qwen3_omni_moe_text",
        "qwen3_5_moe_text",
        "qwen3_5_text",
        "youtu",
    ),
)
EXTRA: dict[str, dict[str, Any]] = {
    "deepseek_v4": {
        **{"n_routed_experts": 16, "num_experts_per_tok": 2, "head_dim": 64, "q_lora_rank": 96},
        **{"o_groups": 4, "o_lora_rank": 32, "index_n_heads": 4, "index_head_dim": 32, "hc_mult": 2},
        "layer_types": ["sliding_attention", "heavily_compressed_attention"]
        + ["compressed_sparse_attention"] * 6,
        "compress_rates": {"compressed_sparse_attention": 8, "heavily_compressed_attention": 64},
    },
    "qwen3_omni_moe_text": {"moe_intermediate_size": 256, "num_experts": 16, "num_experts_per_tok": 4},
    "qwen3_5_moe_text": {
        **{"num_experts": 16, "num_experts_per_tok": 4, "shared_expert_intermediate_size": 256},
    },
    "glm4_moe": {"head_dim": 64},
    "helium": {"head_dim": 64},  # its output projection is as wide as the hidden size
    "deepseek_v2": {"num_experts_per_tok": 2},
    "hunyuan_v1_dense": {"head_dim": 96},
    "ministral": {"head_dim": 96},
    "mimo_v2_flash": {"head_dim": 96, "v_head_dim": 64},
    "minimax_m3_vl_text": {"layer_types": ["full_attention"] * 3 + ["minimax_m3_sparse"] * 5},
    "dots1": {
        "n_routed_experts": 16,
        "n_shared_experts": 2,
        "num_experts_per_tok": 2,
        "first_k_dense_replace": 1,
    },
}

_GEMMA_27B = {
    **{"vocab_size": 262208, "hidden_size": 5376, "intermediate_size": 21504, "num_hidden_layers": 62},
    **{"num_attention_heads": 32, "num_key_value_heads": 16, "head_dim": 128, "sliding_window": 1024},
}
_TEXT_01 = {
    **{"vocab_size": 200064, "hidden_size": 6144, "intermediate_size": 9216, "num_hidden_layers": 80},
    **{"num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128, "num_local_experts": 32},
    "layer_types": (["linear_attention"] * 7 + ["full_attention"]) * 10,
}
_NEMOTRON_LETTERS = "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-"
_NEMOTRON_8B = {
    "layers_block_type": [{"M": "mamba", "-": "mlp", "*": "attention"}[one] for one in _NEMOTRON_LETTERS],
    **{"vocab_size": 131072, "hidden_size": 4096, "intermediate_size": 21504, "num_attention_heads": 32},
    **{"num_key_value_heads": 8, "head_dim": 128, "mamba_num_heads": 128, "mamba_head_dim": 64},
    **{"ssm_state_size": 128, "n_groups": 8},
}
_KIMI_48B = {
    "layer_types": [
        "full_attention" if layer % 4 == 0 or layer == 27 else "linear_attention" for layer in range(1, 28)
    ]
}
PUBLISHED: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3-next-80b-a3b": ("qwen3_next", {}),
    "kimi-linear-48b-a3b": ("kimi_linear", _KIMI_48B),
    "deepseek-v3.2": ("deepseek_v32", {}),
    "glm-5": ("glm_moe_dsa", {}),
    "gpt-oss-120b": ("gpt_oss", {}),
    "gemma3-27b": ("gemma3_text", _GEMMA_27B),
    "minimax-m2": ("minimax_m2", {}),
    "minimax-text-01": ("minimax", _TEXT_01),
    "nemotron-h-8b": ("nemotron_h", _NEMOTRON_8B),
}
"""Whole models: those that are their class's defaults, and those whose configuration says more."""


def count_published(name: str) -> dict[str, Any]:
    """Build one whole model and return its configuration and its parameters."""
    model_type, own = PUBLISHED[name]
    return count(model_type, own)


TEXT_PARTS = {
    "glm_ocr_text": ("glm_ocr", "GlmOcrText"),
    "qwen2_5_omni_text": ("qwen2_5_omni", "Qwen2_5OmniText"),
    "qwen3_omni_moe_text": ("qwen3_omni_moe", "Qwen3OmniMoeText"),
}
"""Language parts that no class of their own makes a causal model of: folder, and start of their classes' names."""


def count_text_part(model_type: str) -> dict[str, Any]:
    """Build the language part of a multimodal model, and count an output matrix where it has one of its own."""
    import torch

    folder, name = TEXT_PARTS[model_type]
    configs = import_module(f"transformers.models.{folder}.configuration_{folder}")
    models = import_module(f"transformers.models.{folder}.modeling_{folder}")
    sizes = {**SIZES, **EXTRA.get(model_type, {})}
    config = getattr(configs, f"{name}Config")(**sizes)
    kind = getattr(models, f"{name}Model", None) or getattr(
        models, f"{name.removesuffix('Text')}ThinkerTextModel"
    )
    with torch.device("meta"):
        model = kind(config)
    tied = getattr(config, "tie_word_embeddings", False)
    head = 0 if tied else config.vocab_size * config.hidden_size
    return {
        "config": json.loads(config.to_json_string(use_diff=False)),
        "parameters": sum(parameter.numel() for parameter in model.parameters()) + head,
        "corrections": 0,
    }


def count(model_type: str, own: dict[str, Any] | None = None) -> dict[str, Any]:
    """Build one small model, or the one of ``own`` settings, and return its configuration and its parameters."""
    import torch
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    if own is None and model_type in TEXT_PARTS:
        return count_text_part(model_type)
    small = {**SIZES, **EXPERTS, **EXTRA.get(model_type, {})}
    config = CONFIG_MAPPING[model_type](**(small if own is None else own))
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    corrections = sum(
        buffer.numel() for name, buffer in model.named_buffers() if name.endswith("e_score_correction_bias")
    )
    return {
        "config": json.loads(config.to_json_string(use_diff=False)) | EXTRA.get(model_type, {}),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "corrections": corrections,
    }


def main() -> None:
    """Print every family's figures as JSON; one that cannot be built is named on stderr."""
    warnings.filterwarnings("ignore")
    whole = "--published" in sys.argv[1:]
    table = {}
    for model_type in PUBLISHED if whole else FAMILIES:
        try:
            table[model_type] = count_published(model_type) if whole else count(model_type)
        except Exception as error:
            sys.stderr.write(f"{model_type}: {type(error).__name__}: {error}\n")
    print(json.dumps(table, indent=1, sort_keys=True))


if __name__ == "__main__":
    main()
