"""The ``architecture`` part of a model file."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator, Field

from layoutopt.optimizer.specs.errors import input_error
from layoutopt.optimizer.specs.file_model import FileModel
from layoutopt.optimizer.specs.kinds import NAMES, FieldKind, quantity, unknown_word, whole, word
from layoutopt.optimizer.specs.layer_parts_file import (
    CompressedFile,
    IndexerFile,
    LinearFile,
    MambaFile,
    MlaFile,
    MoeFile,
    OptionalWidth,
    Switch,
    Width,
    divisors_text,
)
from layoutopt.optimizer.specs.layer_runs import (
    LAYER_KINDS,
    MAX_LAYERS,
    mlp_kinds,
    runs_of,
    with_indexers,
    with_width,
    with_windows,
)
from layoutopt.optimizer.specs.model import (
    CompressedSpec,
    IndexerSpec,
    MambaSpec,
    Mixer,
    MlaSpec,
    Mlp,
    ModelSpec,
    Norm,
)
from layoutopt.optimizer.specs.units import NUMBER, shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from layoutopt.optimizer.specs.file_model import Finding, PartialFields
    from layoutopt.optimizer.specs.model import LayerShape

MAX_VOCAB = 100_000_000
MAX_COMPRESSION = 1_000_000
WINDOW_WORDS = {"sliding": True, "full": False}


def _read_window_pattern(value: Any) -> tuple[bool, ...]:
    words = ["sliding", "full"] if value == "alternating" else value
    if not isinstance(words, list) or not words:
        raise input_error(f"{shown(value)} is not a pattern", "alternating, or a list of sliding and full")
    for item in words:
        if item not in WINDOW_WORDS:
            raise unknown_word(item, WINDOW_WORDS)
    return tuple(WINDOW_WORDS[item] for item in words)


WINDOW_PATTERN = FieldKind(
    read=_read_window_pattern,
    schema={"anyOf": [{"const": "alternating"}, {"type": "array", "items": {"enum": list(WINDOW_WORDS)}}]},
)


class WindowFile(FileModel):
    """Sliding-window or chunked attention."""

    window: Width = Field(description="tokens that a query looks back to, or the length of a chunk")
    chunked: Switch = Field(default=False, description="attention within chunks instead of a sliding window")
    pattern: Annotated[tuple[bool, ...], WINDOW_PATTERN] = Field(
        default=(True,), description="repeated over the layers: alternating, or a list of sliding and full"
    )


def _layer_kind(value: Any) -> LayerShape:
    if isinstance(value, str) and value in LAYER_KINDS:
        return LAYER_KINDS[value]
    raise unknown_word(value, LAYER_KINDS)


def _read_pattern(value: Any) -> tuple[LayerShape, ...]:
    if not isinstance(value, list) or not value or len(value) > MAX_LAYERS:
        allowed = "a list of layer kinds: " + ", ".join(LAYER_KINDS)
        raise input_error(f"{shown(value)} is not a pattern", allowed)
    return tuple(_layer_kind(item) for item in value)


LAYER_KIND = FieldKind(read=_layer_kind, schema={"enum": list(LAYER_KINDS)})
LAYER_PATTERN = FieldKind(read=_read_pattern, schema={"type": "array", "items": {"enum": list(LAYER_KINDS)}})


class BlockFile(FileModel):
    """Equal layers in a row, or a pattern of layers repeated."""

    kind: Annotated[Any, LAYER_KIND] = Field(default=None, description="kind of the layers (or give pattern)")
    pattern: Annotated[Any, LAYER_PATTERN] = Field(
        default=None, description="kinds of the layers of one period"
    )
    count: Annotated[int, whole(most=MAX_LAYERS)] = Field(
        default=1, description="layers, or periods of a pattern"
    )
    ffn: OptionalWidth = Field(
        default=None, description="width of these layers' dense MLP, if not architecture.ffn"
    )
    window: OptionalWidth = Field(default=None, description="sliding window of these layers, tokens")
    chunked: Switch = Field(
        default=False, description="the window is the length of chunks that attend to themselves"
    )
    bidirectional: Switch = Field(default=False, description="attention without causal mask (encoder layers)")
    compression: Annotated[int, whole(least=0, most=MAX_COMPRESSION)] = Field(
        default=0, description="tokens of one compressed key, which these layers have beside their window"
    )
    chosen: Switch = Field(default=False, description="an indexer of the layer chooses its compressed keys")

    @classmethod
    def check(cls, given: PartialFields) -> Iterator[Finding]:
        """Check that either ``kind`` or ``pattern`` is there."""
        if len(given.stated & {"kind", "pattern"}) != 1:
            yield (), "needs either kind or pattern", "kind: " + ", ".join(LAYER_KINDS)

    def layers(self) -> list[LayerShape]:
        """Return the layers in order."""
        period: Sequence[LayerShape] = self.pattern or ((self.kind,) if self.kind else ())
        return [self._shape(shape) for shape in period] * self.count

    def _shape(self, kind: LayerShape) -> LayerShape:
        """Give a kind this entry's width and, if it has attention, its mask."""
        # An entry's pattern may mix kinds: its width is for those that have a dense MLP, its window for those that attend.
        ffn = (self.ffn or 0) if kind.mlp is Mlp.DENSE else 0
        if kind.mixer is not Mixer.ATTENTION:
            return replace(kind, ffn=ffn)
        return replace(
            kind,
            ffn=ffn,
            window=self.window,
            bidirectional=self.bidirectional,
            chunked=self.chunked and self.window is not None,
            compression=self.compression,
            sparse=self.chosen,
            indexes=self.chosen,
        )


SAME = (
    *("hidden", "vocab", "gated", "tied_embeddings", "norm", "attention_bias", "qkv_bias", "mlp_bias"),
    *("qk_norm", "qk_norm_all", "layer_norms", "attention_sinks", "window_sinks", "attention_gate"),
    *("activation_scalars", "head_bias", "learned_positions", "embedding_norm", "mtp_layers", "streams"),
    *("rope_base", "norm_epsilon", "left_out"),
)
"""Fields that ``ModelSpec`` has under the same name."""


def _read_layer_norms(value: Any) -> int:
    # No published layer has 3; ``type`` refuses true, which Python takes for 1.
    if type(value) is int and value in (1, 2, 4):
        return value
    raise input_error(f"{shown(value)} norms per layer", "2, 1 (one that attention and MLP share) or 4")


LAYER_NORMS = FieldKind(read=_read_layer_norms, schema={"enum": [1, 2, 4]})


def _window_mapping(value: Any) -> Any:
    return value if isinstance(value, dict) else {"window": value}


def _or_tokens(schema: dict[str, Any]) -> None:
    schema["anyOf"] = [{"type": "integer", "minimum": 1}, *schema.get("anyOf", [])]


class ArchitectureFile(FileModel):
    """A decoder stack."""

    layers: Annotated[int | None, whole(most=MAX_LAYERS)] = Field(
        default=None, description="number of decoder layers (or give blocks)"
    )
    hidden: Width = Field(description="width of the residual stream")
    heads: OptionalWidth = Field(default=None, description="query heads; needed with attention")
    kv_heads: OptionalWidth = Field(
        default=None, description="key-value heads, a divisor of heads; default heads"
    )
    head_dim: OptionalWidth = Field(default=None, description="width of one head; default hidden / heads")
    v_head_dim: OptionalWidth = Field(default=None, description="width of a value head, if not head_dim")
    window_kv_heads: OptionalWidth = Field(
        default=None, description="key-value heads of layers with a window, if not kv_heads"
    )
    ffn: OptionalWidth = Field(
        default=None, description="width of one dense MLP matrix; needed with dense layers"
    )
    gated: Switch = Field(default=True, description="gated MLP: three matrices instead of two")
    vocab: Annotated[int, whole(most=MAX_VOCAB)] = Field(description="vocabulary, without padding")
    tied_embeddings: Switch = Field(default=False, description="the output matrix is the input embedding")
    norm: Annotated[Norm, word(Norm, {"rmsnorm": Norm.RMS, "layernorm": Norm.LAYER})] = Field(
        default=Norm.RMS, description="normalisation"
    )
    attention_bias: Switch = Field(default=False, description="biases in all attention projections")
    qkv_bias: Switch = Field(default=False, description="biases in the query, key and value projections only")
    mlp_bias: Switch = Field(default=False, description="biases in the dense MLP")
    qk_norm: Switch = Field(default=False, description="RMSNorm on queries and keys per head")
    qk_norm_all: Switch = Field(default=False, description="with qk_norm: the norms span all heads")
    layer_norms: Annotated[int, LAYER_NORMS] = Field(
        default=2,
        description="norm vectors of a layer: 2, 1 (attention and MLP in parallel) or 4 (norms after each too)",
    )
    attention_sinks: Switch = Field(default=False, description="one learned attention sink per head")
    window_sinks: Switch = Field(default=False, description="attention sinks in layers with a window alone")
    attention_gate: Switch = Field(
        default=False, description="a gate of the query's width on attention's output"
    )
    activation_scalars: Annotated[int, whole(least=0, most=64)] = Field(
        default=0, description="learned numbers of one MLP's activation"
    )
    head_bias: Switch = Field(default=False, description="one bias per word in the output matrix")
    learned_positions: Annotated[int, whole(least=0)] = Field(
        default=0, description="length of a learned position table, 0 for none"
    )
    embedding_norm: Switch = Field(default=False, description="a norm after the embedding")
    rope_base: Annotated[float | None, quantity(NUMBER)] = Field(
        default=None, description="base of rotary positions; for launch files"
    )
    norm_epsilon: Annotated[float | None, quantity(NUMBER)] = Field(
        default=None, description="what norms add to the variance; for launch files"
    )
    left_out: Annotated[tuple[str, ...], NAMES] = Field(
        default=(), description="parts of the whole model that are not described; every answer names them"
    )
    mtp_layers: Annotated[int, whole(least=0, most=64)] = Field(
        default=0, description="multi-token-prediction layers"
    )
    moe: MoeFile | None = Field(
        default=None, description="experts; makes the layers MoE unless blocks says which"
    )
    mla: MlaFile | None = Field(default=None, description="multi-head latent attention")
    compressed: CompressedFile | None = Field(
        default=None, description="one shared key and value, beside the compressed keys that blocks names"
    )
    streams: Annotated[int, whole(most=64)] = Field(
        default=1, description="residual streams (hyper-connections)"
    )
    mamba: MambaFile | None = Field(
        default=None, description="Mamba-2 mixers of the layers that blocks names"
    )
    linear: LinearFile | None = Field(
        default=None, description="linear attention of the layers that blocks names"
    )
    indexer: IndexerFile | None = Field(
        default=None, description="sparse attention in every layer that attends"
    )
    sliding_window: Annotated[WindowFile | None, BeforeValidator(_window_mapping)] = Field(
        default=None, description="window in tokens, or {window, pattern}", json_schema_extra=_or_tokens
    )
    blocks: list[BlockFile] | None = Field(
        default=None, description="mixed stack: layer kinds in order with counts"
    )

    @classmethod
    def check(cls, given: PartialFields) -> Iterator[Finding]:
        """Check heads, widths, and that every kind of layer has its numbers."""
        yield from _check_count(given)
        yield from _check_parts(given)
        yield from _check_heads(given)

    def spec(self, name: str, published_parameters: float | None) -> ModelSpec:
        """Convert to the form that the other rooms use."""
        # attention-free stacks never use the numbers of heads
        heads, mla, indexer = self.heads or 1, self.mla, self.indexer
        head_dim = self.head_dim or (
            mla.qk_nope_head_dim + mla.qk_rope_head_dim if mla else self.hidden // heads
        )
        kv_heads = self.kv_heads or heads
        return ModelSpec(
            name=name,
            runs=runs_of(with_width(_indexed(self, _stack(self)), self.ffn or 0)),
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            # What is said and is what holds anyway makes no other model: specs are compared, and digests taken of them.
            v_head_dim=None if self.v_head_dim == head_dim else self.v_head_dim,
            window_kv_heads=None if self.window_kv_heads == kv_heads else self.window_kv_heads,
            moe=self.moe.spec() if self.moe else None,
            mla=MlaSpec(**dict(mla)) if mla else None,
            compressed=CompressedSpec(**dict(self.compressed)) if self.compressed else None,
            mamba=MambaSpec(**dict(self.mamba)) if self.mamba else None,
            linear=self.linear.spec() if self.linear else None,
            indexer=IndexerSpec(**{name: getattr(indexer, name) for name in IndexerSpec.__dataclass_fields__})
            if indexer
            else None,
            published_parameters=published_parameters,
            **{field: getattr(self, field) for field in SAME},
        )


def _stack(given: Any) -> list[LayerShape]:
    """Return the layers of an architecture, or none if the keys that say which are missing or invalid."""
    if given.blocks:
        return [shape for block in given.blocks for shape in block.layers()]
    moe, layers = given.moe, given.layers or 0
    # Checks call this with files that are wrong: more leading layers than layers is said elsewhere.
    if moe is not None and moe.dense_layers > layers:
        return []
    leading, every = (moe.dense_layers, moe.every) if moe else (0, 1)
    shapes = mlp_kinds(layers, moe=moe is not None, dense_layers=leading, every=every)
    window = given.sliding_window
    if window is None:
        return shapes
    return with_windows(shapes, window.window, window.pattern, chunked=window.chunked)


def _indexed(given: Any, shapes: list[LayerShape]) -> list[LayerShape]:
    indexer = given.indexer
    if indexer is None or given.compressed is not None:
        return shapes
    chosen = with_indexers(shapes, indexer.every, indexer.offset)
    # Cut after the count: with leading dense layers ``_check_parts`` allows no ``every`` but 1, which no cut displaces.
    return [*shapes[: indexer.dense_layers], *chosen[indexer.dense_layers :]]


def _check_count(given: PartialFields) -> Iterator[Finding]:
    """Check the number of layers."""
    if not given.stated & {"layers", "blocks"}:
        yield ("layers",), "missing", "number of decoder layers, or blocks"
    if "blocks" not in given.stated:
        return
    if given.blocks is not None and not given.blocks:
        yield ("blocks",), "is empty", "at least one entry, or layers"
    if given.sliding_window:
        yield ("sliding_window",), "is not used with blocks", "window in the entries of blocks"
    # Counted before anything is built: a count of 10^9 in a file must not become a list.
    stacked = sum(len(block.pattern or (0,)) * block.count for block in given.blocks or ())
    if stacked > MAX_LAYERS:
        yield ("blocks",), f"hold {stacked} layers", f"at most {MAX_LAYERS}"
    elif stacked and given.layers and stacked != given.layers:
        yield ("layers",), f"{given.layers}, but blocks hold {stacked}", f"{stacked}, or leave it out"


def _check_parts(given: PartialFields) -> Iterator[Finding]:
    """Check that each kind of layer has its numbers and each part is used."""
    moe, parts = given.moe, ("moe", "mamba", "linear", "blocks")
    # A part that is there and invalid has been told of; without it nothing can be said of the others.
    if any(key in given.stated and getattr(given, key) is None for key in parts):
        return
    if moe and given.blocks and (moe.dense_layers or moe.every != 1):
        key = "dense_layers" if moe.dense_layers else "every"
        yield ("moe", key), "is not used with blocks", "blocks says which layers are MoE"
    elif moe and given.layers and moe.dense_layers + moe.every > given.layers:
        yield ("moe",), f"none of the {given.layers} layers is MoE", "dense_layers + every <= layers"
        return
    stack = _stack(given)
    if not stack:
        return
    uses = {
        "moe": any(shape.mlp is Mlp.MOE for shape in stack),
        "mamba": any(shape.mixer is Mixer.MAMBA for shape in stack),
        "linear": any(shape.mixer.is_linear for shape in stack),
    }
    # A part that no layer uses is an error too: whoever states experts means some layer to have them.
    for key, used in uses.items():
        if used and key not in given.stated:
            yield (key,), "missing", f"blocks names {key} layers"
        elif not used and key in given.stated:
            yield (key,), "is not used", f"no entry of blocks names {key} layers"
    attending = [shape for shape in stack if shape.mixer is Mixer.ATTENTION]
    if "compressed" in given.stated or any(shape.compression or shape.sparse for shape in stack):
        yield from _check_compressed(given, stack)
    elif "indexer" in given.stated and any(shape.window or shape.bidirectional for shape in attending):
        yield ("indexer",), "is not used with windows or encoder layers", "one or the other"
    elif "indexer" in given.stated and not attending:
        yield ("indexer",), "is not used", "no layer attends"
    elif given.indexer and not any(shape.sparse for shape in _indexed(given, stack)):
        what = f"leave no layer of {len(stack)} that chooses keys"
        yield ("indexer", "dense_layers"), what, "fewer"
    elif given.indexer and given.indexer.dense_layers and given.indexer.every != 1:
        yield ("indexer", "dense_layers"), "is not used with every", "one or the other"
    elif given.indexer and given.indexer.top_k % (given.indexer.block or 1):
        yield ("indexer", "top_k"), f"is not a multiple of block {given.indexer.block}", "whole blocks"
    windows = any(shape.window is not None for shape in attending)
    for key in ("window_kv_heads", "window_sinks"):
        if getattr(given, key) and not windows:
            yield (key,), "is not used", "no layer has a window"
    if "ffn" not in given.stated and any(shape.mlp is Mlp.DENSE and not shape.ffn for shape in stack):
        yield ("ffn",), "missing", "width of one dense MLP matrix"


def _check_compressed(given: PartialFields, stack: Sequence[LayerShape]) -> Iterator[Finding]:
    """Check that compressed keys have their numbers, one shared key, and an indexer where they are chosen."""
    chosen = any(shape.sparse for shape in stack)
    if not any(shape.compression for shape in stack):
        yield ("compressed",), "is not used", "an entry of blocks with compression"
    elif "compressed" not in given.stated:
        yield ("compressed",), "missing", "blocks names layers with compression"
    elif "mla" in given.stated:
        yield ("compressed",), "is not used with mla", "one or the other"
    elif chosen != ("indexer" in given.stated):
        key = "missing" if chosen else "is not used"
        yield ("indexer",), key, "an indexer and an entry of blocks with chosen: true come together"
    elif any(shape.sparse and not shape.compression for shape in stack):
        yield ("blocks",), "choose keys without compression", "compression beside chosen: true"
    # Left out, kv_heads is the number of heads, so that 1 has to be stated.
    elif given.kv_heads != 1:
        yield ("kv_heads",), f"{given.kv_heads or given.heads}, but all heads share one key", "1"
    elif given.compressed and given.heads and given.heads % given.compressed.output_groups:
        what = f"heads {given.heads} is not a multiple of {given.compressed.output_groups}"
        yield ("compressed", "output_groups"), what, divisors_text(given.heads)


def _check_heads(given: PartialFields) -> Iterator[Finding]:
    """Check heads against the hidden size and each other."""
    heads, kv_heads = given.heads, given.kv_heads
    if "heads" not in given.stated:
        stack = _stack(given)
        if "mla" in given.stated or not stack or any(shape.mixer is Mixer.ATTENTION for shape in stack):
            yield ("heads",), "missing", "number of query heads"
        return
    if heads is None:
        return
    if given.mla:
        # config.json of DeepSeek-V2 and V3 states as many key-value heads as heads, which the latent makes of one.
        if kv_heads and kv_heads != heads:
            yield ("kv_heads",), f"{kv_heads}, but mla shares one latent", "leave it out"
        for key in ("head_dim", "v_head_dim", "window_kv_heads", "window_sinks"):
            if getattr(given, key):
                yield (key,), "is not used with mla", "leave it out"
        return
    for key in ("kv_heads", "window_kv_heads"):
        groups = getattr(given, key)
        if groups and heads % groups:
            yield (key,), f"heads {heads} is not a multiple of {groups}", divisors_text(heads)
    # Stated, a head's width is its own (Qwen3-0.6B has 16 of 128 on 1,024); left out it is hidden over heads.
    if given.hidden and "head_dim" not in given.stated and given.hidden % heads:
        what = f"missing, and hidden {given.hidden} is not a multiple of heads {heads}"
        yield ("head_dim",), what, "width of one head"
