"""What of a gap no cause explains: the term that carries it, by name and ratio."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from layoutopt.optimizer.diagnose.cause import LEAST_GAP, CauseKind, cause
from layoutopt.optimizer.specs.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from layoutopt.optimizer.diagnose.cause import Cause
    from layoutopt.optimizer.diagnose.difference import Compared, StepDifference

MOST = 0.5
"""Share of a gap from which on a term carries it, or causes explain it."""


def unexplained(apart: StepDifference[Any], named: Sequence[Cause]) -> Iterator[Cause]:
    """Name the term that carries the gap where causes do not, so that no gap beyond the noise goes without a word.

    A step that is shorter than predicted has no cause but this. Another number of micro-batches explains every term.
    """
    least_s = LEAST_GAP * apart.predicted_s
    if any(one.kind is CauseKind.MICRO_BATCHES for one in named) or not apart.rows:
        return
    if apart.gap_s < -least_s:
        row = min(apart.rows, key=lambda row: row.gap_s)
        yield cause(
            CauseKind.FASTER,
            row.words,
            -apart.gap_s,
            f"the step is {-apart.gap_s / apart.predicted_s:.1%} shorter than predicted, most of all by {_off(row)}",
            *_share(row),
        )
        return
    if apart.gap_s <= least_s:
        return
    row = max(apart.rows, key=lambda row: row.gap_s)
    # Causes are estimates that may overlap: where they come to half of the gap, the term needs no word of its own.
    told_s = sum(one.seconds for one in named)
    if not named or (row.gap_s > MOST * apart.gap_s and told_s < MOST * apart.gap_s):
        yield cause(
            CauseKind.UNEXPLAINED,
            row.words,
            row.gap_s,
            f"no known cause explains {_off(row)}",
            *_share(row),
        )


def without_cause(apart: StepDifference[Any]) -> str:
    """Say that nothing was found: every term is near its prediction, or those that are not make up for one another."""
    row = max(apart.rows, key=lambda row: abs(row.gap_s), default=None)
    if row is None or abs(row.gap_s) <= LEAST_GAP * apart.predicted_s:
        return "nothing stands out: every term is near its prediction"
    return f"the step is near its prediction, its terms are not: {_off(row)}, which others make up for"


def _off(row: Compared) -> str:
    """Say what a term took, and what it was to take."""
    times = "" if row.ratio is None else f", {row.ratio:.2f} times"
    return f"{row.words}: {format_seconds(row.measured_s)} against {format_seconds(row.predicted_s)} predicted{times}"


def _share(row: Compared) -> tuple[str, ...]:
    # Where terms make up for one another, one may be more than the whole gap, and a share of 300% tells nobody anything.
    return (
        () if row.gap_share is None or abs(row.gap_share) > 1 else (f"{row.gap_share:.0%} of the step's gap",)
    )
