"""A plan's job as ``traced_job`` runs it: layers, traffic, host and optimizer take what the plan predicts, faults aside."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from checks.traced_job import Job, Kernel, Stage, Traffic
from layoutopt.optimizer.cost.batch import batch_of_one
from layoutopt.optimizer.cost.collectives import collectives
from layoutopt.optimizer.cost.components import Component
from layoutopt.optimizer.cost.kernel_times import stage_times
from layoutopt.optimizer.diagnose.parts import Activity
from layoutopt.optimizer.diagnose.predicted import expectation
from layoutopt.optimizer.simulate.layouts import pipeline_of
from layoutopt.optimizer.specs.vocabulary import Axis

if TYPE_CHECKING:
    from checks.traced_job import Item
    from layoutopt.optimizer.cost.cost_model import CostModel
    from layoutopt.optimizer.cost.kernel_times import PassTimes
    from layoutopt.optimizer.diagnose.predicted import Expectation
    from layoutopt.optimizer.specs.layout import Layout

US = 1e6
HIDDEN_SHARE = 0.06
"""What of the step gradients take beside the last backward where they overlap: buckets of a job whose network keeps up."""

ORDER = ("embedding", "norm", "gemm", "elementwise", "attention", "scan", "gemm", "norm", "permute", "experts", "gemm",
         "activation", "gemm", "permute", "loss", "other")  # fmt: skip
"""The kernels of a layer, one after another; times of a kind are divided equally among its kernels."""

COLLECTIVES = {
    Component.TP: ("tp", ("reduce_scatter", "all_gather")),
    Component.CP: ("cp", ("all_gather",)),
    Component.EP: ("ep", ("all_to_all", "all_to_all")),
}


def job_of(cost: CostModel, layout: Layout, **changes: Any) -> Job:
    """Build the job of a layout with explicit stages."""
    expected = expectation(cost, layout)
    gather, reduce = (_block_call(expected, kind) for kind in ("all_gather", "reduce_scatter"))
    repeated = (reduce,) if cost.preset.reduce_each_micro_batch else ()
    stages = []
    for entry, times in enumerate(stage_times(cost, layout)):
        layers = max(layout.stages[entry].layers, 1)  # a stage may hold the head alone
        forward, backward = (_items(expected, one, layers) for one in (times.forward, times.backward))
        again = _items(expected, times.again, layers) if _total(times.again) else ()
        if layout.zero == 3:
            forward = _streamed(forward, times.forward, (gather,), (), layers)
            backward = _streamed(backward, times.backward, (gather,), repeated, layers)
        stages.append(Stage(forward=forward * layers, backward=backward * layers, again=again * layers))
    breakdown = {component: expected.stages[0].seconds(component) for component in Component}
    given: dict[str, Any] = {
        **(_sums(expected, breakdown, gather) if layout.dp > 1 else {}),
        "optimizer_us": max(round(breakdown[Component.OPTIMIZER] * US), 1),
        "host_us": round(breakdown[Component.STEP] * US),
    }
    return Job(
        pipeline=pipeline_of(layout), stages=tuple(stages), tp=layout.tp, cp=layout.cp, dp=layout.dp, ep=layout.ep,
        steps=2, graphs=cost.saving(batch_of_one(layout)).preset.cuda_graph.value != "none", **{**given, **changes},
    )  # fmt: skip


def _sums(expected: Expectation, breakdown: dict[Component, float], gather: Traffic) -> dict[str, Any]:
    """Divide what is exposed beside the passes: half of it sums of gradients, behind hidden ones, half gathers of weights.

    Of streamed weights the first gather of a step is the first layer's own, and no sum is hidden but those of the layers.
    """
    exposed_us = round(breakdown[Component.DP] * US)
    if expected.layout.zero == 3:
        late_us = max(exposed_us - gather.us, 1)
        hidden_us, gather_us = 0, 0
    else:
        hidden_us = round(HIDDEN_SHARE * expected.step_s * US)
        late_us, gather_us = exposed_us // 2, exposed_us - exposed_us // 2
    reduce_us = max(late_us + hidden_us, 1)
    return {
        "reduce_us": reduce_us,
        "reduce_exposed_us": late_us,
        "reduce_bytes": _bytes(expected, Axis.DP, "reduce_scatter", reduce_us),
        "gather_us": gather_us,
        "gather_bytes": _bytes(expected, Axis.DP, "all_gather", gather_us),
    }


def _block_call(expected: Expectation, kind: str) -> Traffic:
    """Return the call of one block's weights or gradients: of the data-parallel calls of a kind the most frequent."""
    calls = [
        call
        for call in collectives(expected.cost, expected.layout)
        if call.axis == "dp" and call.kind == kind
    ]
    if not calls:
        return Traffic("fsdp", kind, 0, 0)
    size = max(calls, key=lambda call: call.count).bytes
    took = expected.transfer_s(Axis.DP, kind, size)
    assert took is not None
    return Traffic("fsdp", kind, max(round(took * US), 1), round(size))


def _streamed(
    items: tuple[Item, ...],
    passed: PassTimes,
    before: tuple[Traffic, ...],
    behind: tuple[Traffic, ...],
    layers: int,
) -> tuple[Item, ...]:
    """Put a layer's gather before it and its sum behind it; what the plan leaves exposed is the gather's first."""
    exposed_us = round(passed.traffic_s.get(Component.FSDP, 0.0) * US / layers)
    found, ahead_us = [], 0
    for call in (*before, *behind):
        us = min(exposed_us, call.us)
        found.append(call._replace(us=us, hidden_us=call.us - us, ahead_us=ahead_us))
        exposed_us, ahead_us = exposed_us - us, call.us - us
    return (*found[: len(before)], *items, *found[len(before) :])


def _total(passed: PassTimes) -> float:
    return sum(passed.kernels_s.values())


def _items(expected: Expectation, passed: PassTimes, layers: int) -> tuple[Item, ...]:
    """Return one layer's share of a pass, divided among its kernels and calls."""
    share = US / layers
    present = [kind for kind in ORDER if passed.kernels_s.get(kind, 0.0) * share >= 1.0]
    gap = round(passed.kernels_s.get("gap", 0.0) * share / max(len(present), 1))
    late = round(passed.host_s * share)
    items: list[Item] = []
    for place, kind in enumerate(present):
        us = max(round(passed.kernels_s[kind] * share / present.count(kind)), 1)
        items.append(Kernel(Activity(kind), us, gap, late if place == 0 else 0))
    for component, (axis, kinds) in COLLECTIVES.items():
        seconds = passed.traffic_s.get(component, 0.0)
        for place, kind in enumerate(kinds if seconds * share >= len(kinds) else ()):
            us = round(seconds * share / len(kinds))
            call = Traffic(axis, kind, us, _bytes(expected, Axis(axis), kind, us))
            items.insert(round(len(items) * (place + 1) / (len(kinds) + 1)), call)
    return tuple(items)


def _bytes(expected: Expectation, axis: Axis, kind: str, us: int) -> int:
    """Return the bytes that a collective moves in a time: by bisection of the plan's own price."""
    low, high = 2.0, 1e13
    for _ in range(60):
        middle = float(np.sqrt(low * high))
        took = expected.transfer_s(axis, kind, middle)
        assert took is not None
        low, high = (middle, high) if took * US < us else (low, middle)
    return int(low)


def slower(job: Job, part: Activity, factor: float) -> Job:
    """Make every kernel of a kind slower."""
    return mapped(
        job, lambda item: (item._replace(us=round(item.us * factor)),) if item.part is part else (item,)
    )


def without_fusion(job: Job) -> Job:
    """Replace fused attention by multiplications and softmax kernels over stored scores, together 2.6 times as long."""

    def unfused(item: Kernel) -> tuple[Item, ...]:
        if item.part is not Activity.ATTENTION:
            return (item,)
        gemm = item._replace(part=Activity.GEMM, us=max(round(item.us * 0.6), 1))
        return gemm, Kernel(Activity.SCORES, max(round(item.us * 1.4), 1), item.gap_us), gemm

    return mapped(job, unfused)


def launched_late(job: Job, us: int) -> Job:
    """Let the host be late for every kernel of the layers."""
    found = mapped(job, lambda item: (item._replace(late_us=item.late_us + us),))
    return replace(found, graphs=False)


def recomputed(job: Job) -> Job:
    """Compute every layer's forward a second time."""
    return replace(job, stages=tuple(replace(stage, again=stage.forward) for stage in job.stages))


def in_other_micro_batches(job: Job, factor: int) -> Job:
    """Cut the batch into ``factor`` times as many micro-batches, each as much shorter."""
    shorter = mapped(job, lambda item: (item._replace(us=max(round(item.us / factor), 1)),))

    def calls(items: tuple[Item, ...]) -> tuple[Item, ...]:
        return tuple(
            item._replace(us=max(item.us // factor, 1), bytes=item.bytes // factor)
            if isinstance(item, Traffic)
            else item
            for item in items
        )

    stages = tuple(
        replace(stage, forward=calls(stage.forward), backward=calls(stage.backward), again=calls(stage.again))
        for stage in shorter.stages
    )
    pipeline = replace(job.pipeline, micro_batches=job.pipeline.micro_batches * factor)
    return replace(job, stages=stages, pipeline=pipeline)


def mapped(job: Job, change: Any) -> Job:
    """Change every kernel of the layers into others."""

    def every(items: tuple[Item, ...]) -> tuple[Item, ...]:
        return tuple(new for item in items for new in (change(item) if isinstance(item, Kernel) else (item,)))

    stages = tuple(
        replace(stage, forward=every(stage.forward), backward=every(stage.backward), again=every(stage.again))
        for stage in job.stages
    )
    return replace(job, stages=stages)
