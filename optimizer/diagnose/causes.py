"""Why a step is longer than predicted: causes in words with their evidence, the one that costs most first."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean, median
from typing import TYPE_CHECKING

from layoutopt.optimizer.cost.components import Component
from layoutopt.optimizer.diagnose.causes_of_ranks import slowest_experts, slowest_rank
from layoutopt.optimizer.diagnose.parts import MEMORY_BOUND, Activity, Phase
from layoutopt.optimizer.specs.units import format_rate, format_seconds
from layoutopt.optimizer.specs.vocabulary import Axis, CudaGraph

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from layoutopt.optimizer.diagnose.difference import Row, StepDifference
    from layoutopt.optimizer.diagnose.predicted import Expectation
    from layoutopt.optimizer.diagnose.terms import AxisTraffic, RankTerms


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What causes are looked for in."""

    ranks: tuple[RankTerms, ...]
    expected: Expectation
    difference: StepDifference[Row]

    @property
    def least_s(self) -> float:
        """Seconds below which nothing is named."""
        return LEAST_SHARE * self.expected.step_s

    def mean_s(self, component: Component | None = None, part: Activity | None = None) -> float:
        """Measured seconds of a step in the mean over ranks."""
        return fmean(terms.seconds(component, part) for terms in self.ranks)

    def predicted_s(self, component: Component | None = None, part: Activity | None = None) -> float:
        """Predicted seconds of a step in the mean over the profiled ranks' stages."""
        stages = [self.expected.stages[self.expected.stage_of(terms.rank)] for terms in self.ranks]
        return fmean(stage.seconds(component, part) for stage in stages)


def causes(
    ranks: Sequence[RankTerms], expected: Expectation, difference: StepDifference[Row]
) -> tuple[Cause, ...]:
    """Return the causes that the terms show, the largest first.

    Another number of micro-batches changes every other term: where it is found it comes first.
    """
    found = Findings(ranks=tuple(ranks), expected=expected, difference=difference)
    return by_seconds(cause for rule in RULES for cause in rule(found) if cause.seconds >= found.least_s)


def by_seconds(found: Iterable[Cause]) -> tuple[Cause, ...]:
    """Order causes, the largest first, but for another number of micro-batches."""
    return tuple(sorted(found, key=lambda cause: (cause.kind is not CauseKind.MICRO_BATCHES, -cause.seconds)))


def _micro_batches(found: Findings) -> Iterator[Cause]:
    """Count forward passes: attention's forward kernels per layer and step."""
    counts = []
    for terms in found.ranks:
        layers = found.expected.stages[found.expected.stage_of(terms.rank)].layers
        calls = max(
            (
                use.calls
                for use in terms.kernels
                if use.part in (Activity.ATTENTION, Activity.SCORES) and use.phase is Phase.FORWARD
            ),
            default=0,
        )
        counts += [calls / terms.steps / layers] if calls and layers else []
    planned = found.expected.layout.micro_batches
    seen = median(counts) if counts else planned
    if abs(seen / planned - 1) > 0.2:
        yield Cause(
            kind=CauseKind.MICRO_BATCHES,
            about="micro_batches",
            seconds=max(abs(found.difference.gap_s), found.least_s),
            words=f"{seen:.4g} micro-batches ran in a step, the plan has {planned}",
            evidence=(f"attention's forward kernels: {seen:.4g} per layer and step",),
            remedy="micro-batch and global batch of the launch as in the plan",
        )


def _stalls(found: Findings) -> Iterator[Cause]:
    loader, checkpoint = (
        found.mean_s(Component.STEP, Activity.DATA_LOADER),
        found.mean_s(Component.STEP, Activity.CHECKPOINT),
    )
    checkpoint += found.mean_s(Component.STEP, Activity.HOST_COPY)
    if loader:
        yield Cause(
            kind=CauseKind.DATA_LOADER,
            about="data loader",
            seconds=loader,
            words=f"the data loader keeps the device waiting for {format_seconds(loader)} of a step",
            evidence=("the device is idle while the host is in the data loader",),
            remedy="more loader workers, prefetching, data on local storage",
        )
    if checkpoint:
        yield Cause(
            kind=CauseKind.CHECKPOINT,
            about="checkpoint",
            seconds=checkpoint,
            words=f"writing a checkpoint keeps the device waiting for {format_seconds(checkpoint)} of a step in the mean",
            evidence=("the device is idle, or copies to the host, while the checkpoint is written",),
            remedy="asynchronous checkpoints, or a profile without one",
        )


def _recomputation(found: Findings) -> Iterator[Cause]:
    more = found.mean_s(Component.RECOMPUTE) - found.predicted_s(Component.RECOMPUTE)
    if more > 0:
        again = [use for terms in found.ranks for use in terms.kernels if use.phase is Phase.RECOMPUTE]
        calls = sum(use.calls for use in again) / sum(terms.steps for terms in found.ranks)
        yield Cause(
            kind=CauseKind.RECOMPUTATION,
            about="recompute",
            seconds=more,
            words=f"backward computes {format_seconds(more)} of the forward pass again that the plan keeps",
            evidence=(f"{calls:,.0f} forward kernels a step and rank run inside backward",),
            remedy="recomputation of the launch as in the plan",
        )


def _attention(found: Findings) -> Iterator[Cause]:
    scores = found.mean_s(part=Activity.SCORES)
    if scores and found.expected.cost.training.flash:
        before = sum(found.predicted_s(part=part) for part in (Activity.ATTENTION, Activity.GEMM))
        now = sum(found.mean_s(part=part) for part in (Activity.ATTENTION, Activity.GEMM, Activity.SCORES))
        yield Cause(
            kind=CauseKind.UNFUSED_ATTENTION,
            about="attention",
            seconds=max(now - before, scores),
            words=f"attention is not fused: softmax kernels over stored scores take {format_seconds(scores)} of a step",
            evidence=tuple(_longest(found, Activity.SCORES)),
            remedy="a fused attention backend (flash attention, cuDNN)",
        )
    dropout = found.mean_s(part=Activity.DROPOUT)
    if dropout and not found.expected.cost.training.dropout:
        yield Cause(
            kind=CauseKind.DROPOUT,
            about="dropout",
            seconds=dropout,
            words=f"dropout takes {dropout / found.difference.measured_s:.0%} of the step: a default that was not chosen",
            evidence=tuple(_longest(found, Activity.DROPOUT)),
            remedy="--hidden-dropout 0 --attention-dropout 0 (Megatron-LM), dropout 0 in the model's configuration",
        )


def _ranks(found: Findings) -> Iterator[Cause]:
    slow = slowest_rank(found.ranks, found.expected)
    if slow is not None:
        yield Cause(
            kind=CauseKind.SLOW_RANK,
            about=f"rank {slow.rank}",
            seconds=slow.seconds,
            words=f"rank {slow.rank} is {slow.ratio - 1:.0%} slower in its kernels than the others, which wait for it",
            evidence=slow.evidence,
            remedy="that GPU's clocks, temperature and power limit; leave its node out",
        )
    experts = slowest_experts(found.ranks, found.expected)
    if experts is not None:
        yield Cause(
            kind=CauseKind.EXPERT_IMBALANCE,
            about="experts",
            seconds=experts.seconds,
            words=f"rank {experts.rank}'s experts take {experts.ratio:.2f} times the mean: tokens are not balanced",
            evidence=experts.evidence,
            remedy="a balancing loss or bias of the router, a capacity factor",
        )


def _kernels(found: Findings) -> Iterator[Cause]:
    """Name a kind of kernel that takes longer than predicted on the middle rank, recomputation aside."""
    unfused = found.mean_s(part=Activity.SCORES) > 0
    phases = (Component.FORWARD, Component.BACKWARD, Component.OPTIMIZER)
    for part in (one for one in Activity if one.is_kernel and one not in (Activity.SCORES, Activity.DROPOUT)):
        if unfused and part in (Activity.GEMM, Activity.ATTENTION):
            continue
        ratios, excess = [], []
        for terms in found.ranks:
            stage = found.expected.stages[found.expected.stage_of(terms.rank)]
            before = sum(stage.seconds(component, part) for component in phases)
            now = sum(terms.seconds(component, part) for component in phases)
            if before > 0:
                ratios.append(now / before)
                excess.append(now - before)
        if ratios and median(ratios) > LEAST_RATIO:
            seconds = median(excess)
            bound = "memory bandwidth" if part in MEMORY_BOUND else "arithmetic"
            yield Cause(
                kind=CauseKind.SLOW_KERNELS,
                about=part.value,
                seconds=seconds,
                words=f"{part.words} take {median(ratios):.2f} times as long as predicted",
                evidence=(*_longest(found, part), f"their time is that of {bound}"),
                remedy="a faster kernel library; or calibrate, if all layouts of this machine show it",
            )


def _traffic(found: Findings) -> Iterator[Cause]:
    for axis in Axis:
        mine = [one for terms in found.ranks for one in terms.traffic if one.axis is axis]
        components = [part for part in Component if part.record.axis is axis]
        over = sum(found.mean_s(part) - found.predicted_s(part) for part in components)
        if not mine or over <= 0:
            continue
        steps = sum(terms.steps for terms in found.ranks)
        moved_s = sum(one.transfer_ns for one in mine) / steps * 1e-9
        price_s = sum(_price_s(found.expected, one) for one in mine) / steps
        ratio = moved_s / price_s if price_s else 1.0
        rates = tuple(_rates(found.expected, mine))
        if ratio > LINK_RATIO:
            yield Cause(
                kind=CauseKind.SLOW_LINK,
                about=axis.value,
                seconds=over,
                words=f"collectives over {axis.value} take {ratio:.2f} times as long as predicted",
                evidence=rates,
                remedy="nccl-tests over the same ranks; the links, NICs and switches between them",
            )
        elif (hidden := _hidden_share(mine)) < min(
            HIDDEN, _predicted_hidden(found, components, price_s) - LESS_HIDDEN
        ):
            where = "after the last backward kernel" if axis is Axis.DP else "where layers wait for it"
            yield Cause(
                kind=CauseKind.NO_OVERLAP,
                about=axis.value,
                seconds=over,
                words=f"traffic over {axis.value} is not overlapped: {1 - hidden:.0%} of it runs alone, {where}",
                evidence=rates,
                remedy=FLAGS[axis],
            )


def _hidden_share(traffic: Sequence[AxisTraffic]) -> float:
    busy = sum(one.busy_ns for one in traffic)
    return 1 - sum(one.exposed_ns for one in traffic) / busy if busy else 0.0


def _predicted_hidden(found: Findings, components: Sequence[Component], price_s: float) -> float:
    """Return what of an axis' traffic the plan reckons to be hidden."""
    exposed_s = sum(found.predicted_s(part) for part in components)
    return max(1 - exposed_s / price_s, 0.0) if price_s else 0.0


def _price_s(expected: Expectation, traffic: AxisTraffic) -> float:
    """Predicted seconds of all calls of a kind; those measured where bytes or price are not known."""
    assert traffic.axis is not None
    each = (
        expected.transfer_s(traffic.axis, traffic.kind, traffic.bytes / traffic.calls)
        if traffic.bytes > 0
        else None
    )
    return traffic.transfer_ns * 1e-9 if each is None else each * traffic.calls


def _rates(expected: Expectation, traffic: Sequence[AxisTraffic]) -> Iterator[str]:
    """Say at which rate each kind of call ran, and at which it was predicted to."""
    for kind in dict.fromkeys(one.kind for one in traffic):
        mine = [one for one in traffic if one.kind == kind and one.bytes > 0 and one.transfer_ns]
        moved, seconds = sum(one.bytes for one in mine), sum(one.transfer_ns for one in mine) * 1e-9
        price_s = sum(_price_s(expected, one) for one in mine)
        if moved and price_s:
            ran, planned = format_rate(moved / seconds), format_rate(moved / price_s)
            yield f"{kind} of {mine[0].ranks} ranks ran at {ran} of {planned} predicted (whole tensor over time)"


def _host(found: Findings) -> Iterator[Cause]:
    over = found.mean_s(Component.HOST) - found.predicted_s(Component.HOST)
    if over <= 0:
        return
    steps = sum(terms.steps for terms in found.ranks)
    launches = sum(terms.launches for terms in found.ranks) / steps
    each = found.mean_s(Component.HOST) / launches if launches else 0.0
    evidence = (
        f"{launches:,.0f} launches a step and rank, the device waits {format_seconds(each)} for each in the mean",
    )
    preset = found.expected.cost.preset.switched(found.expected.layout.switches)
    planned = preset.cuda_graph is not CudaGraph.NONE
    if planned and not any(terms.graphs for terms in found.ranks):
        yield Cause(
            kind=CauseKind.NO_CUDA_GRAPH,
            about="cuda_graph",
            seconds=over,
            words=f"no CUDA graph is replayed though the plan has them: the host costs {format_seconds(over)} more",
            evidence=evidence,
            remedy="--enable-cuda-graph or --cuda-graph-impl (Megatron-LM)",
        )
    else:
        yield Cause(
            kind=CauseKind.HOST_BOUND,
            about="host",
            seconds=over,
            words=f"the host is too slow: the device waits {format_seconds(over)} more of a step for launches",
            evidence=evidence,
            remedy="CUDA graphs, compilation, fewer and larger kernels; pinned processes, no synchronisation in the loop",
        )


def _longest(found: Findings, part: Activity) -> Iterator[str]:
    """Name the longest kernel of a part."""
    uses = [use for terms in found.ranks for use in terms.kernels if use.part is part]
    if uses:
        longest = max(uses, key=lambda use: use.busy_ns)
        each = longest.busy_ns / longest.calls * 1e-9
        yield f"{longest.name[:70]}: {longest.calls:,} calls of {format_seconds(each)}"


RULES: tuple[Callable[[Findings], Iterator[Cause]], ...] = (
    _micro_batches, _stalls, _recomputation, _attention, _ranks, _kernels, _traffic, _host
)  # fmt: skip
"""Every rule that looks for causes."""
