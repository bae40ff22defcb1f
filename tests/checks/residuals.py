"""Intervals of step times and memory: quantiles of measured over predicted, of runs that no constant was fitted to.

Rows of one publication share machines, builds and what its authors leave unsaid, so that the few publications of a family
say less than its many rows. Runs of other families count a little in every interval: what a new publication adds to the
error differs less between families than between publications.
"""

from __future__ import annotations

import csv
from collections import Counter
from dataclasses import astuple, dataclass, fields
from io import StringIO
from math import expm1
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.evidence.band import ALL, SHARES
from layoutopt.optimizer.evidence.metrics import summarize

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from numpy.typing import NDArray

    from layoutopt.optimizer.evidence.metrics import ErrorSummary

OTHERS_SHARE, OTHERS_ROWS = 0.1, 10.0
"""What all runs of other families together count as: this share of the own rows, at least so many of them."""

FEWEST = 20
"""Rows from which on the coverage of a kind of run is judged."""

LEAST_ROWS = 50
"""Rows of memory from which on a trainer has an interval of its own; fewer stand at few distinct errors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Residual:
    """One run: log of measured over predicted, with its publication left out of the fit and with it in the fit.

    ``quantity`` is ``step`` or ``memory``; ``family`` the kind of run, of memory the trainer. ``in_fit`` is None for runs
    that were in no fit.
    """

    quantity: str
    id: str
    family: str
    source: str
    left_out: float
    in_fit: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """Share of rows inside the shipped interval, and inside one made without their publication; mean widths.

    ``width`` is the shipped interval's upper less lower end as a share of the prediction, ``apart_width`` the mean of
    those made without the rows' publications.
    """

    rows: int
    sources: int
    inside: float
    width: float
    inside_apart: float
    apart_width: float


def unseen_errors(residuals: Iterable[Residual]) -> dict[str, ErrorSummary]:
    """Summarize the errors of steps of the runs in the fit, each with its publication left out; all, and by kind of run."""
    errors: dict[str, list[float]] = {ALL: []}
    for one in residuals:
        if one.quantity == "step" and one.in_fit is not None:
            for name in (ALL, one.family):
                errors.setdefault(name, []).append(expm1(-one.left_out))
    return {name: summarize(own) for name, own in errors.items()}


def to_csv(residuals: Iterable[Residual]) -> str:
    """Write residuals as a table, logs to four places."""
    text = StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(field.name for field in fields(Residual))
    for one in residuals:
        rows.writerow(f"{value:.4f}" if isinstance(value, float) else value for value in astuple(one))
    return text.getvalue()


def from_csv(text: str) -> list[Residual]:
    """Read the table back."""
    return [
        Residual(
            quantity=row["quantity"],
            id=row["id"],
            family=row["family"],
            source=row["source"],
            left_out=float(row["left_out"]),
            in_fit=float(row["in_fit"]) if row["in_fit"] else None,
        )
        for row in csv.DictReader(StringIO(text))
    ]


def families(residuals: Sequence[Residual]) -> list[str]:
    """Name the kinds of run that have intervals of their own: all of steps, of memory those with many rows."""
    counts = Counter((one.quantity, one.family) for one in residuals)
    return sorted(
        family for (quantity, family), rows in counts.items() if quantity == "step" or rows >= LEAST_ROWS
    )


def ratios(
    residuals: Sequence[Residual], family: str, *, in_fit: bool = False, without: Collection[str] = ()
) -> dict[str, tuple[float, float]]:
    """Return measured over predicted between which 50, 80 and 95% of a family's runs lie, by the percents' names.

    ``in_fit`` takes the errors of constants that saw the runs; ``without`` names publications to leave out.
    """
    chosen = [one for one in residuals if one.source not in without and not (in_fit and one.in_fit is None)]
    logs = np.array([one.in_fit if in_fit else one.left_out for one in chosen], dtype=np.float64)
    own = np.array([family in (ALL, one.family) for one in chosen])
    rows = int(own.sum())
    others = max(OTHERS_SHARE * rows, OTHERS_ROWS) / max(len(own) - rows, 1)
    weights = np.where(own, 1.0, others)
    return {
        name: (
            float(np.exp(weighted_quantile(logs, weights, 0.5 - int(name) / 200))),
            float(np.exp(weighted_quantile(logs, weights, 0.5 + int(name) / 200))),
        )
        for name in SHARES
    }


def weighted_quantile(values: NDArray[np.float64], weights: NDArray[np.float64], share: float) -> float:
    """Return the value below which ``share`` of the weight lies, linear between the middles of the values' weights."""
    order = np.argsort(values)
    ordered = weights[order]
    places = (np.cumsum(ordered) - ordered / 2) / ordered.sum()
    return float(np.interp(share, places, values[order]))


def coverage(residuals: Sequence[Residual], family: str, name: str) -> Coverage:
    """Count a family's rows inside the interval called ``name``, all without their publications' fit."""
    own = [one for one in residuals if family in (ALL, one.family)]
    shipped = ratios(residuals, family)[name]
    sources = sorted({one.source for one in own})
    apart = {source: ratios(residuals, family, without={source})[name] for source in sources}
    return Coverage(
        rows=len(own),
        sources=len(sources),
        inside=_share(own, [shipped] * len(own)),
        width=shipped[1] - shipped[0],
        inside_apart=_share(own, [apart[one.source] for one in own]),
        apart_width=float(np.mean([apart[one.source][1] - apart[one.source][0] for one in own])),
    )


def _share(rows: Sequence[Residual], intervals: Sequence[tuple[float, float]]) -> float:
    inside = [low <= np.exp(one.left_out) <= high for one, (low, high) in zip(rows, intervals, strict=True)]
    return float(np.mean(inside))
