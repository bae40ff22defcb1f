"""What a calibration changes: the optimum under the new constants, and whether switching saves more than is uncertain."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from layoutopt.optimizer.evidence.calibrate import LEAST_SPREAD
from layoutopt.optimizer.solve.api import solve_layout

if TYPE_CHECKING:
    from layoutopt.optimizer.diagnose.constants import TermCalibration
    from layoutopt.optimizer.solve.inputs import Question
    from layoutopt.optimizer.space.options import SpaceOptions
    from layoutopt.optimizer.specs.layout import Layout

SEARCH_S = 60.0
"""Seconds after which the search for the new optimum ends with the best so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """The optimum under calibrated constants; ``layout`` is None where nothing fits.

    ``runs_s`` is the layout that ran, ``best_s`` the optimum, both by the new constants. ``error`` is what remains uncertain
    of their ratio: how far the calibrated step still is from the measured one, and by what repeats differ. ``fixed`` are the
    axes that the plan fixed, as ``--fix`` reads them: the search stays within them. ``free`` is the optimum without them, so
    that it shows what they cost; None where nothing was fixed or nothing is faster without.
    """

    layout: Layout | None
    runs_s: float
    best_s: float
    error: float
    fixed: tuple[str, ...] = ()
    free: Outlook | None = None

    @property
    def saving(self) -> float:
        """Share of the step that switching would save."""
        return max(1 - self.best_s / self.runs_s, 0.0)

    @property
    def worth_it(self) -> bool:
        """Whether the saving exceeds what is uncertain."""
        return self.saving > self.error


def outlook(question: Question, found: TermCalibration) -> Outlook:
    """Search again with the constants that a profile told, and once more without what the plan fixed."""
    constants = {name: entry.value for name, entry in found.values.items()}
    cluster = replace(question.cluster, calibration={**question.cluster.calibration, **constants})
    # Whoever calibrates waits for a file, not for a proof: the best so far tells whether switching pays.
    options = replace(question.options, time_limit_s=min(question.options.time_limit_s, SEARCH_S))
    off = abs(found.after_s / found.measured_s - 1)

    def searched(space: SpaceOptions) -> Outlook:
        """Return the optimum of a space."""
        plan = solve_layout(question.workload, cluster, replace(options, space=space))
        return Outlook(
            layout=plan.layout,
            runs_s=found.after_s,
            best_s=plan.estimate.step_time_s if plan.estimate else found.after_s,
            # The larger of the two: what a fit leaves of one step may be less than what that step repeats within.
            error=max(off, LEAST_SPREAD),
            fixed=tuple(f"{axis}={','.join(map(str, values))}" for axis, values in space.fix.items()),
        )

    ahead = searched(options.space)
    if not ahead.fixed:
        return ahead
    # What --fix costs under the new constants is what a reader wants to know who fixed axes under the old ones.
    free = searched(replace(options.space, fix={}))
    faster = free.layout is not None and (ahead.layout is None or free.best_s < ahead.best_s)
    return replace(ahead, free=free if faster else None)
