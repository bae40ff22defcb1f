"""The best size within a cluster: GPUs may idle from its far end, so more of them never slow a step down."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from layoutopt.optimizer.sweep.families import tiers_nest

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from layoutopt.optimizer.sweep.rows import Row

NESTED_COLUMNS = ("used_gpus", "nested_step_time_s")
"""What ``best_within`` adds: the GPUs used at best, and the step time they reach."""


def best_within(rows: Iterable[Row]) -> list[Row]:
    """Add to every row the best answer among the sizes that lie inside its cluster, its own included.

    A layout of N GPUs runs on the first N of a larger cluster at the same speed when those are linked as the
    smaller cluster is: every smaller size of one chain whose tiers nest. So ``nested_step_time_s`` never
    rises with ``gpus`` along a chain of nested sizes. Both columns are None where no size has an answer.
    """
    listed = list(rows)
    chains: dict[str, list[Row]] = {}
    for row in listed:
        chains.setdefault(row["chain"], []).append(row)
    best: dict[str, dict[str, Any]] = {}
    for chain in chains.values():
        ordered = sorted(chain, key=lambda row: row["gpus"])
        for index, row in enumerate(ordered):
            best[row["key"]] = _best(row, ordered[: index + 1])
    return [row | best[row["key"]] for row in listed]


def _best(row: Row, smaller: Sequence[Row]) -> dict[str, Any]:
    """Return the added columns of one row; of equal step times the fewest GPUs count."""
    inside = [
        other
        for other in smaller
        if other["step_time_s"] is not None
        and (other is row or tiers_nest(other["tiers"], row["tiers"], other["gpus"]))
    ]
    if not inside:
        return dict.fromkeys(NESTED_COLUMNS)
    fastest = min(inside, key=lambda other: (other["step_time_s"], other["gpus"]))
    used = fastest["gpus"] - (fastest["idle_gpus"] or 0)
    return {"used_gpus": used, "nested_step_time_s": fastest["step_time_s"]}
