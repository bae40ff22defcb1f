"""Count the parameters of one small model of every known Hugging Face family, as transformers builds it.

Run with an environment of its own (requirements.txt), where layoutopt need not be installed:
``python benchmarks/families/count.py > tests/data/families.json``. Models are built on the meta device, so nothing is
allocated. Routing corrections that transformers keeps as buffers are counted apart.
"""

from __future__ import annotations

import json
import sys
import warnings
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
)
EXTRA: dict[str, dict[str, Any]] = {
    "glm4_moe": {"head_dim": 64},
    "helium": {"head_dim": 64},  # its output projection is as wide as the hidden size
    "deepseek_v2": {"num_experts_per_tok": 2},
    "dots1": {
        "n_routed_experts": 16,
        "n_shared_experts": 2,
        "num_experts_per_tok": 2,
        "first_k_dense_replace": 1,
    },
}


def count(model_type: str) -> dict[str, Any]:
    """Build one small model and return its configuration and its parameters."""
    import torch
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    config = CONFIG_MAPPING[model_type](**SIZES, **EXPERTS, **EXTRA.get(model_type, {}))
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
    table = {}
    for model_type in FAMILIES:
        try:
            table[model_type] = count(model_type)
        except Exception as error:
            sys.stderr.write(f"{model_type}: {type(error).__name__}: {error}\n")
    print(json.dumps(table, indent=1, sort_keys=True))


if __name__ == "__main__":
    main()
