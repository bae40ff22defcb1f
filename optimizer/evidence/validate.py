"""Price measured runs and compare: step time, memory, order inside groups."""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import fmean
from typing import TYPE_CHECKING

from layoutopt.optimizer.evidence.case import Skip
from layoutopt.optimizer.evidence.cases import build_cases
from layoutopt.optimizer.evidence.memory import MemoryReport, compare_memory
from layoutopt.optimizer.evidence.metrics import (
    SMALLEST_GROUP,
    ErrorSummary,
    GroupRanking,
    RankedGroup,
    RankingSummary,
    rank_group,
    relative_error,
    summarize,
    summarize_ranking,
)
from layoutopt.optimizer.evidence.predict import Prediction, predict
from layoutopt.optimizer.specs.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence

    from layoutopt.optimizer.evidence.assumptions import Assumption
    from layoutopt.optimizer.evidence.case import Case
    from layoutopt.optimizer.evidence.run import MeasuredRun
    from layoutopt.optimizer.frameworks.registry import Framework


@dataclass(frozen=True, slots=True, kw_only=True)
class RowResult:
    """One priced row."""

    case: Case
    prediction: Prediction

    @property
    def error(self) -> float | None:
        """Predicted over measured step time, less 1; None for a row without a measured time."""
        measured = self.case.measured_s
        return None if measured is None else relative_error(self.prediction.step_time_s, measured)

    @property
    def counted(self) -> bool:
        """Whether the row is timed and priced without assumptions."""
        return self.error is not None and not self.case.assumed


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationReport:
    """Agreement of predictions with a table of measured runs.

    ``rows`` is the number of rows read. Headline figures, ``by`` and ``ranking`` are over timed rows that
    were priced without an assumptions file; ``families`` over those of them whose deciding cells are all
    stated, ``partial`` over the others, ``assumed`` over rows priced with assumptions or as the nearest preset,
    ``assumed_families`` over these by family and ``assumed_frameworks`` by the trainer's name in the table.
    """

    rows: int
    skipped: tuple[Skip, ...]
    results: tuple[RowResult, ...]
    step_time: ErrorSummary
    partial: ErrorSummary
    assumed: ErrorSummary
    assumed_families: Mapping[str, ErrorSummary]
    assumed_frameworks: Mapping[str, ErrorSummary]
    families: Mapping[str, ErrorSummary]
    by: Mapping[str, Mapping[str, ErrorSummary]]
    memory: MemoryReport
    ranking: RankingSummary
    ranking_by_kind: Mapping[str, RankingSummary]
    groups: tuple[GroupRanking, ...]

    def worst(self, count: int) -> tuple[RowResult, ...]:
        """Return the rows with the largest absolute errors, largest first."""
        timed = [row for row in self.results if row.error is not None]
        return tuple(sorted(timed, key=lambda row: -abs(row.error or 0.0))[:count])


def validate(
    runs: Sequence[MeasuredRun],
    assumptions: Sequence[Assumption] = (),
    *,
    stand_ins: Mapping[str, Framework] | None = None,
    values: Mapping[str, float] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> ValidationReport:
    """Price every row of a table that can be priced, and compare.

    Parameters
    ----------
    runs
        The table.
    assumptions
        What may be taken for empty cells; rows that need it are counted apart.
    stand_ins
        Presets by which trainers without one are priced, over the package's own; their rows are counted apart.
    values
        Constants by name that replace the package's.
    progress
        Called with (rows priced, rows to price).
    """
    cases, skipped = build_cases(runs, assumptions, stand_ins)
    results: list[RowResult] = []
    for done, case in enumerate(cases, 1):
        try:
            results.append(RowResult(case=case, prediction=predict(case, values)))
        except InputError as error:  # what only pricing finds: a constant that the GPU has not
            skipped.append(Skip(run=case.run, reason=str(error.problems[0])))
        if progress is not None:
            progress(done, len(cases))
    return build_report(len(runs), results, skipped)


def build_report(rows: int, results: Sequence[RowResult], skipped: Sequence[Skip]) -> ValidationReport:
    """Summarize priced rows."""
    # What somebody assumed is no error of the model: rows that need it are beside the headline, not in it.
    counted = [row for row in results if row.counted]
    complete = [row for row in counted if row.case.complete]
    apart = [row for row in results if row.case.assumed and row.error is not None]
    groups = _rankings(counted)
    kinds = {kind: [row for row in counted if _kind(row) == kind] for kind in ("dense", "moe")}
    return ValidationReport(
        rows=rows,
        skipped=tuple(skipped),
        results=tuple(results),
        step_time=_summary(counted),
        partial=_summary(row for row in counted if not row.case.complete),
        assumed=_summary(apart),
        assumed_families=_grouped(apart, lambda row: row.case.family.value),
        assumed_frameworks=_grouped(apart, lambda row: row.case.run.framework or ""),
        families=_grouped(complete, lambda row: row.case.family.value),
        by={name: _grouped(counted, key) for name, key in _KEYS.items()},
        memory=compare_memory([(row.case, row.prediction) for row in results]),
        ranking=summarize_ranking(groups),
        ranking_by_kind={kind: summarize_ranking(_rankings(rows)) for kind, rows in kinds.items() if rows},
        groups=groups,
    )


def _kind(row: RowResult) -> str:
    return "moe" if row.case.model.is_moe else "dense"


_KEYS: dict[str, Callable[[RowResult], str]] = {
    "framework": lambda row: row.case.framework.value,
    "gpu": lambda row: row.case.cluster.gpu.name,
    "precision": lambda row: row.case.layout.precision.value,
    "kind": _kind,
}


def _rankings(rows: Sequence[RowResult]) -> tuple[GroupRanking, ...]:
    cases = [row.case for row in rows]
    predicted = {index: row.prediction.step_time_s for index, row in enumerate(rows)}
    return tuple(rank_group(group) for group in ranked_groups(cases, predicted))


def _summary(rows: Iterable[RowResult]) -> ErrorSummary:
    return summarize([row.error for row in rows if row.error is not None])


def _grouped(rows: Sequence[RowResult], key: Callable[[RowResult], str]) -> dict[str, ErrorSummary]:
    names = sorted({key(row) for row in rows})
    return {name: _summary(row for row in rows if key(row) == name) for name in names}


MIXED_RELEASES = "xrel-"
"""Prefix of groups that mix software releases; they are never ranked."""


def layout_key(case: Case) -> Hashable:
    """Return what makes two runs of a group the same layout: the layout and the switches of its launch."""
    layout = case.layout
    stages = tuple((stage.layers, stage.recomputed) for stage in layout.stages)
    # Micro-batches follow from the batch, which is the question's and not the layout's.
    return replace(layout, stages=(), micro_batches=1), stages, tuple(sorted(case.switches.items()))


def members(cases: Sequence[Case]) -> dict[str, list[int]]:
    """Return the indices of each group's timed cases, groups that mix releases left out."""
    groups: dict[str, list[int]] = {}
    for index, case in enumerate(cases):
        name = case.run.group
        if name and not name.startswith(MIXED_RELEASES) and case.measured_s is not None:
            groups.setdefault(name, []).append(index)
    return groups


def ranked_groups(cases: Sequence[Case], predicted_s: Mapping[int, float]) -> list[RankedGroup]:
    """Average repeats of a layout, and return the groups of at least three layouts.

    ``predicted_s`` maps indices of ``cases`` to predicted seconds.
    """
    groups = []
    for name, indices in members(cases).items():
        layouts: dict[Hashable, list[int]] = {}
        for index in indices:
            if index in predicted_s:
                layouts.setdefault(layout_key(cases[index]), []).append(index)
        # Of two layouts the better is found half of the time by chance.
        if len(layouts) >= SMALLEST_GROUP:
            groups.append(_group(name, list(layouts.values()), cases, predicted_s))
    return groups


def _group(
    name: str, layouts: Sequence[Sequence[int]], cases: Sequence[Case], predicted_s: Mapping[int, float]
) -> RankedGroup:
    return RankedGroup(
        name=name,
        # Repeats of a layout are averaged: their order is noise.
        measured_s=tuple(fmean(cases[index].measured_s or 0.0 for index in same) for same in layouts),
        predicted_s=tuple(fmean(predicted_s[index] for index in same) for same in layouts),
    )
