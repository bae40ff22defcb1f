"""The answer's vocabulary: one parallel layout with its stages."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from layoutopt.optimizer.specs.vocabulary import (
    DEFAULT_MESH_ORDER,
    CpComm,
    CudaGraph,
    Dispatcher,
    Granularity,
    Precision,
    Saver,
    Schedule,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recompute:
    """Activation recomputation: the granularity and, when selective, the modules (sorted).

    ``group``: full recomputation starts from one saved input for as many layers (0: every layer from its own).
    """

    granularity: Granularity = Granularity.NONE
    modules: tuple[str, ...] = ()
    group: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Switches:
    """Launch switches that a layout states; None leaves one as the trainer's preset has it.

    ``ep_overlap`` runs expert traffic of one micro-batch beside the compute of another, ``delay_wgrad`` moves weight
    gradients to where they hide more of it, ``shared_expert_overlap`` runs it beside the shared experts. ``tp_overlap``,
    ``dp_overlap`` and ``param_overlap`` run tensor-parallel traffic, gradient reductions and parameter gathers beside
    compute. ``cp_kind`` is how context parallelism communicates, ``compiled`` fuses kernels (torch.compile). The records
    are in ``frameworks/switches.py``.
    """

    ep_overlap: bool | None = None
    delay_wgrad: bool | None = None
    shared_expert_overlap: bool | None = None
    dispatcher: Dispatcher | None = None
    tp_overlap: bool | None = None
    dp_overlap: bool | None = None
    param_overlap: bool | None = None
    cp_kind: CpComm | None = None
    cuda_graph: CudaGraph | None = None
    loss_chunks: int | None = None
    fp8_param_gather: bool | None = None
    compiled: bool | None = None

    def stated(self) -> dict[str, bool | int | str]:
        """Return what is stated, by name."""
        values = ((item.name, getattr(self, item.name)) for item in fields(self))
        return {name: value for name, value in values if value is not None}

    def __bool__(self) -> bool:
        return self != _NONE_STATED


_NONE_STATED = Switches()


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualStage:
    """One model chunk: entry ``chunk * pp + rank`` of ``Layout.stages``.

    ``kinds`` maps run names to numbers of layers and sums to ``layers``; ``recomputed`` counts fully
    recomputed layers and ``recomputed_kinds`` says of which kinds (empty: the chunk's first ones, as
    Megatron-LM does).
    """

    rank: int
    chunk: int
    layers: int
    kinds: dict[str, int] = field(default_factory=dict)
    recomputed: int = 0
    recomputed_kinds: dict[str, int] = field(default_factory=dict)
    embedding: bool = False
    head: bool = False
    mtp: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """A complete parallel layout.

    ``dp`` = GPUs / (tp*cp*pp), ``micro_batches`` = global batch / (dp*micro_batch). ``zero`` 0-3 with
    ``hsdp_shard`` ranks per shard group (None: the whole data-parallel group). ``mesh_order`` is innermost
    first. ``savers`` are sorted. ``stages`` has pp*vp entries, chunk-major; empty means the most even split.
    """

    tp: int = 1
    sp: bool = False
    cp: int = 1
    pp: int = 1
    vp: int = 1
    ep: int = 1
    etp: int = 1
    dp: int = 1
    zero: int = 0
    hsdp_shard: int | None = None
    micro_batch: int = 1
    micro_batches: int = 1
    recompute: Recompute = field(default_factory=Recompute)
    schedule: Schedule = Schedule.NONE
    mesh_order: str = DEFAULT_MESH_ORDER
    precision: Precision = Precision.BF16
    savers: tuple[Saver, ...] = ()
    switches: Switches = field(default_factory=Switches)
    stages: tuple[VirtualStage, ...] = ()

    @property
    def gpus(self) -> int:
        """Number of GPUs the layout uses."""
        return self.tp * self.cp * self.pp * self.dp
