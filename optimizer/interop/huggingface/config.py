"""Hugging Face ``config.json`` to a model; an architecture that is not known is refused, never guessed."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from layoutopt.optimizer.interop.huggingface.family import ConfigReader, find_family
from layoutopt.optimizer.interop.huggingface.layers import count_layers, layer_shapes
from layoutopt.optimizer.interop.reading import Fields, importer, parse_json, shorten
from layoutopt.optimizer.interop.records import ImportedModel
from layoutopt.optimizer.specs.layer_runs import runs_of
from layoutopt.optimizer.specs.model import (
    CompressedSpec,
    IndexerSpec,
    LinearSpec,
    MambaSpec,
    Mixer,
    MlaSpec,
    Mlp,
    ModelSpec,
    MoeSpec,
    Norm,
)
from layoutopt.optimizer.specs.printable import as_name
from layoutopt.optimizer.specs.vocabulary import Precision

if TYPE_CHECKING:
    from layoutopt.optimizer.specs.model import LayerShape

TEXT_CONFIGS = ("text_config", "language_config", "llm_config", "thinker_config")
NO_TOWERS = (*TEXT_CONFIGS, "quantization_config", "generation_config")
MODALITIES = {"vision", "visual", "image", "img", "video", "audio", "speech"}
DTYPES = {"bfloat16": Precision.BF16, "float16": Precision.FP16}
MTP_KEYS = ("num_nextn_predict_layers", "num_mtp_layers", "mtp_num_hidden_layers", "num_mtp_modules")
EXPERT_KEYS = ("n_routed_experts", "num_local_experts", "num_experts", "moe_num_experts")
TOP_K_KEYS = (
    "num_experts_per_tok", "experts_per_token", "num_experts_per_token", "moe_topk", "moe_k", "moe_top_k",
)  # fmt: skip


@importer
def import_config(text: str, file: str = "", name: str | None = None) -> ImportedModel:
    """Read a ``config.json``.

    Multimodal files are descended into (``text_config``, ``language_config``, ``llm_config``). Raises
    ``InputError`` for architectures that are not known or whose layers have no cost in the model.
    """
    outer = Fields(parse_json(text, file), file=file)
    fields = _language_part(outer)
    reader = ConfigReader(fields, find_family(_model_type(outer, fields), file))
    _refuse_nested_widths(fields)
    _require_written_sizes(outer, fields, reader)
    shapes = layer_shapes(reader, count_layers(reader))
    model = _model(reader, outer, shapes, as_name(name or _name(outer), "imported"))
    length, length_notes = _sequence_length(reader)
    return ImportedModel(
        model=model,
        sequence_length=length,
        precision=_precision(fields, outer),
        notes=(
            *reader.notes(), *_left_out_notes(outer, reader), *length_notes, *_storage_notes(outer, fields),
        ),
    )  # fmt: skip


def _language_part(outer: Fields) -> Fields:
    key, value = outer.find(*TEXT_CONFIGS)
    if not isinstance(value, dict):
        return outer
    # thinker_config of Qwen-Omni holds a text_config of its own beside its encoders.
    inner = outer.section(key)
    return inner.section("text_config") if isinstance(inner.data.get("text_config"), dict) else inner


def _towers(outer: Fields, fields: Fields) -> tuple[str, ...]:
    """Name the parts of a multimodal model that are not read, beside a nested language part or beside flat text keys."""
    nested = fields is not outer
    inner = outer.section("thinker_config").data if isinstance(outer.data.get("thinker_config"), dict) else {}
    mappings = [key for key, value in (*outer.data.items(), *inner.items()) if isinstance(value, dict)]
    # Beside flat text keys only names tell a tower from rope_scaling and the like; beside a nested text part every other
    # configuration is a part of the model.
    towers = [
        as_name(key.removesuffix("_config"))
        for key in mappings
        if MODALITIES & {*key.lower().split("_")}
        or (nested and key.endswith("_config") and key not in NO_TOWERS)
    ]
    return tuple(dict.fromkeys(towers)) or (("everything but the language part",) if nested else ())


def _unread_parts(reader: ConfigReader) -> tuple[str, ...]:
    """Name the parts that the family's class has, the file switches on and the model has no words for."""
    return tuple(words for key, words in reader.family.left_out.items() if reader.fields.on(key))


def _left_out_notes(outer: Fields, reader: ConfigReader) -> tuple[str, ...]:
    towers, parts = _towers(outer, reader.fields), _unread_parts(reader)
    notes = (f"only the language part is read; left out: {', '.join(towers)}",) if towers else ()
    return (*notes, f"left out: {', '.join(parts)}") if parts else notes


def _model_type(outer: Fields, fields: Fields) -> str:
    stated = fields.text("model_type") or outer.text("model_type")
    if stated is None:
        classes = outer.words("architectures") or ("none stated",)
        what = f"missing (architectures: {shorten(', '.join(classes))})"
        how = 'add it to the file, e.g. "model_type": "llama", or write the architecture as a model file'
        raise fields.fail("model_type", what, how)
    return stated


def _refuse_nested_widths(fields: Fields) -> None:
    if fields.items("block_configs"):
        raise fields.fail("block_configs", "Nemotron-NAS is not supported: widths differ from layer to layer")


def _require_written_sizes(outer: Fields, fields: Fields, reader: ConfigReader) -> None:
    # transformers always writes these at the top level; only nested configs drop values equal to the
    # class default
    if fields is outer and reader.family.moe != "blocks":
        fields.required("num_hidden_layers", "n_layer", "n_layers", "num_layers")
    if fields is outer:
        fields.required("hidden_size", "n_embd", "d_model")


def _name(outer: Fields) -> str:
    stated = outer.text("_name_or_path") or ""
    # transformers writes here what was loaded: a hub name, or a path of the machine that saved it.
    return stated.rstrip("/").split("/")[-1] or (outer.text("model_type") or "imported")


def _model(reader: ConfigReader, outer: Fields, shapes: list[LayerShape], name: str) -> ModelSpec:
    family = reader.family
    hidden = reader.size("hidden_size", "n_embd", "d_model")
    heads = reader.size("num_attention_heads", "n_head", "n_heads")
    mla = _mla(reader) if family.attention == "mla" else None
    all_biases = reader.switch(family.attention_bias)
    model = ModelSpec(
        name=name,
        hidden=hidden,
        heads=heads,
        kv_heads=heads if mla else 1 if family.compressed else _kv_heads(reader, heads),
        head_dim=mla.qk_nope_head_dim + mla.qk_rope_head_dim if mla else _head_dim(reader, hidden, heads),
        vocab=reader.size("vocab_size"),
        runs=runs_of(shapes),
        gated=family.gated,
        tied_embeddings=_tied(reader, outer),
        norm=Norm.RMS if family.norm == "rms" else Norm.LAYER,
        attention_bias=all_biases,
        qkv_bias=all_biases or reader.switch(family.qkv_bias),
        mlp_bias=reader.switch(family.mlp_bias),
        qk_norm=reader.switch(family.qk_norm),
        qk_norm_all=family.qk_norm_all,
        layer_norms=family.layer_norms,
        attention_sinks=_sinks(reader),
        attention_gate=family.attention_gate,
        activation_scalars=family.activation_scalars,
        head_bias=reader.switch(family.head_bias),
        learned_positions=_positions(reader),
        rope_base=_rope_base(reader),
        norm_epsilon=reader.fields.fact("rms_norm_eps", "layer_norm_epsilon", "layer_norm_eps", "norm_eps"),
        embedding_norm=family.embedding_norm,
        mtp_layers=(reader.fields.integer(*MTP_KEYS, most=64) or 0) if family.mtp else 0,
        mla=mla,
        compressed=_compressed(reader, heads) if family.compressed else None,
        streams=reader.size("hc_mult", most=64) if family.compressed else 1,
        moe=_moe(reader) if any(shape.mlp is Mlp.MOE for shape in shapes) else None,
        linear=_linear(reader, heads) if any(shape.mixer.is_linear for shape in shapes) else None,
        indexer=_indexer(reader) if any(shape.sparse for shape in shapes) else None,
        left_out=(*_towers(outer, reader.fields), *_unread_parts(reader)),
        mamba=_mamba(reader) if any(shape.mixer.value == "mamba" for shape in shapes) else None,
    )
    return _checked(_with_window_heads(model, reader) if family.window_heads else model, reader)


def _checked(model: ModelSpec, reader: ConfigReader) -> ModelSpec:
    fields = reader.fields
    if model.mla is None and model.heads % model.kv_heads:
        what = f"{model.heads} heads are not a multiple of {model.kv_heads} kv heads"
        raise fields.fail("num_key_value_heads", what)
    if model.moe is not None and model.moe.top_k > model.moe.experts:
        raise fields.fail("num_experts_per_tok", f"top-{model.moe.top_k} of {model.moe.experts} experts")
    # OPT-350m alone: a projection behind the embedding, which the model has no words for.
    word_width = fields.integer("word_embed_proj_dim")
    if word_width is not None and word_width != model.hidden:
        raise fields.fail("word_embed_proj_dim", "embeddings narrower than the hidden size are not supported")
    return model


def _tied(reader: ConfigReader, outer: Fields) -> bool:
    key = "tie_word_embeddings"
    inner = reader.fields.flag(key)
    stated = inner if inner is not None else outer.flag(key)
    if isinstance(outer.data.get("thinker_config"), dict):  # its class has the output matrix
        stated = outer.section("thinker_config").flag(key) is True
    if stated is None:
        reader.defaulted.append(f"tie_word_embeddings={reader.family.tied}")
        return reader.family.tied
    return stated


def _kv_heads(reader: ConfigReader, heads: int) -> int:
    fields, kind = reader.fields, reader.family.attention
    grouped = kind != "falcon" or fields.on("new_decoder_architecture")
    # the class ignores the stated number of kv heads under multi_query
    if not grouped or kind == "multi_query":
        many = reader.switch("multi_query") if kind == "falcon" else fields.flag("multi_query") is not False
        # the remote code of 40B files groups heads although multi_query is set
        legacy = kind == "falcon" and fields.text("model_type") in {"RefinedWeb", "RefinedWebModel"}
        if legacy and fields.integer("n_head_kv", least=1) is not None:
            return fields.required("n_head_kv")
        return 1 if many else heads
    kv_heads = reader.optional("num_key_value_heads", "num_kv_heads", "n_head_kv", least=1)
    return heads if kv_heads is None else kv_heads


def _with_window_heads(model: ModelSpec, reader: ConfigReader) -> ModelSpec:
    """Add what layers with a window have of their own, and the width of value heads; other widths are refused."""
    fields, heads, groups, width = reader.fields, model.heads, model.kv_heads, model.head_dim
    own, value = fields.integer("swa_num_key_value_heads", least=1) or 2 * groups, reader.size("v_head_dim")
    for key, same in (("swa_num_attention_heads", heads), ("swa_head_dim", width), ("swa_v_head_dim", value)):
        stated = fields.integer(key)
        if stated not in (None, same):
            raise fields.fail(key, f"{stated} in layers with a window and {same} in others is not supported")
    if heads % own:
        raise fields.fail("swa_num_key_value_heads", f"{heads} heads are not a multiple of {own} kv heads")
    inside = fields.flag("add_swa_attention_sink_bias") is not False
    if model.attention_sinks and not inside:
        raise fields.fail("add_full_attention_sink_bias", "sinks in layers without a window alone")
    windows = any(shape.window is not None for shape in model.shapes)
    return replace(
        model,
        v_head_dim=None if value == width else value,
        window_kv_heads=own if windows and own != groups else None,
        window_sinks=windows and inside and not model.attention_sinks,
    )


def _sinks(reader: ConfigReader) -> bool:
    """Whether the heads of every layer have sinks."""
    return reader.family.sinks or reader.fields.on("add_full_attention_sink_bias")


def _head_dim(reader: ConfigReader, hidden: int, heads: int) -> int:
    stated = reader.optional("head_dim", "attention_head_dim", "kv_channels", least=1)
    if stated is not None:
        return stated
    if reader.family.head_dim_required:
        raise reader.fields.fail("head_dim", "missing", f"{reader.family.name}'s is not hidden_size / heads")
    if hidden % heads:
        what = f"missing, and hidden_size {hidden} is not a multiple of {heads} heads"
        raise reader.fields.fail("head_dim", what, "state head_dim")
    return hidden // heads


def _positions(reader: ConfigReader) -> int:
    family = reader.family
    return reader.size(*family.positions) + family.extra_positions if family.positions else 0


def _rope_base(reader: ConfigReader) -> float | None:
    """The base of rotary positions, which newer files keep with their scaling."""
    inner = reader.fields.data.get("rope_parameters")
    stated = reader.fields.section("rope_parameters").fact("rope_theta") if isinstance(inner, dict) else None
    return reader.fields.fact("rope_theta", "rotary_emb_base") if stated is None else stated


def _mla(reader: ConfigReader) -> MlaSpec:
    return MlaSpec(
        q_lora_rank=reader.optional("q_lora_rank") or 0,
        kv_lora_rank=reader.size("kv_lora_rank"),
        qk_nope_head_dim=reader.size("qk_nope_head_dim"),
        qk_rope_head_dim=reader.size("qk_rope_head_dim"),
        v_head_dim=reader.size("v_head_dim"),
    )


def _compressed(reader: ConfigReader, heads: int) -> CompressedSpec:
    """Read the latents of attention to one shared key, whatever number of keys the file states."""
    groups = reader.size("o_groups")
    if heads % groups:
        raise reader.fields.fail("o_groups", f"{heads} heads are not a multiple of {groups} groups")
    return CompressedSpec(
        query_rank=reader.size("q_lora_rank"), output_groups=groups, output_rank=reader.size("o_lora_rank")
    )


def _moe(reader: ConfigReader) -> MoeSpec:
    family, fields = reader.family, reader.fields
    width = reader.size(family.expert_width)
    moe = MoeSpec(
        experts=reader.size(*EXPERT_KEYS),
        top_k=reader.size(*TOP_K_KEYS),
        ffn=width,
        shared_ffn=_shared_width(reader, width),
        router_bias=reader.switch(family.router_bias),
        shared_gate=family.shared_gate,
        expert_bias=family.expert_bias,
        router_scaling=fields.fact("routed_scaling_factor"),
        **_groups(reader),
    )
    if fields.integer("moe_latent_size"):
        raise fields.fail("moe_latent_size", "experts on a latent of another width are not supported")
    return moe


def _groups(reader: ConfigReader) -> dict[str, int]:
    """The router's groups, where it has several."""
    groups, limit = reader.optional("n_group"), reader.optional("topk_group")
    # DeepSeek's classes are used with one group, or with all of them allowed, where the router is not limited at all.
    if groups is None or limit is None or not 0 < limit < groups:
        return {}
    return {"router_groups": groups, "router_group_limit": limit}


def _shared_width(reader: ConfigReader, width: int) -> int:
    rule = reader.family.shared
    if reader.family.moe == "blocks":  # the width is that of all shared experts, however many
        any_shared = reader.size("n_shared_experts", least=0) > 0
        return reader.size("moe_shared_expert_intermediate_size", least=0) if any_shared else 0
    if rule == "count":
        keys = ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts")
        return width * (reader.optional(*keys) or 0)
    if rule == "stated":
        return reader.size("shared_intermediate_size", least=0)
    if rule == "width":
        return reader.size("shared_expert_intermediate_size", least=0)
    return width if rule == "one" else 0


def _linear(reader: ConfigReader, heads: int) -> LinearSpec:
    kind, inner = Mixer(reader.family.linear), reader.fields.section("linear_attn_config")
    if kind is Mixer.LIGHTNING:
        width = _head_dim(reader, reader.size("hidden_size"), heads)
        return LinearSpec(
            key_heads=heads, value_heads=heads, key_head_dim=width, value_head_dim=width, conv=0
        )
    if kind is Mixer.GATED_DELTA:
        # what OlmoHybridConfig computes from the other sizes; the other classes have defaults
        key_heads = reader.optional("linear_num_key_heads", least=1) or heads
        low = reader.optional("linear_key_head_dim", least=1)
        width = low or max(3 * reader.size("hidden_size") // (4 * key_heads), 1)
        return LinearSpec(
            key_heads=key_heads,
            value_heads=reader.optional("linear_num_value_heads", least=1) or heads,
            key_head_dim=width,
            value_head_dim=reader.optional("linear_value_head_dim", least=1) or 2 * width,
            conv=reader.size("linear_conv_kernel_dim"),
        )
    own = inner.integer("num_heads", least=1) or reader.size("linear_num_heads")
    width = inner.integer("head_dim", least=1) or reader.size("linear_head_dim")
    conv = inner.integer("short_conv_kernel_size", least=1) or reader.size("linear_conv_kernel_dim")
    return LinearSpec(key_heads=own, value_heads=own, key_head_dim=width, value_head_dim=width, conv=conv)


def _indexer(reader: ConfigReader) -> IndexerSpec:
    if reader.family.block_indexer:
        return _block_indexer(reader)
    heads, head_dim, top_k = map(reader.size, ("index_n_heads", "index_head_dim", "index_topk"))
    return IndexerSpec(heads=heads, head_dim=head_dim, top_k=top_k)


def _block_indexer(reader: ConfigReader) -> IndexerSpec:
    """Read the indexer that chooses blocks of keys, in either spelling."""
    older = reader.fields.section("sparse_attention_config")

    def size(key: str, old: str) -> int:
        """Read a size by its older name where that is stated."""
        return older.integer(old, least=1) or reader.size(key)

    block = size("index_block_size", "sparse_block_size")
    return IndexerSpec(
        heads=size("index_n_heads", "sparse_num_index_heads"),
        head_dim=size("index_head_dim", "sparse_index_dim"),
        top_k=block * size("index_topk_blocks", "sparse_topk_blocks"),
        block=block,
    )


def _mamba(reader: ConfigReader) -> MambaSpec:
    return MambaSpec(
        heads=reader.size("mamba_num_heads"),
        head_dim=reader.size("mamba_head_dim"),
        state=reader.size("ssm_state_size"),
        groups=reader.size("n_groups", "mamba_n_groups"),
        conv=reader.size("conv_kernel", "mamba_d_conv"),
    )


def _sequence_length(reader: ConfigReader) -> tuple[int | None, tuple[str, ...]]:
    fields = reader.fields
    # Long contexts are mostly reached after training, by scaling: nearly all of it ran at the length before.
    rope = fields.data.get("rope_scaling") or fields.data.get("rope_parameters")
    inner = rope.get("original_max_position_embeddings") if isinstance(rope, dict) else None
    stated = inner if type(inner) is int and inner > 0 else None
    original = stated or fields.integer("original_max_position_embeddings", "initial_context_length", least=1)
    if original is not None:
        return original, ("sequence length: the length before rope scaling",)
    keys = ("max_position_embeddings", "n_positions", "seq_length", "max_sequence_length", "max_seq_len")
    length = reader.optional(*keys, least=1)
    return length, () if length is None else ("sequence length: the longest context, training may use less",)


def _precision(fields: Fields, outer: Fields) -> Precision | None:
    for part in (fields, outer):
        for key in ("dtype", "torch_dtype"):
            value = part.data.get(key)
            if isinstance(value, str):
                return DTYPES.get(value.removeprefix("torch."))
    return None


def _storage_notes(outer: Fields, fields: Fields) -> tuple[str, ...]:
    for part in (fields, outer):
        method = part.section("quantization_config").data.get("quant_method")
        if method:
            said = "is how weights are stored, not how they are trained"
            return (f"quantization_config {shorten(method)} {said}",)
    return ()
