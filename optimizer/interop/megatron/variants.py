"""Linear attention, chosen keys and gates in Megatron's words, both ways.

NVIDIA/Megatron-LM core/transformer/transformer_config.py from core 0.16 on; ``pretrain_gpt.py`` has a flag for each field.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from layoutopt.optimizer.interop.launch.common import per_layer_pattern
from layoutopt.optimizer.interop.reading import MAX_LAYERS, shorten
from layoutopt.optimizer.specs.layer_runs import indexer_pattern, with_indexers
from layoutopt.optimizer.specs.model import IndexerSpec, LinearSpec, Mixer

if TYPE_CHECKING:
    from layoutopt.optimizer.frameworks.record import Release
    from layoutopt.optimizer.interop.reading import Fields
    from layoutopt.optimizer.specs.model import LayerShape, ModelSpec, MoeSpec

VARIANT = "experimental_attention_variant"
GATED_DELTA = ("gated_delta_net", "gdn")
CHOSEN_KEYS = "dsa"

SHARED_INDEX: Release = (0, 19)
"""megatron-core release whose layers may share an indexer's keys."""

INDEXER_LOSS = 0.001
"""Weight of the indexer's loss, which core 0.16 needs to be stated (Megatron-Bridge's glm5_bridge.py)."""

Settings = list[tuple[str, Any]]


def variant_settings(model: ModelSpec, release: Release) -> Settings:
    """Return the fields of ``TransformerConfig`` that say what is no softmax attention over all keys."""
    # One variant a model: Megatron's field names a single one for all layers that differ from plain attention.
    settings: Settings = [("attention_output_gate", True)] if model.attention_gate else []
    if model.linear is not None:
        linear = model.linear
        return [
            *settings,
            (VARIANT, GATED_DELTA[0]),
            ("linear_attention_freq", [int(shape.mixer is Mixer.GATED_DELTA) for shape in model.shapes]),
            ("linear_conv_kernel_dim", linear.conv),
            ("linear_key_head_dim", linear.key_head_dim),
            ("linear_value_head_dim", linear.value_head_dim),
            ("linear_num_key_heads", linear.key_heads),
            ("linear_num_value_heads", linear.value_heads),
        ]
    if model.indexer is not None:
        indexer = model.indexer
        settings += [
            (VARIANT, CHOSEN_KEYS),
            ("dsa_indexer_n_heads", indexer.heads),
            ("dsa_indexer_head_dim", indexer.head_dim),
            ("dsa_indexer_topk", indexer.top_k),
            ("dsa_indexer_loss_coeff", INDEXER_LOSS),
        ]
        pattern = indexer_pattern(model.shapes)
        if pattern is not None and release >= SHARED_INDEX:
            names = ("dsa_indexer_topk_freq", "dsa_indexer_skip_topk_offset")
            settings += zip(names, pattern, strict=True)
    return settings


def mla_settings(model: ModelSpec) -> Settings:
    """Return the fields of multi-head latent attention, none where the model has none."""
    mla = model.mla
    if mla is None:
        return []
    return [
        ("multi_latent_attention", True),
        ("q_lora_rank", mla.q_lora_rank or None),  # None is a full projection, 0 would be one of rank 0
        ("kv_lora_rank", mla.kv_lora_rank),
        ("qk_head_dim", mla.qk_nope_head_dim),
        ("qk_pos_emb_head_dim", mla.qk_rope_head_dim),
        ("v_head_dim", mla.v_head_dim),
    ]


def expert_settings(moe: MoeSpec) -> Settings:
    """Return the fields of shared experts and of a limited capacity, which pads every expert's tokens to it."""
    return [
        ("moe_shared_expert_intermediate_size", moe.shared_ffn or None),
        ("moe_shared_expert_gate", moe.shared_gate),
        ("moe_expert_capacity_factor", moe.capacity_factor),
        ("moe_pad_expert_input_to_capacity", moe.capacity_factor is not None),
    ]


def read_variant(
    fields: Fields, shapes: list[LayerShape]
) -> tuple[list[LayerShape], LinearSpec | None, IndexerSpec | None]:
    """Return the layers with the stated variant of attention, and its sizes.

    Raises ``InputError`` for one that is not supported.
    """
    variant = fields.text(VARIANT)
    if variant is None:
        return shapes, None, None
    if variant in GATED_DELTA:
        marks = _linear_layers(fields, len(shapes))
        mixed = [
            replace(shape, mixer=Mixer.GATED_DELTA, window=None) if linear else shape
            for shape, linear in zip(shapes, marks, strict=True)
        ]
        return mixed, _linear(fields), None
    if variant != CHOSEN_KEYS:
        allowed = f"{' or '.join(GATED_DELTA)}, or {CHOSEN_KEYS}"
        raise fields.fail(VARIANT, f"{shorten(variant)} is not supported", allowed)
    indexer = IndexerSpec(
        heads=fields.required("dsa_indexer_n_heads"),
        head_dim=fields.required("dsa_indexer_head_dim"),
        top_k=fields.required("dsa_indexer_topk"),
    )
    every = fields.integer("dsa_indexer_topk_freq", least=1, most=MAX_LAYERS) or 1
    # is_dsa_skip_topk_layer of core/transformer/experimental_attention_variant/dsa.py: at least 1
    offset = max(fields.integer("dsa_indexer_skip_topk_offset", most=MAX_LAYERS) or 0, 1)
    return with_indexers(shapes, every, offset), None, indexer


def _linear(fields: Fields) -> LinearSpec:
    """Sizes of linear attention, with the defaults of ``TransformerConfig``."""
    return LinearSpec(
        key_heads=fields.integer("linear_num_key_heads", least=1) or 16,
        value_heads=fields.integer("linear_num_value_heads", least=1) or 32,
        key_head_dim=fields.integer("linear_key_head_dim", least=1) or 128,
        value_head_dim=fields.integer("linear_value_head_dim", least=1) or 128,
        conv=fields.integer("linear_conv_kernel_dim", least=1) or 4,
    )


def _linear_layers(fields: Fields, layers: int) -> list[bool]:
    """Which layers are linear: a list of marks, or all but each n-th."""
    key = "linear_attention_freq"
    value = fields.raw(key)
    if value is None:
        raise fields.fail(key, "missing", "which layers are linear, like ([1]*3+[0])*12 or 4")
    if isinstance(value, int) and not isinstance(value, bool):
        # Each n-th attends (experimental_attention_variant_module_specs.py): other than in moe_layer_freq the last of n.
        step = fields.count(key)
        return [(index + 1) % step != 0 for index in range(layers)]
    return per_layer_pattern(value, layers, key=fields.path(key))
