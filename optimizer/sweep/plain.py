"""The machine-readable form of sweep results and inverse answers for ``--json``; keys that do not change."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from layoutopt.optimizer.sweep.inverse import FewestGpus, LargestBatch, MarginalValue, SizeAnswer
    from layoutopt.optimizer.sweep.rows import Row
    from layoutopt.optimizer.sweep.run import SweepResult

Plain = dict[str, Any]
HIDDEN = ("chain", "tiers", "plan")


def sweep_to_plain(result: SweepResult, rows: Iterable[Row]) -> Plain:
    """Write how a sweep ended and its rows."""
    shown = [{name: value for name, value in row.items() if name not in HIDDEN} for row in rows]
    return asdict(result) | {"rows": shown}


def sizes_to_plain(answers: Sequence[SizeAnswer]) -> list[Plain]:
    """Write what several sizes give; times of runs that never end are null."""
    return [{name: _finite(value) for name, value in asdict(answer).items()} for answer in answers]


def fewest_to_plain(fewest: FewestGpus) -> Plain:
    """Write the smallest size that will do."""
    return asdict(fewest) | {"tried": sizes_to_plain(fewest.tried)}


def batch_to_plain(largest: LargestBatch) -> Plain:
    """Write the largest useful batch."""
    return asdict(largest) | {"tried": [asdict(answer) for answer in largest.tried]}


def marginal_to_plain(values: Sequence[MarginalValue]) -> list[Plain]:
    """Write what more of each resource is worth."""
    return [asdict(value) for value in values]


def _finite(value: Any) -> Any:
    return None if value == float("inf") else value
