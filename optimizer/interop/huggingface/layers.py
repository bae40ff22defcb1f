"""Per-layer patterns: which layers are sparse, which look through a window, which are Mamba blocks."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from layoutopt.optimizer.interop.reading import MAX_LAYERS, shorten
from layoutopt.optimizer.specs.model import LayerShape, Mixer, Mlp

if TYPE_CHECKING:
    from collections.abc import Callable

    from layoutopt.optimizer.interop.huggingface.family import ConfigReader

LINEAR = "linear_attention"
BLOCK_SPARSE = "minimax_m3_sparse"
CHOSEN, POOLED = "compressed_sparse_attention", "heavily_compressed_attention"
COMPRESSIONS = {CHOSEN: 4, POOLED: 128}
"""Tokens of one compressed key by kind of layer (DeepseekV4Config)."""
BLOCK_LETTERS = {"M": "mamba", "-": "mlp", "*": "attention", "E": "moe"}
BLOCK_WORDS = {"linear_attention": "mamba", "mamba2": "mamba", "full_attention": "attention"}


def count_layers(reader: ConfigReader) -> int:
    """Number of decoder layers; hybrid stacks may only list their blocks."""
    # library files list the blocks and may drop num_hidden_layers
    if reader.family.moe == "blocks":
        return len(block_kinds(reader))
    return reader.size("num_hidden_layers", "n_layer", "n_layers", "num_layers", most=MAX_LAYERS)


def block_kinds(reader: ConfigReader) -> list[str]:
    """Kinds of a hybrid stack's blocks: ``mamba``, ``mlp``, ``attention`` or ``moe``.

    Raises ``InputError`` for unknown kinds and where no order is stated.
    """
    fields = reader.fields
    listed = fields.words("layers_block_type", "layer_types")
    pattern = fields.text("hybrid_override_pattern")
    if listed is not None:
        kinds = [BLOCK_WORDS.get(word, word) for word in listed]
    elif pattern is not None:
        kinds = [BLOCK_LETTERS.get(letter, letter) for letter in pattern]
    else:
        allowed = "or layers_block_type: the order of the blocks"
        raise fields.fail("hybrid_override_pattern", "missing", allowed)
    unknown = sorted({kind for kind in kinds if kind not in BLOCK_LETTERS.values()})
    if unknown or not 1 <= len(kinds) <= MAX_LAYERS:
        what = f"block kind {shorten(unknown[0])!r} is not known" if unknown else "no blocks"
        raise fields.fail("hybrid_override_pattern", what, "M mamba, - mlp, * attention, E moe")
    stated = fields.integer("num_hidden_layers")
    if stated is not None and stated != len(kinds):
        reader.defaulted.append(f"num_hidden_layers={len(kinds)} from the block list, not {stated}")
    return kinds


def layer_shapes(reader: ConfigReader, layers: int) -> list[LayerShape]:
    """Return every layer's shape in order."""
    if reader.family.moe == "blocks":
        return _block_shapes(reader)
    if reader.family.compressed:
        return _compressed_shapes(reader, layers)
    sparse = _sparse_layers(reader, layers)
    mixers = _mixers(reader, layers)
    seen = _windows(reader, layers)
    width = 0 if all(sparse) else _dense_width(reader)
    chunks = reader.family.window == "llama4"
    shapes = [
        LayerShape(
            mixer=mixer,
            mlp=Mlp.MOE if is_moe else Mlp.DENSE,
            ffn=0 if is_moe else width,
            window=window,
            chunked=chunks and window is not None,
        )
        for mixer, is_moe, window in zip(mixers, sparse, seen, strict=True)
    ]
    if reader.family.block_indexer:
        chosen = block_sparse_layers(reader) or [False] * layers
        return [replace(shape, sparse=own, indexes=own) for shape, own in zip(shapes, chosen, strict=True)]
    if not reader.family.indexer:
        return shapes
    owns = _indexing_layers(reader, layers)
    return [replace(shape, sparse=True, indexes=own) for shape, own in zip(shapes, owns, strict=True)]


def _compressed_shapes(reader: ConfigReader, layers: int) -> list[LayerShape]:
    """Return layers of experts whose attention has a window and, by kind, compressed keys beside it."""
    fields, window = reader.fields, reader.size("sliding_window")
    rates = {
        kind: fields.section("compress_rates").integer(kind, least=1)
        or fields.integer(f"compress_rate_{short}", least=1)
        or COMPRESSIONS[kind]
        for kind, short in ((CHOSEN, "csa"), (POOLED, "hca"))
    }
    return [
        LayerShape(
            mlp=Mlp.MOE,
            window=window,
            compression=rates.get(kind, 0),
            sparse=kind == CHOSEN,
            indexes=kind == CHOSEN,
        )
        for kind in _compressed_kinds(reader, layers)
    ]


def _compressed_kinds(reader: ConfigReader, layers: int) -> list[str]:
    """Return every layer's kind of attention, in either spelling or by the class's rule."""
    fields = reader.fields
    kinds, ratios = fields.words("layer_types"), fields.items("compress_ratios")
    by_ratio = {0: "sliding_attention"} | {rate: kind for kind, rate in COMPRESSIONS.items()}
    if kinds is None and ratios is not None:
        kinds = tuple(by_ratio.get(ratio, f"compress ratio {shorten(ratio)}") for ratio in ratios)
    elif kinds is None:
        reader.defaulted.append(f"layer_types={POOLED} twice, then it and {CHOSEN} in turn")
        return [CHOSEN if index > 1 and index % 2 else POOLED for index in range(layers)]
    if len(kinds) < layers:
        what = f"{len(kinds)} entries for {layers} layers"
        raise fields.fail("layer_types", what, "one entry per layer")
    for kind in kinds:
        if kind not in by_ratio.values():
            raise fields.fail("layer_types", f"{shorten(kind)!r} is not known", ", ".join(by_ratio.values()))
    return list(kinds[:layers])  # releases list prediction layers behind them


def _mixers(reader: ConfigReader, layers: int) -> list[Mixer]:
    """Return every layer's mixer: linear attention where the class has it and the file, or the class, says so."""
    family, fields = reader.family, reader.fields
    if not family.linear:
        return [Mixer.ATTENTION] * layers
    linear = Mixer(family.linear)
    kinds, listed = (
        fields.words("layer_types"),
        fields.section("linear_attn_config").items("full_attn_layers"),
    )
    numbers = fields.items("attn_type_list")
    if kinds is not None:
        full = _exact([kind != LINEAR for kind in kinds], reader, "layer_types", layers)
    elif listed is not None:
        full = [index + 1 in listed for index in range(layers)]  # counted from 1
    elif numbers is not None:
        full = _exact([number != 0 for number in numbers], reader, "attn_type_list", layers)
    else:
        full = _full_layers(reader, layers, linear)
    return [Mixer.ATTENTION if whole else linear for whole in full]


def _full_layers(reader: ConfigReader, layers: int, linear: Mixer) -> list[bool]:
    stated = reader.fields.integer("full_attention_interval", least=1, most=MAX_LAYERS)
    period = stated or reader.family.full_every
    if not reader.family.full_first:
        return [(index + 1) % period == 0 for index in range(layers)]
    skipped = linear is Mixer.KIMI_DELTA
    return [index % period == 0 and not (skipped and index == 0) for index in range(layers)]


def block_sparse_layers(reader: ConfigReader) -> list[bool]:
    """Tell which layers attend to chosen blocks of keys, in either spelling; none where the file says of none."""
    fields, layers = reader.fields, count_layers(reader)
    kinds = fields.words("layer_types")
    if kinds is not None:  # goes before the older spelling
        return _exact([kind == BLOCK_SPARSE for kind in kinds], reader, "layer_types", layers)
    switched = fields.section("sparse_attention_config").items("sparse_attention_freq")
    if switched is None:
        return []
    return _exact([bool(value) for value in switched], reader, "sparse_attention_freq", layers)


def _indexing_layers(reader: ConfigReader, layers: int) -> list[bool]:
    """Tell which layers have an indexer; the others use the keys of the one before."""
    fields = reader.fields
    # Lists name every layer and go before the period that stands for one where there is none.
    kinds, pattern = fields.words("indexer_types"), fields.data.get("index_topk_pattern")
    if kinds is not None:
        return _exact([kind == "full" for kind in kinds], reader, "indexer_types", layers)
    if pattern is not None:
        return _exact([str(word) in ("F", "full") for word in pattern], reader, "index_topk_pattern", layers)
    every = fields.integer("index_topk_freq", least=1, most=MAX_LAYERS) or 1
    offset = fields.integer("index_skip_topk_offset", least=0, most=MAX_LAYERS)
    offset = 2 if offset is None else offset
    return [max(index - offset + 1, 0) % every == 0 for index in range(layers)]


def _block_shapes(reader: ConfigReader) -> list[LayerShape]:
    width = reader.size("intermediate_size")
    table = {
        "mamba": LayerShape(mixer=Mixer.MAMBA, mlp=Mlp.NONE),
        "attention": LayerShape(mlp=Mlp.NONE, window=reader.optional("sliding_window", least=1)),
        "mlp": LayerShape(mixer=Mixer.NONE, mlp=Mlp.DENSE, ffn=width),
        "moe": LayerShape(mixer=Mixer.NONE, mlp=Mlp.MOE),
    }
    return [table[kind] for kind in block_kinds(reader)]


def _dense_width(reader: ConfigReader) -> int:
    hidden = reader.size("hidden_size", "n_embd", "d_model")
    if reader.family.ffn_is_4_hidden:
        return 4 * hidden
    key = reader.family.dense_width
    width = reader.optional(key, "intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", least=1)
    if width is None and reader.family.name in {"gpt2", "gpt_bigcode", "falcon"}:
        return 4 * hidden  # n_inner and ffn_hidden_size null or absent mean four times the hidden size
    if width is None:
        raise reader.fields.fail(key, "missing", "width of one MLP matrix")
    return width


def _sparse_layers(reader: ConfigReader, layers: int) -> list[bool]:
    rules: dict[str, Callable[[ConfigReader, int], list[bool]]] = {
        "none": lambda _, count: [False] * count,
        "all": lambda _, count: [True] * count,
        "sparse_step": _by_sparse_step,
        "first_dense": _after_first_dense,
        "interleave": _interleaved,
        "span": _in_span,
    }
    return rules[reader.family.moe](reader, layers)


def _by_sparse_step(reader: ConfigReader, layers: int) -> list[bool]:
    step = reader.size("decoder_sparse_step", most=MAX_LAYERS)
    dense = set(_indices(reader, "mlp_only_layers", layers) or [])
    return [index not in dense and (index + 1) % step == 0 for index in range(layers)]


def _after_first_dense(reader: ConfigReader, layers: int) -> list[bool]:
    kinds = reader.fields.words("mlp_layer_types")
    if kinds is not None:
        return _exact([kind == "sparse" for kind in kinds], reader, "mlp_layer_types", layers)
    switched = reader.fields.data.get("moe_layer_freq")
    if isinstance(switched, list):  # 1 for each layer that is sparse
        return _exact([bool(value) for value in switched], reader, "moe_layer_freq", layers)
    first = reader.size("first_k_dense_replace", "num_dense_layers", least=0, most=MAX_LAYERS)
    step = reader.fields.integer("moe_layer_freq", least=1, most=MAX_LAYERS) or 1
    return [index >= first and index % step == 0 for index in range(layers)]


def _interleaved(reader: ConfigReader, layers: int) -> list[bool]:
    listed = _indices(reader, "moe_layers", layers)
    if listed is not None:
        return [index in set(listed) for index in range(layers)]
    step = reader.size("interleave_moe_layer_step", most=MAX_LAYERS)
    return [index % step == step - 1 for index in range(layers)]


def _in_span(reader: ConfigReader, layers: int) -> list[bool]:
    first = reader.size("moe_layer_start_index", least=0, most=MAX_LAYERS)
    last = reader.optional("moe_layer_end_index")
    interval = reader.size("moe_layer_interval", most=MAX_LAYERS)
    end = layers - 1 if last is None else last
    return [first <= index <= end and (index + 1) % interval == 0 for index in range(layers)]


def _indices(reader: ConfigReader, key: str, layers: int) -> list[int] | None:
    values = reader.fields.items(key)
    if values is None:
        return None
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < layers:
            raise reader.fields.fail(key, f"{shorten(value)} is not a layer", f"0 to {layers - 1}")
    return list(values)


def _exact(values: list[bool], reader: ConfigReader, key: str, layers: int) -> list[bool]:
    if len(values) != layers:
        raise reader.fields.fail(key, f"{len(values)} entries for {layers} layers", "one entry per layer")
    return values


def _windows(reader: ConfigReader, layers: int) -> list[int | None]:
    """Window or chunk length of every layer, None for the whole sequence."""
    kinds = reader.fields.words("layer_types")
    if kinds is not None:
        return _listed_windows(reader, kinds, layers)
    windowed = _windowed_layers(reader, layers)
    if not any(windowed):
        return [None] * layers
    length = _window_length(reader)
    return [length if inside else None for inside in windowed]


def _window_length(reader: ConfigReader) -> int | None:
    before = reader.fields.integer("sliding_window_size", least=1) if reader.family.window_heads else None
    if before is not None:  # tokens before the query (MiMoV2FlashConfig)
        return before + 1
    key = "attention_chunk_size" if reader.family.window == "llama4" else "sliding_window"
    return reader.optional(key, least=1)


def _listed_windows(reader: ConfigReader, kinds: tuple[str, ...], layers: int) -> list[int | None]:
    windowed = {"sliding_attention", "chunked_attention"}
    # What only some classes build is unknown in the file of another, whatever the word means elsewhere.
    others = {"full_attention", "attention", "indexed_attention"}
    others |= {LINEAR} if reader.family.linear else set()
    others |= {BLOCK_SPARSE} if reader.family.block_indexer else set()
    _exact([kind in windowed for kind in kinds], reader, "layer_types", layers)
    for kind in kinds:
        if kind not in windowed | others:
            what = f"layer kind {shorten(kind)!r} is not supported"
            raise reader.fields.fail("layer_types", what, "full, sliding or chunked attention")
    return [_window_length(reader) if kind in windowed else None for kind in kinds]


def _windowed_layers(reader: ConfigReader, layers: int) -> list[bool]:
    fields, rule = reader.fields, reader.family.window
    if rule == "all":
        return [True] * layers
    if rule == "alternate":
        return [index % 2 == 0 for index in range(layers)]
    if rule == "gemma3":  # newer files keep the key under an underscore, and the class has 6
        keys = ("sliding_window_pattern", "_sliding_window_pattern")
        period = fields.integer(*keys, least=1, most=MAX_LAYERS) or 6
        return [(index + 1) % period != 0 for index in range(layers)]
    if rule == "period":
        return _by_period(reader, layers)
    if rule == "full_first_of_period":
        listed = fields.items("hybrid_layer_pattern")  # 1 for each layer with a window
        if listed is not None:
            return _exact([bool(value) for value in listed], reader, "hybrid_layer_pattern", layers)
        return [index > 0 and inside for index, inside in enumerate(_by_period(reader, layers))]
    if rule == "full_first":
        return [index % 4 != 0 for index in range(layers)]
    if rule == "switch_rope":
        inside = fields.on("use_sliding_window") and fields.data.get("sliding_window") is not None
        return [inside and not rotary for rotary in _rotary_layers(reader, layers)]
    if rule == "llama4":
        return _rotary_layers(reader, layers)
    if rule in {"qwen2", "switch"} and fields.on("use_sliding_window"):
        first = reader.size("max_window_layers", least=0, most=MAX_LAYERS) if rule == "qwen2" else 0
        return [index >= first for index in range(layers)]
    return [False] * layers


def _by_period(reader: ConfigReader, layers: int) -> list[bool]:
    """Every n-th layer attends to everything; ``LLLG`` is one period of local and global layers, the last is global."""
    fields = reader.fields
    if "sliding_window" in fields and fields.data["sliding_window"] is None:
        return [False] * layers
    stated = fields.data.get("sliding_window_pattern")
    if isinstance(stated, str) and stated and set(stated) <= {"L", "G"}:
        local = [stated[index % len(stated)] == "L" for index in range(layers)]
        return [*local[:-1], False]
    period = reader.size("sliding_window_pattern", "global_attn_every_n_layers", most=MAX_LAYERS)
    return [(index + 1) % period != 0 for index in range(layers)]


def _rotary_layers(reader: ConfigReader, layers: int) -> list[bool]:
    # layers with rotary positions attend within chunks, every fourth one has none and attends to everything
    listed = reader.fields.items("no_rope_layers")
    if listed:
        return _exact([bool(value) for value in listed], reader, "no_rope_layers", layers)
    interval = reader.size("no_rope_layer_interval", most=MAX_LAYERS)
    return [(index + 1) % interval != 0 for index in range(layers)]
