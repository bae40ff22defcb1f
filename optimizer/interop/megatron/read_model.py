"""The model that Megatron-LM builds from its arguments, with its defaults."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from layoutopt.optimizer.interop.huggingface.names import last_part
from layoutopt.optimizer.interop.launch.common import per_layer_pattern
from layoutopt.optimizer.interop.launch.flags import LeftOpen
from layoutopt.optimizer.interop.megatron.variants import read_variant
from layoutopt.optimizer.interop.reading import MAX_LAYERS, shorten
from layoutopt.optimizer.specs.layer_runs import runs_of
from layoutopt.optimizer.specs.model import LayerShape, MlaSpec, Mlp, ModelSpec, MoeSpec, Norm
from layoutopt.optimizer.specs.printable import as_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from layoutopt.optimizer.interop.reading import Fields

GPT2_VOCAB = 50257
"""Entries of the GPT-2 vocabulary file, the only one that ``GPT2BPETokenizer`` is used with."""

TOKENIZERS = {
    "Llama2Tokenizer": 32_000,
    "Llama3Tokenizer": 128_256,
    r"(meta-)?llama-2-.*|mistral-7b(-instruct)?-v0\.[12]|mixtral-.*": 32_000,
    r"(meta-)?llama-3.*": 128_256,
    "gpt2.*": GPT2_VOCAB,
}
"""Words of tokenizers, by their kind or by the model's name on the hub: those of the models' configurations."""

OF_HUB = ("HuggingFaceTokenizer", "HFTokenizer", "PretrainedFromHF")
TOKENIZER_NAMES = ("tokenizer_model", "tokenizer_name_or_path", "hf_tokenizer_path")

HYBRID = (
    "hybrid_override_pattern", "hybrid_layer_pattern", "heterogeneous_layers_config_path", "is_hybrid_model",
)  # fmt: skip


def megatron_model(fields: Fields, notes: list[str], *, command_line: bool = False) -> ModelSpec | None:
    """Build the model from a namespace of arguments; None when the arguments leave its size open.

    Defaults are those of NVIDIA/Megatron-LM megatron/training/arguments.py; each one used goes into
    ``notes``. ``command_line``: an absent flag is off, as argparse reads it; otherwise (dumps, run configs)
    it is unstated.
    """
    before = len(fields.left_open)
    try:
        model = _stated_model(fields, notes, command_line=command_line)
    except LeftOpen:
        return None
    # a size that only the outside knows is none of the defaults
    return model if len(fields.left_open) == before else None


def _stated_model(fields: Fields, notes: list[str], *, command_line: bool) -> ModelSpec | None:
    for key in HYBRID:
        if fields.raw(key):
            raise fields.fail(key, "hybrid and heterogeneous stacks are not supported", "a GPT model")
    layers = fields.integer("num_layers", least=1, most=MAX_LAYERS)
    hidden = fields.integer("hidden_size", least=1)
    heads = fields.integer("num_attention_heads", least=1)
    vocab = vocabulary(fields, notes)
    if layers is None or hidden is None or heads is None or vocab is None:
        return None
    mla = _mla(fields) if fields.on("multi_latent_attention") else None
    biased = fields.flag("add_bias_linear")
    biased = not fields.on("disable_bias_linear") if biased is None else biased
    gated = fields.on("swiglu", "gated_linear_unit")
    ffn = _ffn(fields, hidden, gated, notes)
    moe = _moe(fields, ffn, biased=biased) if fields.integer("num_experts", "num_moe_experts") else None
    shapes, linear, indexer = read_variant(fields, _shapes(fields, layers, ffn, moe is not None))
    return ModelSpec(
        name=as_name(fields.text("model_name") or "", "imported"),
        hidden=hidden,
        heads=heads,
        # Latent attention has no groups: each head has keys of its own.
        kv_heads=heads if mla else _kv_heads(fields, heads, notes, command_line),
        head_dim=_head_dim(fields, hidden, heads, mla),
        vocab=vocab,
        runs=runs_of(shapes),
        gated=gated,
        tied_embeddings=_tied(fields),
        norm=Norm.RMS if (fields.text("normalization") or "LayerNorm") == "RMSNorm" else Norm.LAYER,
        attention_bias=biased,
        qkv_bias=not biased and fields.on("add_qkv_bias"),
        mlp_bias=biased and any(shape.mlp is Mlp.DENSE for shape in shapes),
        qk_norm=fields.on("qk_layernorm") and mla is None,
        attention_sinks=fields.text("softmax_type") == "learnable",
        embedding_norm=fields.on("embed_layernorm"),  # of BigScience's Megatron-DeepSpeed
        learned_positions=_positions(fields, notes, command_line),
        mtp_layers=fields.integer("mtp_num_layers", most=64) or 0,
        moe=moe,
        mla=mla,
        linear=linear,
        indexer=indexer,
        attention_gate=fields.on("attention_output_gate"),
        rope_base=fields.fact("rotary_base", "rope_theta", "rotary_position_embeddings_theta"),
        norm_epsilon=fields.fact("norm_epsilon", "layernorm_epsilon"),
    )


def vocabulary(fields: Fields, notes: list[str]) -> int | None:
    """Vocabulary size before padding, where the arguments fix it."""
    vocab = fields.integer("vocab_size", "padded_vocab_size", least=1)
    if vocab is not None:
        return vocab
    kind = fields.raw("tokenizer_type")
    # pretrain_gpt.py's own default, which reads both files
    bare = kind is None and "merge_file" in fields and "gpt2" in str(fields.data.get("vocab_file"))
    if kind == "GPT2BPETokenizer" or bare:
        notes.append(f"vocabulary {GPT2_VOCAB}: the GPT-2 vocabulary file of GPT2BPETokenizer")
        return GPT2_VOCAB
    named = next((fields.data[key] for key in TOKENIZER_NAMES if isinstance(fields.data.get(key), str)), "")
    said = str(kind) if kind in TOKENIZERS else last_part(named) if kind in OF_HUB else ""
    size = next((size for pattern, size in TOKENIZERS.items() if re.fullmatch(pattern, said)), None)
    if size is not None:
        notes.append(f"assumed: vocabulary {size}, that of {shorten(said)}")
    return size


def _tied(fields: Fields) -> bool:
    shared = fields.flag("share_embeddings_and_output_weights")
    return not fields.on("untie_embeddings_and_output_weights") if shared is None else shared


def _kv_heads(fields: Fields, heads: int, notes: list[str], command_line: bool) -> int:
    # On a command line the number of groups means nothing without the switch; a dump or a configuration states the number
    # that the model has, and need not state the switch.
    switch = fields.flag("group_query_attention")
    groups = fields.integer("num_query_groups", least=1)
    if fields.integer("num_key_value_heads", least=1) is not None:  # Megatron-DeepSpeed's name
        return fields.required("num_key_value_heads")
    if switch is False or (switch is None and command_line):
        if groups is not None and groups != heads:
            notes.append(f"num_query_groups {groups} is ignored: --group-query-attention is absent")
        return heads
    if groups is None and switch:
        notes.append("num_query_groups 1: Megatron-LM's default under --group-query-attention")
        return 1
    kv_heads = heads if groups is None else groups
    if heads % kv_heads:
        raise fields.fail("num_query_groups", f"{heads} heads are not a multiple of {kv_heads} groups")
    return kv_heads


def _head_dim(fields: Fields, hidden: int, heads: int, mla: MlaSpec | None) -> int:
    if mla is not None:
        return mla.qk_nope_head_dim + mla.qk_rope_head_dim
    stated = fields.integer("kv_channels", least=1)
    if stated is None and hidden % heads:
        what = f"missing, and hidden size {hidden} is not a multiple of {heads} heads"
        raise fields.fail("kv_channels", what)
    return stated or hidden // heads


def _ffn(fields: Fields, hidden: int, gated: bool, notes: list[str]) -> int:
    stated = fields.integer("ffn_hidden_size", least=1)
    if stated is not None:
        return stated
    # arguments.py: 4h, or under --swiglu two thirds of it rounded down to a multiple of 64
    width = int(4 * hidden * 2 / 3 / 64) * 64 if gated else 4 * hidden
    notes.append(f"ffn_hidden_size {width}: Megatron-LM's default from the hidden size")
    return max(1, width)


def _positions(fields: Fields, notes: list[str], command_line: bool) -> int:
    if fields.on("use_rotary_position_embeddings"):
        return 0
    kind = fields.text("position_embedding_type")
    if kind is None and command_line:
        notes.append("learned positions: Megatron-LM's default --position-embedding-type")
        kind = "learned_absolute"
    if kind != "learned_absolute":
        return 0
    # Megatron-Bridge builds a table as long as its sequences (models/gpt_provider.py)
    keys = ("max_position_embeddings",) if command_line else ("max_position_embeddings", "seq_length")
    return fields.integer(*keys, least=1) or 0


def _mla(fields: Fields) -> MlaSpec:
    read: Callable[[str, int], int] = lambda key, default: fields.integer(key, least=1) or default  # noqa: E731
    return MlaSpec(
        q_lora_rank=fields.integer("q_lora_rank") or 0,
        kv_lora_rank=read("kv_lora_rank", 32),
        qk_nope_head_dim=read("qk_head_dim", 128),
        qk_rope_head_dim=read("qk_pos_emb_head_dim", 64),
        v_head_dim=read("v_head_dim", 128),
    )


def _moe(fields: Fields, ffn: int, *, biased: bool) -> MoeSpec:
    experts = fields.raw("num_experts") or fields.raw("num_moe_experts")
    if isinstance(experts, list):  # Megatron-DeepSpeed takes one number per MoE layer
        what = f"{shorten(experts)}: a number of experts per layer is not supported"
        raise fields.fail("num_experts", what)
    groups = fields.integer("moe_router_num_groups", least=1)
    limit = fields.integer("moe_router_group_topk", least=1)
    moe = MoeSpec(
        experts=fields.required("num_experts", "num_moe_experts"),
        top_k=fields.integer("moe_router_topk", "topk", least=1) or 2,
        ffn=fields.integer("moe_ffn_hidden_size", least=1) or ffn,
        shared_ffn=fields.integer("moe_shared_expert_intermediate_size") or 0,
        capacity_factor=fields.number("moe_expert_capacity_factor"),
        router_bias=fields.on("moe_router_enable_expert_bias") or biased,
        shared_gate=fields.on("moe_shared_expert_gate"),
        expert_bias=biased,
        router_scaling=fields.fact("moe_router_topk_scaling_factor"),
        router_groups=groups if limit else None,
        router_group_limit=limit if groups else None,
    )
    if moe.top_k > moe.experts:
        raise fields.fail("moe_router_topk", f"top-{moe.top_k} of {moe.experts} experts")
    return moe


def _shapes(fields: Fields, layers: int, ffn: int, has_experts: bool) -> list[LayerShape]:
    every = fields.raw("moe_layer_freq")
    sparse = per_layer_pattern(1 if every is None else every, layers, key=fields.path("moe_layer_freq"))
    windows = layer_windows(fields, layers)
    return [
        LayerShape(mlp=Mlp.MOE, window=window)
        if is_moe and has_experts
        else LayerShape(ffn=ffn, window=window)
        for is_moe, window in zip(sparse, windows, strict=True)
    ]


def layer_windows(fields: Fields, layers: int) -> list[int | None]:
    """Return each layer's sliding window in tokens, None for the whole sequence.

    Raises ``InputError`` for windows that are no pair of tokens.
    """
    value = fields.raw("window_size")
    if value is None:
        return [None] * layers
    parts = value if isinstance(value, list | tuple) else str(value).strip("()[] ").split(",")
    try:
        left = int(parts[0])
    except (ValueError, TypeError, IndexError, OverflowError):
        what = f"{shorten(value)!r} is not a window"
        raise fields.fail("window_size", what, "LEFT,RIGHT in tokens") from None
    skip = fields.raw("window_attn_skip_freq")
    if left < 0:  # -1 is Transformer Engine's word for no window
        return [None] * layers
    # Tokens to the left of the query's own, which counts too.
    if skip is None:
        return [left + 1] * layers
    if isinstance(skip, int) and not isinstance(skip, bool) and skip > 0:
        return [None if (index + 1) % skip == 0 else left + 1 for index in range(layers)]
    marks = per_layer_pattern(skip, layers, key=fields.path("window_attn_skip_freq"))
    return [left + 1 if mark else None for mark in marks]
