"""The nearest layout that a framework can launch: repairs of broken rules, until nothing is broken."""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutopt.optimizer.space.check import find_faults
from layoutopt.optimizer.space.effective import effective, with_stages

if TYPE_CHECKING:
    from layoutopt.optimizer.space.context import Context
    from layoutopt.optimizer.space.rule import BrokenRule
    from layoutopt.optimizer.specs.layout import Layout

MAX_REPAIRS = 40
"""More than there are rules that a layout breaks one after another; beyond it repairs go in circles."""


def nearest_launchable(layout: Layout, ctx: Context) -> tuple[tuple[BrokenRule, ...], Layout | None]:
    """Return what a layout breaks, and the nearest layout at its GPUs and global batch that breaks nothing.

    A layout that breaks nothing is its own nearest. Each rule moves its axis to the nearest value: ZeRO-1 becomes
    torchtitan's "never reshard", virtual stages one per rank where there is no interleaving, recomputation per stage
    one depth for all. None where a rule has no layout nearby, or repairs undo one another.
    """
    current = effective(with_stages(effective(layout, ctx), ctx), ctx)
    faults = find_faults(current, ctx)
    reasons, seen = tuple(fault.reason for fault in faults), [current]
    for _ in range(MAX_REPAIRS):
        if not faults:
            return reasons, current
        options = (fault.repair() for fault in faults)
        moved = (effective(with_stages(option, ctx), ctx) for option in options if option is not None)
        following = next((option for option in moved if option not in seen), None)
        if following is None:
            return reasons, None
        seen.append(following)
        current, faults = following, find_faults(following, ctx)
    return reasons, None
