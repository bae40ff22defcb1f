"""What is trained: the architecture of a decoder stack and the training run's numbers."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from math import gcd
from typing import TYPE_CHECKING

from layoutopt.optimizer.specs.printable import require_name
from layoutopt.optimizer.specs.vocabulary import (
    AdapterMethod,
    AdapterTarget,
    FrozenPart,
    MuonSharing,
    Optimizer,
)

if TYPE_CHECKING:
    from layoutopt.optimizer.specs.vocabulary import Fp8Recipe, Precision


class Mixer(StrEnum):
    """What mixes tokens in a layer."""

    ATTENTION = "attention"
    MAMBA = "mamba"
    GATED_DELTA = "gated-delta"
    KIMI_DELTA = "kimi-delta"
    LIGHTNING = "lightning"
    NONE = "none"

    @property
    def is_linear(self) -> bool:
        """Whether it is linear attention: keys and values pass through a state of fixed size."""
        return self in (Mixer.GATED_DELTA, Mixer.KIMI_DELTA, Mixer.LIGHTNING)


class Mlp(StrEnum):
    """What follows the mixer in a layer."""

    DENSE = "dense"
    MOE = "moe"
    NONE = "none"


class Norm(StrEnum):
    """Normalisation: RMSNorm has one weight vector, LayerNorm two."""

    RMS = "rms"
    LAYER = "layer"


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerShape:
    """One layer's kind.

    ``window`` is the sliding-window length in tokens, or with ``chunked`` that of chunks within which tokens
    attend, None for attention over the whole sequence. ``ffn`` is the width of one dense MLP matrix
    and 0 unless ``mlp`` is dense. ``bidirectional`` marks encoder layers, whose attention is not causal.
    ``sparse``: a query attends to the keys that an indexer chose, which ``indexes`` says is the layer's own.
    ``compression``: beside the window, tokens that one of the model's compressed keys stands for (0: no such keys).
    """

    mixer: Mixer = Mixer.ATTENTION
    window: int | None = None
    mlp: Mlp = Mlp.DENSE
    ffn: int = 0
    bidirectional: bool = False
    chunked: bool = False
    sparse: bool = False
    indexes: bool = False
    compression: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """``count`` equal blocks in a row; a block is one layer or one period of a repeating pattern.

    Stages end behind any layer: what is split over them is ``by_layer``. ``name`` is the kind reported in
    ``stages[].kinds``.
    """

    name: str
    block: tuple[LayerShape, ...]
    count: int

    @property
    def layers(self) -> int:
        """Number of layers in the run."""
        return self.count * len(self.block)


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeSpec:
    """Routed and shared experts of the layers whose MLP is ``moe``.

    ``shared_ffn`` is the total width of the shared experts (0: none). ``capacity_factor`` None means dropless.
    ``router_bias`` adds one bias per expert, ``shared_gate`` one gate vector. The router chooses within
    ``router_group_limit`` of its ``router_groups`` groups of neighbouring experts (None: among all), and multiplies
    probabilities by ``router_scaling``, which decides no price, so that models which differ in it alone are equal.
    """

    experts: int
    top_k: int
    ffn: int
    shared_ffn: int = 0
    capacity_factor: float | None = None
    router_bias: bool = False
    shared_gate: bool = False
    expert_bias: bool = False
    router_scaling: float | None = field(default=None, compare=False)
    router_groups: int | None = None
    router_group_limit: int | None = None

    @property
    def binding_groups(self) -> tuple[int, int] | None:
        """Groups of the router and how many of them a token may use, where that leaves any out."""
        groups, limit = self.router_groups, self.router_group_limit
        return (groups, limit) if groups and limit and limit < groups else None


PUBLISHED_GROUPS = 8
"""Groups of every published model whose tokens are limited to nodes or devices.

DeepSeek-V2 (arXiv:2405.04434, 2.2.2: experts on 8 devices, a token reaches 3), DeepSeek-V3 (arXiv:2412.19437, 2.1.2 and
3.2.1: 4 nodes of the 8 that experts are on), both ``n_group`` 8 of Hugging Face's config.json.
"""


def groups_of_node_limit(experts: int, node_limit: int) -> dict[str, int]:
    """Return the router's groups that ``node_limit``, an older spelling of their limit, stands for; none if all are allowed.

    A node holds one group: the fewest equal groups, 8 at least, of which the limit leaves some out.
    """
    for groups in range(max(PUBLISHED_GROUPS, node_limit + 1), experts + 1):
        if experts % groups == 0:
            return {"router_groups": groups, "router_group_limit": node_limit}
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class MlaSpec:
    """Multi-head latent attention. ``q_lora_rank`` 0 means a full query projection."""

    q_lora_rank: int
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressedSpec:
    """Attention whose heads share one key that is the value too, beside keys of several tokens each (DeepSeek-V4).

    Queries go through a latent of ``query_rank``, the output of each of ``output_groups`` groups of heads through one of
    ``output_rank``. Which layers have compressed keys, and of how many tokens, is ``LayerShape.compression``.
    """

    query_rank: int
    output_groups: int
    output_rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MambaSpec:
    """Mamba-2 mixer: ``heads`` of ``head_dim``, ``state`` per head, ``groups`` of B and C, convolution."""

    heads: int
    head_dim: int
    state: int
    groups: int
    conv: int = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearSpec:
    """Linear attention: a state of ``key_head_dim`` by ``value_head_dim`` per value head, convolution (0: none)."""

    key_heads: int
    value_heads: int
    key_head_dim: int
    value_head_dim: int
    conv: int = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexerSpec:
    """What chooses ``top_k`` keys for every query by the scores of small heads (DeepSeek-V3.2).

    ``block``: every head chooses whole blocks of so many keys for one group of query heads (MiniMax-M3).
    """

    heads: int
    head_dim: int
    top_k: int
    block: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """A decoder stack.

    ``runs`` lists the layers in order, contiguously split over pipeline stages; with ``order``, the run of every layer,
    runs are the kinds of layers instead, one layer a block (see ``by_layer``). ``heads``, ``kv_heads``
    and ``head_dim`` describe attention without MLA; with ``mla`` only ``heads`` is used. ``v_head_dim`` is the width of a
    value head and ``window_kv_heads`` the KV heads of layers with a window (None: as all others).
    ``learned_positions`` is the length of a learned position table (0: none). ``layer_norms`` are the norm vectors of
    a layer: 2, 1 where attention and MLP run in parallel behind one, 4 with a norm after each of them too.
    ``qk_norm_all`` lets the query and key norms span all heads, ``attention_sinks`` adds one learned number per head,
    ``window_sinks`` those of layers with a window alone,
    ``activation_scalars`` are learned numbers of one MLP's activation, ``head_bias`` adds one bias per word,
    ``attention_gate`` a gate of the query's width on attention's output. ``streams`` are the residual streams that every
    mixer and MLP reads and writes (1, or those of hyper-connections). ``rope_base`` of rotary positions and
    ``norm_epsilon`` are for launch files alone: they decide no price, so that models which differ in them alone are equal,
    and so for ``left_out``, the parts of the whole model that are not described here and not priced (``vision``).
    """

    name: str
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    v_head_dim: int | None = None
    window_kv_heads: int | None = None
    runs: tuple[Run, ...]
    gated: bool = True
    tied_embeddings: bool = False
    norm: Norm = Norm.RMS
    attention_bias: bool = False
    qkv_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    qk_norm_all: bool = False
    layer_norms: int = 2
    attention_sinks: bool = False
    window_sinks: bool = False
    attention_gate: bool = False
    activation_scalars: int = 0
    head_bias: bool = False
    learned_positions: int = 0
    embedding_norm: bool = False
    mtp_layers: int = 0
    moe: MoeSpec | None = None
    mla: MlaSpec | None = None
    compressed: CompressedSpec | None = None
    streams: int = 1
    mamba: MambaSpec | None = None
    linear: LinearSpec | None = None
    indexer: IndexerSpec | None = None
    published_parameters: float | None = None
    order: tuple[int, ...] = ()
    rope_base: float | None = field(default=None, compare=False)
    norm_epsilon: float | None = field(default=None, compare=False)
    left_out: tuple[str, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        """Refuse what may not be a name, whichever way it came in."""
        require_name(self.name)
        for part in self.left_out:
            require_name(part, key="left_out")

    @property
    def layers(self) -> int:
        """Number of decoder layers, without MTP."""
        return sum(run.layers for run in self.runs)

    @property
    def shapes(self) -> tuple[LayerShape, ...]:
        """Every layer, in order."""
        if self.order:
            return tuple(self.runs[run].block[0] for run in self.order)
        return tuple(shape for run in self.runs for shape in run.block * run.count)

    @property
    def value_dim(self) -> int:
        """Width of a value head of attention without MLA."""
        return self.v_head_dim or self.head_dim

    @property
    def common_kv_heads(self) -> int:
        """KV heads into which those of every layer divide."""
        return gcd(self.kv_heads, self.window_kv_heads or 0)  # gcd(n, 0) is n

    def kv_heads_of(self, shape: LayerShape) -> int:
        """KV heads of one layer."""
        return self.window_kv_heads or self.kv_heads if shape.window is not None else self.kv_heads

    def has_sinks(self, shape: LayerShape) -> bool:
        """Whether a layer's heads have learned sinks."""
        return self.attention_sinks or (self.window_sinks and shape.window is not None)

    @property
    def last_shape(self) -> LayerShape:
        """The last layer, which prediction layers repeat."""
        return self.runs[self.order[-1] if self.order else -1].block[-1]

    @property
    def is_moe(self) -> bool:
        """Whether any layer routes tokens to experts."""
        return self.moe is not None

    @property
    def remarks(self) -> tuple[str, ...]:
        """What every answer about the model says of it: which parts of the whole model it leaves out or does not price."""
        parts = ", ".join(self.left_out)
        lacks = "counted neither in parameters nor in time nor in memory"
        left = (f"{self.name} leaves out {parts}: {lacks}",) if self.left_out else ()
        unpriced = ", ".join(self._unpriced)
        counted = "counted in parameters, neither in time nor in what activations keep"
        return (*left, f"{self.name} has {unpriced}: {counted}") if unpriced else left

    @property
    def _unpriced(self) -> tuple[str, ...]:
        """Name the parts whose weights are counted and whose work is not."""
        pooled = any(shape.compression for shape in self.shapes)
        return (
            *(
                (f"{self.streams} residual streams that are mixed around every block",)
                if self.streams > 1
                else ()
            ),
            *(("pooling of keys over several tokens",) if pooled else ()),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerSpec:
    """What updates the weights.

    Of Muon: ``distribution`` None gives every matrix an owner where optimizer state is sharded (ZeRO 1 and above) and
    lets all ranks do all of it where it is not; ``steps`` of the Newton-Schulz iteration.
    """

    kind: Optimizer = Optimizer.ADAMW
    distribution: MuonSharing | None = None
    steps: int = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterSpec:
    """Low-rank adapters of ``rank``, trained on the frozen weights of everything else, the model's ends among it."""

    method: AdapterMethod
    rank: int
    targets: tuple[AdapterTarget, ...]


ADAMW = OptimizerSpec()
"""What updates the weights unless a run says otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSpec:
    """The numbers of the training run that decide cost.

    ``global_batch`` in sequences. ``grad_bytes``, ``moment_bytes`` and ``master_bytes`` are bytes per
    parameter of the gradient buffer, of each moment of the optimizer, and of the master weights; None takes the
    framework preset's value. ``pad_vocab`` rounds the vocabulary up to a multiple of 128*tp.
    ``flash`` False materialises the attention scores. ``fused_loss`` keeps only the 16-bit logits,
    ``loss_chunks`` those of one part of the tokens at a time. ``fp8_param_gather``: weights of linear layers exist in the
    8-bit format alone. ``master_bytes`` 0 trains in 16 bits: gradients and moments take the weights' format unless stated.
    ``adapter``: its parameters alone are trained; else all but those of ``frozen`` parts.
    ``moe_imbalance`` is the load of the fullest expert rank over the mean (>= 1); None takes the constant.
    ``builtin_tokens``: ``total_tokens`` are those of whoever trained a built-in model, and nobody who asks stated them.
    """

    sequence_length: int
    global_batch: int
    precision: Precision
    total_tokens: float | None = None
    fp8_recipe: Fp8Recipe | None = None
    grad_bytes: int | None = None
    moment_bytes: int | None = None
    master_bytes: int | None = None
    pad_vocab: bool | None = None
    flash: bool = True
    dropout: bool = False
    fused_loss: bool | None = None
    loss_chunks: int | None = None
    fp8_param_gather: bool | None = None
    moe_imbalance: float | None = None
    optimizer: OptimizerSpec = ADAMW
    adapter: AdapterSpec | None = None
    frozen: tuple[FrozenPart, ...] = ()
    builtin_tokens: bool = False

    @property
    def stated_tokens(self) -> float | None:
        """Tokens of the whole run if who asks stated them; a fine-tune of a built-in model has others than its makers'."""
        return None if self.builtin_tokens else self.total_tokens

    @property
    def tokens_per_step(self) -> int:
        """Tokens in one optimizer step."""
        return self.sequence_length * self.global_batch
