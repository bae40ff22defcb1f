"""The words that every room shares: axes, frameworks, precisions, schedules, verdicts."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Iterable


class Axis(StrEnum):
    """A mesh axis. The value is the name used in YAML, JSON and mesh orders."""

    TP = "tp"
    CP = "cp"
    EP = "ep"
    DP = "dp"
    PP = "pp"


class Precision(StrEnum):
    """Number format of the linear layers' matrix multiplications."""

    FP16 = "fp16"
    BF16 = "bf16"
    FP8 = "fp8"
    MXFP8 = "mxfp8"
    NVFP4 = "nvfp4"


class NetworkFabric(StrEnum):
    """What joins nodes: it decides which share of the NICs collectives reach, and their latency."""

    INFINIBAND = "infiniband"
    ROCE = "roce"
    EFA = "efa"
    GPUDIRECT_TCP = "gpudirect-tcp"
    SLINGSHOT = "slingshot"
    OMNI_PATH = "omni-path"
    ETHERNET = "ethernet"


class Saver(StrEnum):
    """What saves memory at the price of digits or of traffic to the host; nothing does unless it is asked for."""

    BF16_MOMENTS = "bf16-moments"
    OFFLOAD_ACTIVATIONS = "offload-activations"
    OFFLOAD_OPTIMIZER = "offload-optimizer"


class Optimizer(StrEnum):
    """What turns gradients into updates; its record is in ``cost/optimizers.py``."""

    ADAMW = "adamw"
    ADAM_8BIT = "adam-8bit"
    LION = "lion"
    SGD = "sgd"
    ADAFACTOR = "adafactor"
    MUON = "muon"


class AdapterMethod(StrEnum):
    """How adapters are trained: on frozen weights in 16 bits, or in 4."""

    LORA = "lora"
    QLORA = "qlora"


class AdapterTarget(StrEnum):
    """Which matrices of a layer have an adapter: the mixer's, the MLP's with shared experts, the routed experts'."""

    ATTENTION = "attention"
    MLP = "mlp"
    EXPERTS = "experts"


class FrozenPart(StrEnum):
    """Weights that a run may leave as they are: of the model's ends, and of every block.

    ``attention`` is the mixer of any kind with its indexer, ``mlp`` dense MLPs and shared experts, ``experts`` those that
    are routed to.
    """

    EMBEDDING = "embedding"
    ATTENTION = "attention"
    MLP = "mlp"
    EXPERTS = "experts"
    ROUTER = "router"
    OUTPUT = "output"


class MuonSharing(StrEnum):
    """How ranks that hold a matrix share the orthogonalisation of its update.

    All do all of it; tensor-parallel ranks multiply their parts and add up the products; every matrix has one owner
    among the ranks that share optimizer state.
    """

    DUPLICATED = "duplicated"
    DISTRIBUTED = "distributed"
    OWNER = "owner"


class Fp8Recipe(StrEnum):
    """How FP8 scales are chosen (Transformer Engine recipes)."""

    DELAYED = "delayed"
    CURRENT = "current"
    BLOCKWISE = "blockwise"
    MX = "mx"
    ROWWISE = "rowwise"


class Granularity(StrEnum):
    """Activation recomputation: nothing, chosen modules of every layer, or whole layers."""

    NONE = "none"
    SELECTIVE = "selective"
    FULL = "full"


RECOMPUTE_MODULES = ("core_attn", "mlp", "layernorm", "moe_act", "mla_up_proj", "moe", "shared_experts")
"""Modules that selective recomputation may name (Megatron-LM ``--recompute-modules``)."""

OP_MODULE = "op"
"""torchtitan's selective-op checkpointing: keeps attention outputs and every second multiplication, and
repeats the rest."""


class Schedule(StrEnum):
    """Pipeline schedule. Where ``v_shape`` the second chunk runs from the last rank back to the first."""

    v_shape: bool

    def __new__(cls, name: str, v_shape: bool = False) -> Self:
        member = str.__new__(cls, name)
        member._value_ = name
        member.v_shape = v_shape
        return member

    NONE = "none"
    GPIPE = "gpipe"
    ONE_F_ONE_B = "1f1b"
    INTERLEAVED = "interleaved"
    ZB_H1 = "zb-h1"
    ZB_V = "zb-v", True
    DUALPIPE = "dualpipe"
    DUALPIPE_V = "dualpipe-v", True


class CpComm(StrEnum):
    """Communication of context parallelism."""

    P2P = "p2p"
    ALL_GATHER = "all_gather"
    A2A = "a2a"
    A2A_P2P = "a2a+p2p"


class Dispatcher(StrEnum):
    """How tokens reach their experts: gathered whole, every copy sent, or each token sent once to a rank or a domain."""

    ALLTOALL = "alltoall"
    ALLGATHER = "allgather"
    DEEPEP = "deepep"
    HYBRIDEP = "hybridep"

    @property
    def deduplicates(self) -> bool:
        """Whether a token goes once to every NVLink domain that it reaches, however many experts it has there."""
        return self in (Dispatcher.DEEPEP, Dispatcher.HYBRIDEP)


class CudaGraph(StrEnum):
    """How much of the step is replayed from CUDA graphs."""

    NONE = "none"
    PARTIAL = "partial"
    FULL = "full_iteration"


class Verdict(StrEnum):
    """What ``evaluate`` says about a given layout."""

    FITS = "fits"
    BORDERLINE = "borderline"
    DOES_NOT_FIT = "does_not_fit"
    INVALID = "invalid"


DEFAULT_MESH_ORDER = "tp-cp-ep-dp-pp"
"""Innermost axis first, as Megatron-LM builds it by default."""


_SPELLED_ENDINGS = ("perf", "intotensor", "tensor", "single", "base", "coalesced")
"""What nccl-tests and torch.distributed append to the name of a collective."""


def collective_spelt(text: str, words: Iterable[str]) -> str | None:
    """Return which of some collectives is meant, as NCCL, its tests or torch spell it; None: none of them.

    ``AllReduce``, ``all_reduce_perf`` and ``all_gather_into_tensor`` are spellings of ``all-reduce`` and ``all_gather``.
    """
    # all2all is all-to-all too.
    letters = re.sub(r"[^a-z0-9]|^_*nccl", "", text.lower()).replace("2", "to")
    for ending in _SPELLED_ENDINGS:
        letters = letters.removesuffix(ending)
    return {re.sub("[^a-z]", "", word): word for word in words}.get(letters)
