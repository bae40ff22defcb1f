"""How far measured runs are from predictions that they had no part in: the rows of ``benchmarks/left_out.csv``."""

from __future__ import annotations

import csv
from dataclasses import astuple, dataclass, fields
from io import StringIO
from math import expm1
from typing import TYPE_CHECKING

from layoutopt.optimizer.evidence.band import ALL
from layoutopt.optimizer.evidence.metrics import summarize

if TYPE_CHECKING:
    from collections.abc import Iterable

    from layoutopt.optimizer.evidence.metrics import ErrorSummary

FEWEST = 20
"""Rows from which on the coverage of a kind of run is judged."""


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
