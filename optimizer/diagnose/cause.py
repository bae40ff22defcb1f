"""What a cause is: its kinds, from which size on one is named, and what would help."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from layoutopt.optimizer.specs.vocabulary import Axis

if TYPE_CHECKING:
    from collections.abc import Iterable


class CauseKind(StrEnum):
    """What can be wrong with a run."""

    MICRO_BATCHES = "micro_batches"
    DATA_LOADER = "data_loader"
    CHECKPOINT = "checkpoint"
    RECOMPUTATION = "recomputation"
    UNFUSED_ATTENTION = "unfused_attention"
    DROPOUT = "dropout"
    SLOW_RANK = "slow_rank"
    EXPERT_IMBALANCE = "expert_imbalance"
    SLOW_KERNELS = "slow_kernels"
    NO_OVERLAP = "no_overlap"
    SLOW_LINK = "slow_link"
    NO_CUDA_GRAPH = "no_cuda_graph"
    HOST_BOUND = "host_bound"
    HOST_PAUSE = "host_pause"
    UNKNOWN_KERNELS = "unknown_kernels"
    UNEXPLAINED = "unexplained"
    FASTER = "faster"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """One cause: what it is, the seconds of a step that it explains, and what shows it.

    ``about`` names the axis, the part or the rank that it is about; ``remedy`` what would help.
    """

    kind: CauseKind
    about: str
    seconds: float
    words: str
    evidence: tuple[str, ...]
    remedy: str = ""


LEAST_SHARE = 0.015
"""Share of the predicted step below which nothing is named: half of the 3% by which repeats of one layout differ."""

LEAST_GAP = 0.03
"""Share of the predicted step from which a gap, or one of a term, is more than repeats of one layout differ."""

UNCLASSED = 0.05
"""Share of the step in kernels of no known kind from which they may hide what its gap consists of."""

LEAST_RATIO = 1.08
"""Measured over predicted from which a kind of kernel, or a link, counts as slow where few runs tell what is usual."""

LINK_RATIO = 1.1
"""Measured over predicted time of collectives from which a link counts as slow."""

HIDDEN = 0.5
"""Share of an axis' traffic that kernels hide below which it counts as not overlapped."""

LESS_HIDDEN = 0.25
"""Share of an axis' traffic by which kernels must hide less than predicted where it counts as not overlapped."""

FLAGS = {
    Axis.DP: "--overlap-grad-reduce --overlap-param-gather (Megatron-LM)",
    Axis.TP: "--tp-comm-overlap (Megatron-LM)",
    Axis.EP: "--overlap-moe-expert-parallel-comm or --moe-shared-expert-overlap (Megatron-LM)",
    Axis.PP: "--overlap-p2p-communication (Megatron-LM)",
    Axis.CP: "--cp-comm-type p2p (Megatron-LM)",
}

REMEDIES = {
    CauseKind.MICRO_BATCHES: "micro-batch and global batch of the launch as in the plan",
    CauseKind.DATA_LOADER: "more loader workers, prefetching, data on local storage",
    CauseKind.CHECKPOINT: "asynchronous checkpoints, or a profile without one",
    CauseKind.RECOMPUTATION: "recomputation of the launch as in the plan",
    CauseKind.UNFUSED_ATTENTION: "a fused attention backend (flash attention, cuDNN)",
    CauseKind.DROPOUT: "--hidden-dropout 0 --attention-dropout 0 (Megatron-LM), dropout 0 in the model's configuration",
    CauseKind.SLOW_RANK: "that GPU's clocks, temperature and power limit; leave its node out",
    CauseKind.EXPERT_IMBALANCE: "a balancing loss or bias of the router, a capacity factor",
    CauseKind.SLOW_KERNELS: "a faster kernel library; or calibrate, if all layouts of this machine show it",
    CauseKind.SLOW_LINK: "nccl-tests over the same ranks; the links, NICs and switches between them",
    CauseKind.NO_CUDA_GRAPH: "--enable-cuda-graph or --cuda-graph-impl (Megatron-LM)",
    CauseKind.HOST_BOUND: "CUDA graphs, compilation, fewer and larger kernels; pinned processes, no synchronisation",
    CauseKind.HOST_PAUSE: "a range around each of them (torch.profiler.record_function, NVTX) tells which",
    CauseKind.UNKNOWN_KERNELS: "names or ranges of these kernels; their terms stand under other kernels",
    CauseKind.UNEXPLAINED: "the parts of that term (--verbose), traces of more ranks; or calibrate, if all layouts show it",
    CauseKind.FASTER: "batch, sequence length, layers and GPU of the run against the plan's; then calibrate",
}
"""What would help against a kind of cause, whatever it is about."""


def cause(kind: CauseKind, about: str, seconds: float, words: str, *evidence: str, remedy: str = "") -> Cause:
    """Return a cause with the remedy of its kind where it has none of its own."""
    return Cause(
        kind=kind,
        about=about,
        seconds=seconds,
        words=words,
        evidence=evidence,
        remedy=remedy or REMEDIES[kind],
    )


def by_seconds(found: Iterable[Cause]) -> tuple[Cause, ...]:
    """Order causes, the largest first, but for another number of micro-batches."""
    # Another number of micro-batches makes every other term differ, whatever its own seconds.
    return tuple(sorted(found, key=lambda cause: (cause.kind is not CauseKind.MICRO_BATCHES, -cause.seconds)))
