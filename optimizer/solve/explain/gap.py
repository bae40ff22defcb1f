"""Say in words what limits a layout, and why a runner-up loses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutopt.optimizer.cost.components import TRAFFIC, Component

if TYPE_CHECKING:
    from layoutopt.optimizer.cost.estimate import Estimate
    from layoutopt.optimizer.specs.layout import Layout

LARGE_SHARE = 0.05
"""From this share of the step on, a component counts as binding."""

FULL_SHARE = 0.9
"""From this share of usable memory on, memory counts as binding."""


def why_slower(layout: Layout, estimate: Estimate, best: Layout, best_estimate: Estimate) -> str:
    """Name the components by which a runner-up loses most, and the axes in which it differs."""
    more = {
        name: estimate.breakdown_s[name] - best_estimate.breakdown_s[name] for name in estimate.breakdown_s
    }
    step = best_estimate.step_time_s
    # Two losses explain most runners-up; what is gained elsewhere is in the total.
    worst = sorted(more.items(), key=lambda item: -item[1])[:2]
    losses = [f"{name.words} +{value / step:.1%}" for name, value in worst if value > 1e-4 * step]
    return f"{_differences(layout, best)}: {', '.join(losses) or 'the same within rounding'}"


def _differences(layout: Layout, best: Layout) -> str:
    """List the degrees and modifiers in which two layouts differ."""
    names = (
        "tp",
        "cp",
        "pp",
        "vp",
        "dp",
        "ep",
        "etp",
        "micro_batch",
        "zero",
        "hsdp_shard",
        "mesh_order",
        "schedule",
    )
    changed = [
        f"{name} {getattr(layout, name)}" for name in names if getattr(layout, name) != getattr(best, name)
    ]
    if layout.recompute != best.recompute:
        changed.append(
            "recompute " + ("+".join(layout.recompute.modules) or layout.recompute.granularity.value)
        )
    return ", ".join(changed) or "other stages"


def what_binds(estimate: Estimate) -> tuple[str, ...]:
    """Name what limits the optimum: memory when it is nearly full, and the large losses beside compute."""
    binds = []
    memory, step = estimate.memory, estimate.step_time_s
    if memory.peak_bytes > FULL_SHARE * memory.capacity_bytes:
        share = memory.peak_bytes / memory.capacity_bytes
        binds.append(f"memory: the fullest rank uses {share:.0%} of what tensors may use")
    for name in Component:
        if name.record.loss and estimate.breakdown_s[name] > LARGE_SHARE * step:
            binds.append(f"{name.words}: {estimate.breakdown_s[name] / step:.0%} of the step")
    network = {name: estimate.breakdown_s[name] for name in TRAFFIC}
    if sum(network.values()) > LARGE_SHARE * step:
        largest = max(network, key=network.__getitem__)
        binds.append(f"network: {sum(network.values()) / step:.0%} of the step, most of it {largest.words}")
    return tuple(binds) or ("compute: no other component takes 5% of the step",)
