"""Models that Megatron-LM builds from its arguments, and DeepSpeed configurations that a trainer's file names."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import pytest

from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.interop.deepspeed.named import named_deepspeed, require_agreement
from layoutopt.optimizer.interop.launch.flags import ArgFields
from layoutopt.optimizer.interop.megatron.read_model import layer_windows, megatron_model, vocabulary
from layoutopt.optimizer.interop.megatron.variants import read_variant
from layoutopt.optimizer.interop.reading import Fields
from layoutopt.optimizer.interop.sources import import_text
from layoutopt.optimizer.specs.errors import InputError
from layoutopt.optimizer.specs.model import LayerShape, Mixer, Mlp, Norm
from layoutopt.optimizer.specs.vocabulary import Optimizer, Precision

BF16, FP16 = Precision.BF16, Precision.FP16


def imported(kind: str, text: str, **options: Any) -> Any:
    """What is in a launch file."""
    return import_text(text, "f", kind, **options).value


@pytest.mark.parametrize(
    ("name", "built_in", "found", "notes", "missing"),
    [
        ("ds_z3_offload", True, {"zero": 3, "offload": 1.0}, 1, 0),
        ("zero2", True, {"zero": 2, "offload": None}, 0, 0),
        ("zero2_offload", True, {"zero": 2, "offload": 1.0}, 0, 0),
        ("conf/stage1.json", True, {"zero": 1, "offload": None}, 1, 0),
        ("zero-0", False, {"zero": 0, "offload": None}, 1, 0),
        ("x.json", True, {}, 0, 1),
    ],
)
def test_deepspeed_by_the_name_of_its_file(
    name: str, built_in: bool, found: dict[str, Any], notes: int, missing: int
) -> None:
    """The stage is in the name where the file is not there; a word of the trainer's own is no assumption."""
    said: list[str] = []
    lacking: list[str] = []
    read = named_deepspeed(name, lambda _: None, said, lacking, built_in=built_in)
    assert read == {"framework": Framework.DEEPSPEED, **found}
    assert (len(said), len(lacking)) == (notes, missing)


@pytest.mark.parametrize(
    ("stated", "flags", "batch", "said"),
    [
        ({"micro_batch": 2}, {"per_device_train_batch_size": 1}, None, "1 contradicts 2, which train_micro_batch"),
        ({"accumulation": 2}, {"gradient_accumulation_steps": 1}, None, "1 contradicts 2, which gradient_acc"),
        ({"global_batch": 8}, {}, 4, "4 contradicts 8, which train_batch_size of n states"),
        ({"precision": FP16}, {"bf16": True}, None, "bf16 contradicts fp16, which fp16.enabled of n states"),
        ({"precision": BF16}, {"fp16": "true"}, None, "fp16 contradicts bf16, which bf16.enabled of n states"),
        ({"global_batch": 8, "micro_batch": 2, "precision": BF16}, {"per_device_train_batch_size": 2, "bf16": True}, 8, ""),
        ({"micro_batch": 2}, {}, 8, ""),
    ],
)  # fmt: skip
def test_both_places_agree(
    stated: dict[str, Any], flags: dict[str, Any], batch: int | None, said: str
) -> None:
    """Equal values, or one of them; a global batch is compared where nothing else differs."""
    whole = {
        "micro_batch": None,
        "accumulation": None,
        "precision": None,
        "global_batch": None,
        "named": "n",
        **stated,
    }
    require_agreement({}, Fields(flags), batch)
    if not said:
        require_agreement(whole, Fields(flags), batch)
        return
    with pytest.raises(InputError) as raised:
        require_agreement(whole, Fields(flags), batch)
    assert said in str(raised.value) and len(raised.value.problems) == 1


BASE = {"num_layers": 4, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 100}
MODELS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (
        {},
        {
            "layers": 4, "kv_heads": 4, "head_dim": 16, "gated": False, "norm": Norm.LAYER, "attention_bias": True,
            "mlp_bias": True, "qkv_bias": False, "tied_embeddings": True, "qk_norm": False, "moe": None, "mla": None,
            "mtp_layers": 0, "learned_positions": 0, "attention_sinks": False, "runs": 256,
        },
    ),
    ({"swiglu": True, "normalization": "RMSNorm"}, {"gated": True, "norm": Norm.RMS, "runs": 128}),
    ({"hidden_size": 4096, "swiglu": True}, {"runs": 10880}),  # 4 * 4096 * 2 / 3 = 10922, down to a multiple of 64
    ({"ffn_hidden_size": 77}, {"runs": 77}),
    ({"disable_bias_linear": True, "add_qkv_bias": True}, {"attention_bias": False, "qkv_bias": True, "mlp_bias": False}),
    ({"add_bias_linear": True, "add_qkv_bias": True}, {"attention_bias": True, "qkv_bias": False}),
    ({"untie_embeddings_and_output_weights": True}, {"tied_embeddings": False}),
    ({"share_embeddings_and_output_weights": False}, {"tied_embeddings": False}),
    ({"group_query_attention": True, "num_query_groups": 2}, {"kv_heads": 2}),
    ({"group_query_attention": True}, {"kv_heads": 1}),
    ({"num_query_groups": 2}, {"kv_heads": 2}),
    ({"group_query_attention": False, "num_query_groups": 2}, {"kv_heads": 4}),
    ({"num_key_value_heads": 2}, {"kv_heads": 2}),
    ({"kv_channels": 10}, {"head_dim": 10}),
    ({"qk_layernorm": True}, {"qk_norm": True}),
    ({"softmax_type": "learnable"}, {"attention_sinks": True}),
    ({"mtp_num_layers": 1, "rotary_base": 5e5, "norm_epsilon": 1e-5}, {"mtp_layers": 1, "rope_base": 5e5}),
    ({"position_embedding_type": "learned_absolute", "max_position_embeddings": 9}, {"learned_positions": 9}),
    ({"position_embedding_type": "learned_absolute", "seq_length": 8}, {"learned_positions": 8}),
    ({"position_embedding_type": "rope", "seq_length": 8}, {"learned_positions": 0}),
    (
        {"multi_latent_attention": True, "qk_layernorm": True},
        {
            "mla.q_lora_rank": 0, "mla.kv_lora_rank": 32, "mla.qk_nope_head_dim": 128, "mla.qk_rope_head_dim": 64,
            "mla.v_head_dim": 128, "head_dim": 192, "kv_heads": 4, "qk_norm": False,
        },
    ),
    (
        {"num_experts": 8, "disable_bias_linear": True},
        {
            "moe.experts": 8, "moe.top_k": 2, "moe.ffn": 256, "moe.shared_ffn": 0, "moe.router_bias": False,
            "moe.expert_bias": False, "moe.shared_gate": False, "moe.router_groups": None, "moe.capacity_factor": None,
        },
    ),
    (
        {
            "num_moe_experts": 8, "moe_router_topk": 8, "moe_ffn_hidden_size": 7, "moe_shared_expert_intermediate_size": 5,
            "moe_router_num_groups": 4, "moe_router_group_topk": 2, "moe_router_enable_expert_bias": True,
            "moe_layer_freq": "[0,1,1,1]", "disable_bias_linear": True, "moe_shared_expert_gate": True,
            "moe_expert_capacity_factor": 1.5, "moe_router_topk_scaling_factor": 2.5,
        },
        {
            "moe.top_k": 8, "moe.ffn": 7, "moe.shared_ffn": 5, "moe.router_groups": 4, "moe.router_group_limit": 2,
            "moe.router_bias": True, "moe.expert_bias": False, "moe.shared_gate": True, "moe.capacity_factor": 1.5,
            "moe.router_scaling": 2.5,
        },
    ),
    ({"num_experts": 8, "moe_router_num_groups": 4}, {"moe.router_groups": None, "moe.router_group_limit": None}),
]  # fmt: skip


@pytest.mark.parametrize(("data", "expected"), MODELS)
def test_models_of_megatrons_arguments(data: dict[str, Any], expected: dict[str, Any]) -> None:
    """Sizes and switches with the defaults of arguments.py; ``runs`` stands for the width of the first layer."""
    model = megatron_model(Fields({**BASE, **data}), [])
    assert model is not None
    found = {
        name: model.runs[0].block[0].ffn if name == "runs" else attrgetter(name)(model) for name in expected
    }
    assert found == expected


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (
            {"hybrid_override_pattern": "M*"},
            "hybrid_override_pattern: hybrid and heterogeneous stacks are not supported",
        ),
        ({"num_query_groups": 3}, "num_query_groups: 4 heads are not a multiple of 3 groups"),
        ({"hidden_size": 66}, "kv_channels: missing, and hidden size 66 is not a multiple of 4 heads"),
        ({"num_experts": 4, "moe_router_topk": 5}, "moe_router_topk: top-5 of 4 experts"),
        ({"window_size": "x"}, "window_size: 'x' is not a window (LEFT,RIGHT in tokens)"),
        ({"mtp_num_layers": 65}, "mtp_num_layers: 65 is out of range (0 to 64)"),
    ],
)
def test_models_that_megatron_does_not_build(data: dict[str, Any], said: str) -> None:
    """Which argument, and why."""
    with pytest.raises(InputError) as raised:
        megatron_model(Fields({**BASE, **data}), [])
    assert str(raised.value).startswith(said)


def test_an_absent_flag_is_off_on_a_command_line() -> None:
    """What is unstated in a dump is the default on a command line, and is said."""
    notes: list[str] = []
    found = megatron_model(
        ArgFields({**BASE, "num_query_groups": 2, "max_position_embeddings": 9, "seq_length": 8}), notes,
        command_line=True,
    )  # fmt: skip
    assert found is not None and (found.kv_heads, found.learned_positions) == (4, 9)
    assert notes == [
        "ffn_hidden_size 256: Megatron-LM's default from the hidden size",
        "num_query_groups 2 is ignored: --group-query-attention is absent",
        "learned positions: Megatron-LM's default --position-embedding-type",
    ]
    assert megatron_model(Fields({**BASE, "vocab_size": None}), []) is None


@pytest.mark.parametrize(
    ("data", "size", "count"),
    [
        ({"padded_vocab_size": 7}, 7, 0),
        ({"tokenizer_type": "GPT2BPETokenizer"}, 50257, 1),
        ({"merge_file": "m", "vocab_file": "gpt2-vocab.json"}, 50257, 1),
        ({"merge_file": "m", "vocab_file": "own.json"}, None, 0),
        ({"tokenizer_type": "Llama2Tokenizer"}, 32_000, 1),
        (
            {"tokenizer_type": "HuggingFaceTokenizer", "tokenizer_model": "meta-llama/Llama-3.1-8B"},
            128_256,
            1,
        ),
        ({"tokenizer_type": "HuggingFaceTokenizer", "tokenizer_model": "a/other"}, None, 0),
        ({"tokenizer_type": "Other", "tokenizer_model": "meta-llama/Llama-3.1-8B"}, None, 0),
    ],
)
def test_vocabularies_by_their_tokenizer(data: dict[str, Any], size: int | None, count: int) -> None:
    """Those of the models that the tokenizers belong to."""
    notes: list[str] = []
    assert vocabulary(Fields(data), notes) == size
    assert len(notes) == count


@pytest.mark.parametrize(
    ("data", "windows"),
    [
        ({}, [None] * 4),
        ({"window_size": "(127, 0)"}, [128] * 4),
        ({"window_size": [127, 0], "window_attn_skip_freq": 2}, [128, None, 128, None]),
        ({"window_size": "127,0", "window_attn_skip_freq": "[1,0,0,1]"}, [128, None, None, 128]),
        ({"window_size": "-1,0"}, [None] * 4),
        ({"window_size": "0,0"}, [1] * 4),
    ],
)
def test_windows_count_the_token_itself(data: dict[str, Any], windows: list[int | None]) -> None:
    """Tokens to the left and one; every n-th layer sees everything."""
    assert layer_windows(Fields(data), 4) == windows


def test_variants_of_attention() -> None:
    """Linear layers by a list or all but every n-th, with the defaults of TransformerConfig; chosen keys with theirs."""
    shapes = [LayerShape(mlp=Mlp.DENSE, ffn=8)] * 4
    plain, none, _ = read_variant(Fields({}), shapes)
    assert plain == shapes and none is None
    for freq, marks in ((2, "1010"), ("[1,1,0,1]", "1101"), (4, "1110")):
        data = {"experimental_attention_variant": "gdn", "linear_attention_freq": freq}
        mixed, linear, indexer = read_variant(Fields(data), shapes)
        assert "".join(str(int(shape.mixer is Mixer.GATED_DELTA)) for shape in mixed) == marks
        assert linear is not None and indexer is None
        sizes = (
            linear.key_heads,
            linear.value_heads,
            linear.key_head_dim,
            linear.value_head_dim,
            linear.conv,
        )
        assert sizes == (16, 32, 128, 128, 4)
    data = {
        "experimental_attention_variant": "dsa", "dsa_indexer_n_heads": 2, "dsa_indexer_head_dim": 3,
        "dsa_indexer_topk": 4, "dsa_indexer_topk_freq": 2, "dsa_indexer_skip_topk_offset": 0,
    }  # fmt: skip
    chosen, _, own = read_variant(Fields(data), shapes)
    assert own is not None and (own.heads, own.head_dim, own.top_k) == (2, 3, 4)
    assert [shape.indexes for shape in chosen] == [True, False, True, False]
    with pytest.raises(InputError, match="x is not supported"):
        read_variant(Fields({"experimental_attention_variant": "x"}), shapes)
    with pytest.raises(InputError, match="linear_attention_freq: missing"):
        read_variant(Fields({"experimental_attention_variant": "gdn"}), shapes)


def test_optimizers_that_a_configuration_names() -> None:
    """DeepSpeed's own type of optimizer."""
    job = imported("deepspeed-json", '{"train_batch_size": 8, "optimizer": {"type": "Lion"}}')
    assert job.training.optimizer.kind is Optimizer.LION
