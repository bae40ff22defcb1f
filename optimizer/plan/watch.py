"""What to watch in the run, with the values to expect: bandwidths, throughput, memory, and slow ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from layoutopt.optimizer.cost.factory import build_cost_model
from layoutopt.optimizer.cost.placement import layout_groups
from layoutopt.optimizer.specs.vocabulary import CpComm
from layoutopt.optimizer.topology.links import load_links
from layoutopt.optimizer.topology.one import bus_factor
from layoutopt.optimizer.topology.prices import Topology

if TYPE_CHECKING:
    from collections.abc import Iterator

    from layoutopt.optimizer.cost.cost_model import CostModel
    from layoutopt.optimizer.cost.estimate import Estimate
    from layoutopt.optimizer.solve.plan import SolveOptions
    from layoutopt.optimizer.specs.cluster import ClusterSpec
    from layoutopt.optimizer.specs.layout import Layout
    from layoutopt.optimizer.specs.workload import Workload
    from layoutopt.optimizer.topology.groups import GroupBatch

STEP_SPREAD = (0.01, 0.02)
"""Throughput varies by so much over a day with the temperature (Grattafiori et al. 2024, section 3.3.4)."""

SLOWDOWNS = (0.02, 0.05, 0.10, 0.20)
"""How much slower a single rank computes in the table of slow ranks."""

PROBE_BYTES = (16.0 * 2**20, 256.0 * 2**20, 2.0**30)
"""Message sizes that an nccl-tests sweep has, beside the layout's own: 16 MiB, 256 MiB, 1 GiB."""

PROGRAMS = {
    "all_reduce": "all_reduce_perf",
    "all_gather": "all_gather_perf",
    "reduce_scatter": "reduce_scatter_perf",
    "all_to_all": "alltoall_perf",
    "p2p": "sendrecv_perf",
}
"""Programs of NVIDIA/nccl-tests that measure each collective."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedBandwidth:
    """One collective on one axis's groups, all groups at once: seconds and bus bandwidth of nccl-tests.

    ``own`` marks the message size that the layout itself sends.
    """

    axis: str
    collective: str
    program: str
    members: int
    size_bytes: float
    seconds: float
    bus_bytes_per_s: float
    own: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowRank:
    """A rank that computes ``slower`` (0.05: 5%) slower makes the whole step ``step_slower`` slower."""

    slower: float
    step_slower: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchList:
    """Expected values of one phase, each with the band of the prediction error.

    ``step_time_s``, ``tokens_per_s``, ``mfu_causal`` and ``mfu_full`` are (low, expected, high). ``peak_bytes``
    counts tensors, ``device_bytes`` everything on the GPU, ``headroom_bytes`` what tensors leave free.
    ``step_spread`` is the usual relative spread of step times over a day.
    """

    step_time_s: tuple[float, float, float]
    tokens_per_s: tuple[float, float, float]
    tokens_per_s_per_gpu: float
    mfu_causal: tuple[float, float, float]
    mfu_full: tuple[float, float, float]
    peak_bytes: float
    device_bytes: float
    headroom_bytes: float
    step_spread: tuple[float, float]
    bandwidths: tuple[ExpectedBandwidth, ...]
    slow_ranks: tuple[SlowRank, ...]


def watch_list(
    workload: Workload,
    cluster: ClusterSpec,
    layout: Layout,
    estimate: Estimate,
    options: SolveOptions,
    step_ratio: tuple[float, float],
) -> WatchList:
    """Return the values to expect of a layout; ``step_ratio`` is the range of the true step time over the predicted."""
    cost = build_cost_model(
        workload.model,
        workload.training,
        cluster,
        framework=options.framework,
        software=options.space.software,
        kind=options.cost,
    )
    # A step that takes longer makes a rate lower: ends of rates change places.
    low, high = step_ratio
    tokens_per_s = workload.training.tokens_per_step / estimate.step_time_s

    def slower_band(value: float) -> tuple[float, float, float]:
        """A value with its band, for what shrinks when a step takes longer."""
        return value / high, value, value / low

    return WatchList(
        step_time_s=(estimate.step_time_s * low, estimate.step_time_s, estimate.step_time_s * high),
        tokens_per_s=slower_band(tokens_per_s),
        tokens_per_s_per_gpu=estimate.tokens_per_s_per_gpu,
        mfu_causal=slower_band(estimate.mfu_causal),
        mfu_full=slower_band(estimate.mfu_full),
        peak_bytes=estimate.memory.peak_bytes,
        device_bytes=estimate.memory.device_bytes,
        headroom_bytes=estimate.memory.capacity_bytes - estimate.memory.peak_bytes,
        step_spread=STEP_SPREAD,
        bandwidths=tuple(expected_bandwidths(cost, layout, estimate)),
        slow_ranks=tuple(slow_rank(layout, estimate, slower) for slower in SLOWDOWNS),
    )


def slow_rank(layout: Layout, estimate: Estimate, slower: float) -> SlowRank:
    """Price one slow GPU: the pipeline rank that sets the pace, ``slower`` slower, with everybody waiting for it.

    The step is ``m * slowest rank + weight * the other ranks + fixed`` (``cost.terms``): the slowest rank's time
    grows and the weight, which the bubble shows, stays.
    """
    slowest = max(estimate.rank_time_s)
    # Every micro-batch waits for the slow rank once.
    more = layout.micro_batches * slowest * slower
    return SlowRank(slower=slower, step_slower=more / estimate.step_time_s)


def expected_bandwidths(cost: CostModel, layout: Layout, estimate: Estimate) -> Iterator[ExpectedBandwidth]:
    """Yield what nccl-tests should read for every collective of a layout, at its own message size and at round ones."""
    groups = layout_groups(layout)
    # What nccl-tests has to show before the run starts, not what collectives reach beside training.
    alone = Topology(cost.cluster, load_links(cost.cluster.calibration, alone=True))
    for axis, collectives, own_bytes in _traffic(cost, layout, estimate):
        group: GroupBatch = getattr(groups, axis)
        members = int(group.size[0])
        # One rank alone exchanges nothing.
        if members == 1:
            continue
        for collective in collectives:
            for size in (own_bytes, *PROBE_BYTES):
                seconds = float(getattr(alone, f"{collective}_s")(size, group)[0])
                yield ExpectedBandwidth(
                    axis=axis,
                    collective=collective,
                    program=PROGRAMS[collective],
                    members=members,
                    size_bytes=size,
                    seconds=seconds,
                    bus_bytes_per_s=size * bus_factor(collective, members) / seconds,
                    own=size == own_bytes,
                )


def _traffic(
    cost: CostModel, layout: Layout, estimate: Estimate
) -> Iterator[tuple[str, tuple[str, ...], float]]:
    """Yield each axis, its collectives, and the bytes of one of the layout's own messages."""
    preset, model = cost.preset.switched(layout.switches), cost.model
    tokens = layout.micro_batch * cost.training.sequence_length / layout.cp
    # Activations travel in 16 bits, whatever the matrices multiply in.
    hidden = 2.0 * tokens * model.hidden
    yield "tp", ("all_gather", "reduce_scatter") if layout.sp else ("all_reduce",), hidden
    ring = ("p2p",) if preset.cp_comm in (CpComm.P2P, CpComm.A2A_P2P) else ("all_gather",)
    yield "cp", ("all_to_all",) if preset.cp_comm is CpComm.A2A else ring, hidden / layout.tp
    if model.moe is not None:
        yield "ep", ("all_to_all",), hidden / layout.tp * model.moe.top_k
    yield "pp", ("p2p",), hidden / (layout.tp if layout.sp else 1)
    gradients = max(stage.components_bytes.get("gradients", 0.0) for stage in estimate.memory.stages)
    sharded = layout.zero >= 1
    yield "dp_cp", ("reduce_scatter", "all_gather") if sharded else ("all_reduce",), gradients
