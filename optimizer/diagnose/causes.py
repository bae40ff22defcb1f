"""Why a step is longer than predicted: causes in words with their evidence, the one that costs most first."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean, median
from typing import TYPE_CHECKING

from layoutopt.optimizer.cost.components import Component
from layoutopt.optimizer.diagnose.cause import (
    FLAGS,
    HIDDEN,
    LEAST_RATIO,
    LEAST_SHARE,
    LESS_HIDDEN,
    LINK_RATIO,
    UNCLASSED,
    CauseKind,
    by_seconds,
    cause,
)
from layoutopt.optimizer.diagnose.outliers import slowest_experts, slowest_rank
from layoutopt.optimizer.diagnose.parts import KERNELS, MEMORY_BOUND, Activity, Phase
from layoutopt.optimizer.diagnose.unexplained import unexplained
from layoutopt.optimizer.specs.units import format_rate, format_seconds
from layoutopt.optimizer.specs.vocabulary import Axis, CudaGraph

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from layoutopt.optimizer.diagnose.cause import Cause
    from layoutopt.optimizer.diagnose.difference import Row, StepDifference
    from layoutopt.optimizer.diagnose.predicted import Expectation
    from layoutopt.optimizer.diagnose.terms import AxisTraffic, KernelUse, RankTerms


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

    @property
    def is_unfused(self) -> bool:
        """Whether scores of attention are stored; a router's softmax takes less than what is named."""
        return self.mean_s(part=Activity.SCORES) >= self.least_s

    def mean_s(self, component: Component | None = None, part: Activity | None = None) -> float:
        """Measured seconds of a step in the mean over ranks."""
        return fmean(terms.seconds(component, part) for terms in self.ranks)

    def predicted_s(self, component: Component | None = None, part: Activity | None = None) -> float:
        """Predicted seconds of a step in the mean over the profiled ranks' stages."""
        return fmean(self.expected.of(terms.rank).seconds(component, part) for terms in self.ranks)


def causes(
    ranks: Sequence[RankTerms], expected: Expectation, difference: StepDifference[Row]
) -> tuple[Cause, ...]:
    """Return the causes that the terms show, the largest first.

    Another number of micro-batches changes every other term: where it is found it comes first.
    """
    found = Findings(ranks=tuple(ranks), expected=expected, difference=difference)
    named = [one for rule in RULES for one in rule(found) if one.seconds >= found.least_s]
    return by_seconds([*named, *unexplained(difference, named)])


def _micro_batches(found: Findings) -> Iterator[Cause]:
    """Count forward passes: attention's forward kernels per layer and step."""
    counts = []
    for terms in found.ranks:
        layers = found.expected.of(terms.rank).layers
        # Of one name: attention may be several kernels a layer, and their sum would count every layer twice.
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
        yield cause(
            CauseKind.MICRO_BATCHES,
            "micro_batches",
            # It may make the step no longer at all, and is what has to be known first.
            max(abs(found.difference.gap_s), found.least_s),
            f"{seen:.4g} micro-batches ran in a step, the plan has {planned}",
            f"attention's forward kernels: {seen:.4g} per layer and step",
        )


def _stalls(found: Findings) -> Iterator[Cause]:
    loader, checkpoint = (
        found.mean_s(Component.STEP, Activity.DATA_LOADER),
        found.mean_s(Component.STEP, Activity.CHECKPOINT),
    )
    checkpoint += found.mean_s(Component.STEP, Activity.HOST_COPY)
    if loader:
        yield cause(
            CauseKind.DATA_LOADER,
            "data loader",
            loader,
            f"the data loader keeps the device waiting for {format_seconds(loader)} of a step",
            "the device is idle while the host is in the data loader",
        )
    if checkpoint:
        yield cause(
            CauseKind.CHECKPOINT,
            "checkpoint",
            checkpoint,
            f"writing a checkpoint keeps the device waiting for {format_seconds(checkpoint)} of a step in the mean",
            "the device is idle, or copies to the host, while the checkpoint is written",
        )
    # what an unnamed pause adds to the fixed time of a step: before its first kernel, or after its last
    pause = found.mean_s(Component.STEP, Activity.LAUNCH) - found.predicted_s(Component.STEP, Activity.LAUNCH)
    if pause > 0:
        yield cause(
            CauseKind.HOST_PAUSE,
            "host",
            pause,
            f"the host keeps the device waiting {format_seconds(pause)} a step at its start or end: data loading, "
            "evaluation, checkpoint or logging",
            "no range of the profile names what the host does meanwhile",
        )


def _recomputation(found: Findings) -> Iterator[Cause]:
    more = found.mean_s(Component.RECOMPUTE) - found.predicted_s(Component.RECOMPUTE)
    if more > 0:
        again = [use for terms in found.ranks for use in terms.kernels if use.phase is Phase.RECOMPUTE]
        calls = sum(use.calls for use in again) / sum(terms.steps for terms in found.ranks)
        yield cause(
            CauseKind.RECOMPUTATION,
            "recompute",
            more,
            f"backward computes {format_seconds(more)} of the forward pass again that the plan keeps",
            f"{calls:,.0f} forward kernels a step and rank run inside backward",
        )


def _attention(found: Findings) -> Iterator[Cause]:
    scores = found.mean_s(part=Activity.SCORES)
    if found.is_unfused and found.expected.cost.training.flash:
        # Unfused attention multiplies its scores in plain matrix kernels: those count with it on both sides.
        before = sum(found.predicted_s(part=part) for part in (Activity.ATTENTION, Activity.GEMM))
        now = sum(found.mean_s(part=part) for part in (Activity.ATTENTION, Activity.GEMM, Activity.SCORES))
        yield cause(
            CauseKind.UNFUSED_ATTENTION,
            "attention",
            max(now - before, scores),
            f"attention is not fused: softmax kernels over stored scores take {format_seconds(scores)} of a step",
            *_longest(found, Activity.SCORES),
        )
    dropout = found.mean_s(part=Activity.DROPOUT)
    if dropout and not found.expected.cost.training.dropout:
        yield cause(
            CauseKind.DROPOUT,
            "dropout",
            dropout,
            f"dropout takes {dropout / found.difference.measured_s:.0%} of the step: a default that was not chosen",
            *_longest(found, Activity.DROPOUT),
        )


def _ranks(found: Findings) -> Iterator[Cause]:
    slow = slowest_rank(found.ranks, found.expected)
    if slow is not None:
        yield cause(
            CauseKind.SLOW_RANK,
            f"rank {slow.rank}",
            slow.seconds,
            f"rank {slow.rank} is {slow.ratio - 1:.0%} slower in its kernels than the others, which wait for it",
            *slow.evidence,
        )
    experts = slowest_experts(found.ranks, found.expected)
    if experts is not None:
        yield cause(
            CauseKind.EXPERT_IMBALANCE,
            "experts",
            experts.seconds,
            f"rank {experts.rank}'s experts take {experts.ratio:.2f} times the mean: tokens are not balanced",
            *experts.evidence,
        )


def _kernels(found: Findings) -> Iterator[Cause]:
    """Name a kind of kernel that takes longer than predicted on the middle rank, recomputation aside."""
    phases = (Component.FORWARD, Component.BACKWARD, Component.OPTIMIZER)
    for part in (one for one in KERNELS if one not in (Activity.SCORES, Activity.DROPOUT)):
        # Its scores are in these kernels, so that they are slow for a reason that is named already.
        if found.is_unfused and part in (Activity.GEMM, Activity.ATTENTION):
            continue
        ratios, excess = [], []
        for terms in found.ranks:
            stage = found.expected.of(terms.rank)
            before = sum(stage.seconds(component, part) for component in phases)
            now = sum(terms.seconds(component, part) for component in phases)
            if before > 0:
                ratios.append(now / before)
                excess.append(now - before)
        # The middle rank: a slow GPU is a cause of its own, and no slow kernel.
        if ratios and median(ratios) > LEAST_RATIO:
            seconds = median(excess)
            bound = "memory bandwidth" if part in MEMORY_BOUND else "arithmetic"
            yield cause(
                CauseKind.SLOW_KERNELS,
                part.value,
                seconds,
                f"{part.words} take {median(ratios):.2f} times as long as predicted",
                *_longest(found, part),
                f"their time is that of {bound}",
            )


def _unclassed(found: Findings) -> Iterator[Cause]:
    """Say how much of the step runs in kernels that no rule classes: of their terms nothing can be told."""
    seconds = found.mean_s(part=Activity.OTHER)
    if seconds > max(UNCLASSED * found.difference.measured_s, found.predicted_s(part=Activity.OTHER)):
        share = seconds / found.difference.measured_s
        yield cause(
            CauseKind.UNKNOWN_KERNELS,
            "kernels",
            seconds,
            f"{share:.0%} of the step runs in kernels of no known kind: whether they are slow is not told",
            *_longest(found, Activity.OTHER, most=3),
        )


def _traffic(found: Findings) -> Iterator[Cause]:
    for axis in Axis:
        # of sends whose peer's profile is not given nothing is known but that the pipeline waits
        mine = [
            one
            for terms in found.ranks
            for one in terms.traffic
            if one.axis is axis and (one.whole or axis is not Axis.PP)
        ]
        components = [part for part in Component if part.record.axis is axis]
        over = sum(found.mean_s(part) - found.predicted_s(part) for part in components)
        if not mine or over <= 0:
            continue
        steps = sum(terms.steps for terms in found.ranks)
        whole = [one for one in mine if one.whole]
        moved_s = sum(one.transfer_ns for one in whole) / steps * 1e-9
        whole_s = sum(_price_s(found.expected, one) for one in whole) / steps
        price_s = sum(_price_s(found.expected, one) for one in mine) / steps
        # Only calls whose members are all given tell a speed: of others a wait would count as a slow link.
        ratio = moved_s / whole_s if whole_s else 1.0
        rates = tuple(_rates(found.expected, whole))
        if ratio > LINK_RATIO:
            yield cause(
                CauseKind.SLOW_LINK,
                axis.value,
                over,
                f"collectives over {axis.value} take {ratio:.2f} times as long as predicted",
                *rates,
            )
            continue
        busy_s, exposed_s = (
            sum(both) for both in zip(*(_own_s(found.expected, one) for one in mine), strict=True)
        )
        hidden = 1 - exposed_s / busy_s if busy_s else 0.0
        # Less than half, and clearly less than the plan reckons with: some traffic can't be hidden by anything.
        if hidden < min(HIDDEN, _predicted_hidden(found, components, price_s) - LESS_HIDDEN):
            where = "after the last backward kernel" if axis is Axis.DP else "where layers wait for it"
            yield cause(
                CauseKind.NO_OVERLAP,
                axis.value,
                min(over, exposed_s / steps),
                f"traffic over {axis.value} is not overlapped: {1 - hidden:.0%} of it runs alone, {where}",
                *rates,
                remedy=FLAGS[axis],
            )


def _own_s(expected: Expectation, traffic: AxisTraffic) -> tuple[float, float]:
    """Return the seconds in which calls run, and those that no kernel runs beside.

    Where a member's profile is not given, what they run beyond their price may be waiting, which no kernel runs beside.
    """
    busy_s, exposed_s = traffic.busy_ns * 1e-9, traffic.exposed_ns * 1e-9
    waiting_s = 0.0 if traffic.whole else max(busy_s - _price_s(expected, traffic), 0.0)
    return busy_s - waiting_s, max(exposed_s - waiting_s, 0.0)


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
    # With graphs in the plan and none replayed the reason is known, and it is no slow host.
    planned = preset.cuda_graph is not CudaGraph.NONE
    if planned and not any(terms.graphs for terms in found.ranks):
        yield cause(
            CauseKind.NO_CUDA_GRAPH,
            "cuda_graph",
            over,
            f"no CUDA graph is replayed though the plan has them: the host costs {format_seconds(over)} more",
            *evidence,
        )
    else:
        yield cause(
            CauseKind.HOST_BOUND,
            "host",
            over,
            f"the host is too slow: the device waits {format_seconds(over)} more of a step for launches",
            *evidence,
        )


def _longest(found: Findings, part: Activity, most: int = 1) -> Iterator[str]:
    """Name the longest kernels of a part."""
    uses: dict[str, KernelUse] = {}
    for use in (use for terms in found.ranks for use in terms.kernels if use.part is part):
        if use.name not in uses or use.busy_ns > uses[use.name].busy_ns:
            uses[use.name] = use
    # A kernel's mangled name goes on for hundreds of letters; the first tell which it is.
    for longest in sorted(uses.values(), key=lambda use: -use.busy_ns)[:most]:
        each = longest.busy_ns / longest.calls * 1e-9
        shape, rate = longest.product, longest.flops_per_s
        fast = f", {shape.words} at {format_rate(rate, 'FLOP/s')}" if shape and rate else ""
        yield f"{longest.name[:70]}: {longest.calls:,} calls of {format_seconds(each)}{fast}"


RULES: tuple[Callable[[Findings], Iterator[Cause]], ...] = (
    _micro_batches, _stalls, _recomputation, _attention, _ranks, _kernels, _unclassed, _traffic, _host
)  # fmt: skip
"""Every rule that looks for causes."""
