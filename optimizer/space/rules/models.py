"""Rules on models: what a framework's model classes can build at all."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.frameworks.torchtitan import ERA_C
from layoutopt.optimizer.space.rule import Rule
from layoutopt.optimizer.specs.layer_runs import indexer_pattern
from layoutopt.optimizer.specs.model import Mixer, Mlp, Norm

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from layoutopt.optimizer.cost.batch import LayoutBatch
    from layoutopt.optimizer.space.context import Context
    from layoutopt.optimizer.space.rule import BoolArray, Detail, Factors, Holds
    from layoutopt.optimizer.specs.layout import Layout
    from layoutopt.optimizer.specs.model import ModelSpec


def _of_no_framework(model: ModelSpec) -> Mapping[str, bool]:
    """What layers none of the frameworks builds."""
    return {
        "value heads of another width": model.v_head_dim is not None,
        "other heads in layers with a window": model.window_kv_heads is not None,
        "attention sinks in layers with a window alone": model.window_sinks,
        "keys of several tokens": model.compressed is not None,
        "several residual streams": model.streams > 1,
    }


def _chunked(ctx: Context) -> bool:
    """Whether tokens attend within chunks; a chunk as long as the sequence is the whole of it, as a window would be."""
    length = ctx.training.sequence_length
    return any(shape.chunked and shape.window is not None and shape.window < length for shape in ctx.shapes)


def _of_megatron_deepspeed(ctx: Context) -> Mapping[str, bool]:
    model, moe = ctx.model, ctx.model.moe
    mixed = moe is not None and (len({shape.mlp for shape in ctx.shapes}) > 1 or bool(moe.shared_ffn))
    return {
        "layers without attention": any(shape.mixer is not Mixer.ATTENTION for shape in ctx.shapes),
        "encoder layers": any(shape.bidirectional for shape in ctx.shapes),
        "multi-head latent attention": model.mla is not None,
        "multi-token prediction": model.mtp_layers > 0,
        "query and key norms": model.qk_norm,
        "attention sinks": model.attention_sinks,
        "sliding windows": ctx.has_windows,
        "sparse attention": model.indexer is not None,
        "gates on attention": model.attention_gate,
        "biases of query, key and value alone": model.qkv_bias and not model.attention_bias,
        "shared experts, or dense layers among sparse ones": mixed,
    }


def _of_megatron(ctx: Context) -> Mapping[str, bool]:
    """What ``pretrain_gpt.py`` had no flags for, or does not build: presence of each by tag.

    Core 0.16 and 0.17 have flags of sparse attention, which their ``gpt_builder`` refuses.
    """
    model, moe, release = ctx.model, ctx.model.moe, ctx.release
    mixed = moe is not None and len({shape.mlp for shape in ctx.shapes}) > 1
    shared = moe is not None and moe.shared_ffn > 0
    mixers = {shape.mixer for shape in ctx.shapes}
    return {
        "Kimi delta attention": Mixer.KIMI_DELTA in mixers,
        "lightning attention": Mixer.LIGHTNING in mixers,
        "chunked attention": _chunked(ctx),
        "gated delta rule": Mixer.GATED_DELTA in mixers and release < (0, 16),
        "sparse attention": model.indexer is not None and release < (0, 18),
        "sparse attention without latent attention": model.indexer is not None and model.mla is None,
        "indexers whose keys layers share": _shared_index(model) and release < (0, 19),
        "indexers in no period of layers": _irregular(model),
        "gates on attention": model.attention_gate and release < (0, 16),
        "multi-token prediction": model.mtp_layers > 0 and release < (0, 12),
        "router biases": moe is not None and moe.router_bias and release < (0, 11),
        "multi-head latent attention": model.mla is not None and release < (0, 10),
        "shared experts, or dense layers among sparse ones": (mixed or shared) and release < (0, 10),
        "gates of shared experts": moe is not None and moe.shared_gate and release < (0, 16),
        "query and key norms": model.qk_norm and release < (0, 6),
    }


def _of_megatron_bridge(ctx: Context) -> Mapping[str, bool]:
    """What no recipe of Megatron-Bridge has layers for: Qwen3-Next's came with core 0.16, GLM-5's with 0.19."""
    model, release = ctx.model, ctx.release
    mixers = {shape.mixer for shape in ctx.shapes}
    return {
        "Kimi delta attention": Mixer.KIMI_DELTA in mixers,
        "lightning attention": Mixer.LIGHTNING in mixers,
        "chunked attention": _chunked(ctx),
        "gated delta rule": Mixer.GATED_DELTA in mixers and release < (0, 16),
        "gates on attention": model.attention_gate and (Mixer.GATED_DELTA not in mixers or release < (0, 16)),
        "sparse attention": model.indexer is not None and (model.mla is None or release < (0, 19)),
        "indexers in no period of layers": _irregular(model),
    }


def _of_torchtitan(ctx: Context) -> Mapping[str, bool]:
    """What its language models have no layers for; Qwen3.5's, with a vision encoder, are none of them."""
    model = ctx.model
    return {
        "layers without attention": any(shape.mixer is not Mixer.ATTENTION for shape in ctx.shapes),
        "layers without an MLP": any(shape.mlp is Mlp.NONE for shape in ctx.shapes),
        "encoder layers": any(shape.bidirectional for shape in ctx.shapes),
        "chunked attention": _chunked(ctx) and ctx.release >= ERA_C,  # Llama 4 went with #3573
        f"layers with {model.layer_norms} norms": model.layer_norms != 2,
        "query and key norms over all heads": model.qk_norm_all,
        "learned numbers in the activation": model.activation_scalars > 0,
        "a bias of the output matrix": model.head_bias,
        "sparse attention": model.indexer is not None,
        "gates on attention": model.attention_gate,
    }


def _shared_index(model: ModelSpec) -> bool:
    return any(shape.sparse and not shape.indexes for shape in model.shapes)


def _irregular(model: ModelSpec) -> bool:
    """Whether no setting says which layers have an indexer; the first layer always has one."""
    pattern = indexer_pattern(model.shapes)
    return pattern is None or (pattern[0] > 1 and pattern[1] < 1)


def _of_nanotron(ctx: Context) -> Mapping[str, bool]:
    model = ctx.model
    # Its model classes are Llama's and Qwen's.
    other = model.norm is not Norm.RMS or not model.gated or model.attention_bias
    return {
        "layers without attention": any(shape.mixer is not Mixer.ATTENTION for shape in ctx.shapes),
        "layers without an MLP": any(shape.mlp is Mlp.NONE for shape in ctx.shapes),
        "encoder layers": any(shape.bidirectional for shape in ctx.shapes),
        "mixture of experts": model.is_moe,
        "multi-head latent attention": model.mla is not None,
        "multi-token prediction": model.mtp_layers > 0,
        "query and key norms": model.qk_norm,
        "attention sinks": model.attention_sinks,
        "sliding windows": ctx.has_windows,
        "sparse attention": model.indexer is not None,
        "gates on attention": model.attention_gate,
        "LayerNorm, ungated MLPs or full biases": other,
        "head dimension other than hidden/heads": model.head_dim * model.heads != model.hidden,
    }


def _lacking(lacks: Callable[[Context], Mapping[str, bool]], ctx: Context) -> list[str]:
    return [name for name, there in {**lacks(ctx), **_of_no_framework(ctx.model)}.items() if there]


def _holds(lacks: Callable[[Context], Mapping[str, bool]]) -> Holds:
    def holds(rows: LayoutBatch, ctx: Context) -> BoolArray:
        """Tell all rows (n,) alike: the model is what counts."""
        return np.full(len(rows), not _lacking(lacks, ctx))

    return holds


def _detail(lacks: Callable[[Context], Mapping[str, bool]]) -> Detail:
    def detail(layout: Layout, ctx: Context) -> tuple[str, Factors]:
        """Say what the framework lacks for the model."""
        missing = ", ".join(_lacking(lacks, ctx))
        return f"{ctx.framework} has no {missing}, which {ctx.model.name} needs", {"missing": missing}

    return detail


def _rule(framework: Framework, lacks: Callable[[Context], Mapping[str, bool]], source: str) -> Rule:
    return Rule(
        name="model_supported",
        formula="the framework's model classes have every part of the model",
        reason="its model code has to build the model",
        source=source,
        reads=frozenset(),
        axis="model",
        holds=_holds(lacks),
        detail=_detail(lacks),
        frameworks=frozenset({framework}),
    )


RULES: tuple[Rule, ...] = (
    _rule(
        Framework.MEGATRON_DEEPSPEED,
        _of_megatron_deepspeed,
        "deepspeedai/Megatron-DeepSpeed megatron/model/{gpt_model,transformer}.py, megatron/arguments.py",
    ),
    _rule(
        Framework.MEGATRON,
        _of_megatron,
        "NVIDIA/Megatron-LM training/arguments.py and core/transformer/transformer_config.py, tags 0.4 to 0.19",
    ),
    _rule(
        Framework.MEGATRON_BRIDGE,
        _of_megatron_bridge,
        "NVIDIA-NeMo/Megatron-Bridge src/megatron/bridge/recipes/{qwen/qwen3_next,glm/h100/glm5}.py, v0.3.0 to v0.6.0",
    ),
    _rule(
        Framework.TORCHTITAN,
        _of_torchtitan,
        "pytorch/torchtitan torchtitan/models/{llama3,deepseek_v3,qwen3,gpt_oss,qwen3_5}/model.py",
    ),
    _rule(Framework.NANOTRON, _of_nanotron, "huggingface/nanotron src/nanotron/models/{llama,qwen}.py"),
)
