"""The answer's vocabulary: one parallel layout with its stages."""

from __future__ import annotations

from dataclasses import dataclass, field

from layoutopt.optimizer.specs.vocabulary import DEFAULT_MESH_ORDER, Granularity, Precision, Saver, Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class Recompute:
    """Activation recomputation: the granularity and, when selective, the modules (sorted).

    ``group``: full recomputation starts from one saved input for as many layers (0: every layer from its own).
    """

    granularity: Granularity = Granularity.NONE
    modules: tuple[str, ...] = ()
    group: int = 0


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
    stages: tuple[VirtualStage, ...] = ()

    @property
    def gpus(self) -> int:
        """Number of GPUs the layout uses."""
        return self.tp * self.cp * self.pp * self.dp
