"""A model as Megatron-LM flags, or the reason why ``pretrain_gpt.py`` cannot build it."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any

from layoutopt.optimizer.cost.context_parallel import exchange_ranks
from layoutopt.optimizer.interop.megatron.variants import expert_settings, mla_settings, variant_settings
from layoutopt.optimizer.specs.errors import input_error
from layoutopt.optimizer.specs.model import Mixer, Mlp, Norm
from layoutopt.optimizer.specs.vocabulary import CpComm

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from layoutopt.optimizer.frameworks.record import Release
    from layoutopt.optimizer.interop.launch.target import Target
    from layoutopt.optimizer.specs.model import ModelSpec

Flags = list[tuple[str, Any]]


def dense_width(model: ModelSpec) -> int:
    """The one width of dense MLPs (0: there are none). Raises ``InputError`` for several widths."""
    widths = {shape.ffn for shape in model.shapes if shape.mlp is Mlp.DENSE}
    if len(widths) > 1:
        what = f"MLP widths differ from layer to layer: {sorted(widths)}"
        raise input_error(what, "one width", key="model")
    return max(widths, default=0)


def require_gpt(model: ModelSpec) -> None:
    """Raises ``InputError`` for what Megatron's GPT classes and those that follow them cannot build."""
    shapes = model.shapes
    lacking = {
        "Mamba or attention-free layers": any(
            shape.mixer in (Mixer.MAMBA, Mixer.NONE) or shape.mlp is Mlp.NONE for shape in shapes
        ),
        "encoder layers": any(shape.bidirectional for shape in shapes),
        f"layers with {model.layer_norms} norms": model.layer_norms != 2,
        "query and key norms over all heads": model.qk_norm_all,
        "learned numbers in the activation": model.activation_scalars > 0,
        "a bias of the output matrix": model.head_bias,
    }
    for name, there in lacking.items():
        if there:
            what = f"{model.name} has {name}, which this exporter does not write"
            raise input_error(what, "accelerate or deepspeed, which load the Hugging Face model", key="model")


def pattern_text(marks: Sequence[bool]) -> str:
    """Write marks as a list expression: ``([0]*3+[1]*58)``."""
    return "(" + "+".join(f"[{int(mark)}]*{len([*equal])}" for mark, equal in groupby(marks)) + ")"


def as_flags(settings: Iterable[tuple[str, Any]]) -> Flags:
    """Write fields of ``TransformerConfig`` as flags, which have the same names; lists are marks of layers."""
    return [
        (f"--{name.replace('_', '-')}", pattern_text(value) if isinstance(value, list) else value)
        for name, value in settings
    ]


def model_flags(target: Target, notes: list[str]) -> Flags:
    """Architecture flags of ``pretrain_gpt.py``."""
    model = target.model
    ffn = dense_width(model) or (model.moe.ffn if model.moe else 0)
    grouped = model.mla is None and model.kv_heads != model.heads
    biased = model.attention_bias
    notes += unwritten(target)
    if model.attention_bias != model.mlp_bias:
        said = "Megatron-LM has one switch for the biases of attention and MLP: the attention's was used"
        notes.append(said)
    flags: Flags = [
        ("--num-layers", model.layers),
        ("--hidden-size", model.hidden),
        ("--ffn-hidden-size", ffn),
        ("--num-attention-heads", model.heads),
        ("--group-query-attention", grouped),
        ("--num-query-groups", model.kv_heads if grouped else None),
        ("--kv-channels", model.head_dim if model.mla is None else model.mla.v_head_dim),
        ("--swiglu", model.gated),
        ("--disable-bias-linear", not biased),
        ("--add-qkv-bias", model.qkv_bias and not biased),
        ("--no-bias-dropout-fusion", biased_experts(target)),
        ("--qk-layernorm", model.qk_norm or model.mla is not None),
        ("--softmax-type", sinks(target, notes)),
        ("--normalization", "RMSNorm" if model.norm is Norm.RMS else "LayerNorm"),
        ("--norm-epsilon", model.norm_epsilon),
        ("--untie-embeddings-and-output-weights", not model.tied_embeddings),
        ("--rotary-base", rotary_base(target)),
        ("--position-embedding-type", "learned_absolute" if model.learned_positions else "rope"),
        ("--attention-backend", attention_backend(target, notes)),
        ("--attention-dropout", "0.1" if target.training.dropout else "0.0"),
        ("--hidden-dropout", "0.1" if target.training.dropout else "0.0"),
    ]
    flags += mla_flags(model, target.release) + moe_flags(target) + window_flags(model) + mtp_flags(model)
    return flags + as_flags(variant_settings(model, target.release))


BIASED_EXPERTS: Release = (0, 15)
"""megatron-core release whose grouped experts take biases, but not beside fused biases and dropout."""


def biased_experts(target: Target) -> bool:
    """Whether biases and dropout, which are fused by default, must not be."""
    return target.model.is_moe and target.model.attention_bias and target.release >= BIASED_EXPERTS


def attention_backend(target: Target, notes: list[str]) -> str | None:
    """The backend of attention that keeps its scores; the trainer's own choice keeps none."""
    if target.training.flash:
        return None
    if target.release < BACKENDS:
        notes.append("attention that keeps its scores is left out: --attention-backend came with core 0.11")
        return None
    return "unfused"


BACKENDS = (0, 11)
"""megatron-core release with ``--attention-backend``."""

SINKS = (0, 15)
"""megatron-core release with ``softmax_type``."""


def sinks(target: Target, notes: list[str]) -> str | None:
    """The softmax with one learned sink per head, where the model has it and the release knows it."""
    if not target.model.attention_sinks:
        return None
    if target.release < SINKS:
        notes.append("attention sinks are left out: --softmax-type came with core 0.15")
        return None
    return "learnable"


def mla_flags(model: ModelSpec, release: Release) -> Flags:
    """Multi-head latent attention."""
    if model.mla is None:
        return []
    # fused by default, which core 0.11 and 0.12 refuse beside MLA, and later ones beside an indexer
    unfused = (0, 11) <= release < (0, 13) or model.indexer is not None
    return [*as_flags(mla_settings(model)), ("--no-rope-fusion", unfused)]


ROTARY_BASE: Release = (0, 8)
"""megatron-core release with ``--rotary-base``."""

ROUTER_GROUPS: Release = (0, 11)
"""megatron-core release with ``--moe-router-num-groups``, ``-group-topk`` and ``-topk-scaling-factor``."""


def rotary_base(target: Target) -> int | None:
    """The base of rotary positions, which the parser takes as a whole number."""
    base = target.model.rope_base
    return None if base is None or target.release < ROTARY_BASE else round(base)


def router_scaling(target: Target) -> float | None:
    """The factor on the router's probabilities."""
    moe = target.model.moe
    return None if moe is None or target.release < ROUTER_GROUPS else moe.router_scaling


def expert_groups(target: Target) -> tuple[int, int] | None:
    """Groups of the router and how many of them a token may use; None where there is one, or the release has none."""
    moe = target.model.moe
    if moe is None or moe.router_groups is None or moe.router_group_limit is None:
        return None
    several = moe.router_groups > 1 and target.release >= ROUTER_GROUPS
    return (moe.router_groups, moe.router_group_limit) if several else None


def unstated_facts(target: Target, words: dict[str, str]) -> list[str]:
    """Say what the model file leaves open of what a model is beside its sizes, so that the trainer's defaults stand.

    ``words`` are the trainer's for ``rope_base``, ``norm_epsilon`` and ``router_scaling``.
    """
    model, moe = target.model, target.model.moe
    attends = any(shape.mixer is Mixer.ATTENTION for shape in model.shapes)
    needed = {
        "rope_base": model.rope_base is None and not model.learned_positions and attends,
        "norm_epsilon": model.norm_epsilon is None,
        "router_scaling": balances(target) and moe is not None and moe.router_scaling is None,
    }
    lacking = [words[name] for name, there in needed.items() if there and name in words]
    if not lacking:
        return []
    return [f"the model file does not state, so not written: {', '.join(lacking)}; add the model's own"]


OPEN_FLAGS = {
    "rope_base": "--rotary-base (default 10000)",
    "norm_epsilon": "--norm-epsilon (default 1e-5)",
    "router_scaling": "--moe-router-topk-scaling-factor (default none)",
}


def unwritten(target: Target) -> list[str]:
    """What a model is beside its sizes and the launch does not say: the trainer's defaults stand in it."""
    model, moe = target.model, target.model.moe
    notes = unstated_facts(target, OPEN_FLAGS)
    if model.rope_base is not None and target.release < ROTARY_BASE:
        notes.append(f"rope base {model.rope_base:g} is left out: --rotary-base came with core 0.8")
    if moe is not None and moe.router_scaling is not None and target.release < ROUTER_GROUPS:
        flag = "--moe-router-topk-scaling-factor"
        notes.append(f"router scaling {moe.router_scaling:g} is left out: {flag} came with core 0.11")
    if model.embedding_norm:
        notes.append("the norm after the embedding is left out: Megatron-LM builds none")
    return [*notes, *routing_notes(target)]


def routing_notes(target: Target) -> list[str]:
    """Say that a router's groups are left out where the release has none."""
    moe = target.model.moe
    if moe is None or (moe.router_groups or 1) == 1 or target.release >= ROUTER_GROUPS:
        return []
    flag = "--moe-router-num-groups"
    return [f"{moe.router_groups} groups of experts are left out: {flag} came with core 0.11"]


def balances(target: Target) -> bool:
    """Whether the router's biases balance its experts; where all matrices have biases they are its matrix's own."""
    moe = target.model.moe
    return moe is not None and moe.router_bias and not target.model.attention_bias


def moe_flags(target: Target) -> Flags:
    """Experts, their layers and their router."""
    moe = target.model.moe
    if moe is None:
        return []
    sparse = [shape.mlp is Mlp.MOE for shape in target.model.shapes]
    groups = expert_groups(target) or (None, None)
    return [
        ("--num-experts", moe.experts),
        ("--moe-layer-freq", None if all(sparse) else pattern_text(sparse)),
        ("--moe-ffn-hidden-size", moe.ffn if target.release >= (0, 10) else None),  # --ffn-hidden-size before
        ("--moe-router-topk", moe.top_k),
        ("--moe-router-num-groups", groups[0]),
        ("--moe-router-group-topk", groups[1]),
        ("--moe-router-topk-scaling-factor", router_scaling(target)),
        # biases that balance experts are refused beside softmax, the default (core/transformer/transformer_config.py)
        ("--moe-router-score-function", "sigmoid" if balances(target) else None),
        ("--moe-router-enable-expert-bias", balances(target)),
        # softmax over a single chosen expert has no gradient, and is refused (core/transformer/transformer_config.py)
        ("--moe-router-pre-softmax", moe.top_k == 1 and not balances(target)),
        *as_flags(expert_settings(moe)),
    ]


def window_marks(model: ModelSpec) -> tuple[int, list[bool]] | None:
    """Return the one length of sliding windows and which layers have it, None where no layer has one.

    Raises ``InputError`` for several lengths.
    """
    windows = [shape.window for shape in model.shapes]
    lengths = {window for window in windows if window is not None}
    if not lengths:
        return None
    if len(lengths) > 1:
        raise input_error(f"windows of several lengths: {sorted(lengths)}", "one length", key="model")
    return lengths.pop(), [window is not None for window in windows]


def window_flags(model: ModelSpec) -> Flags:
    """Sliding windows: one length, and a pattern where not all layers have it."""
    found = window_marks(model)
    if found is None:
        return []
    length, marks = found
    skip = None if all(marks) else pattern_text(marks)
    return [("--window-size", f"{length - 1},0"), ("--window-attn-skip-freq", skip)]


def cp_kinds(target: Target) -> list[str]:
    """Kinds of context parallelism: one, or one per layer where windows, or chosen keys, rule out the ring."""
    if target.model.indexer is not None:  # every query's keys may lie anywhere
        return [CpComm.ALL_GATHER.value]
    # Transformer Engine refuses windows in a ring, alone and as the outer part of a hierarchy
    # (attention/dot_product_attention/context_parallel.py); exchanged heads and gathered keys see all of the sequence.
    kind, found = target.preset.cp_comm, window_marks(target.model)
    if found is None or kind not in (CpComm.P2P, CpComm.A2A_P2P):
        return [kind.value]
    gathered = CpComm.ALL_GATHER.value
    return [gathered] if all(found[1]) else [gathered if mark else kind.value for mark in found[1]]


def cp_sizes(target: Target) -> list[int]:
    """Sizes of hierarchical context parallelism: ranks that exchange heads, and steps of the ring, as they are priced."""
    layout = target.layout
    inside = int(exchange_ranks(target.model, target.cluster.nvlink_domain, layout.cp, layout.tp))
    return [inside, layout.cp // inside]


def mtp_flags(model: ModelSpec) -> Flags:
    """Multi-token prediction."""
    return [("--mtp-num-layers", model.mtp_layers)] if model.mtp_layers else []
