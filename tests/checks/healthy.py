"""Faulty builds among published runs, and times of a job's start: told by measurements and notes alone."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from statistics import fmean, median
from typing import TYPE_CHECKING

from layoutopt.optimizer.evidence.metrics import rank_group, summarize_ranking
from layoutopt.optimizer.evidence.validate import ranked_groups

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping

    from layoutopt.optimizer.evidence.case import Case
    from layoutopt.optimizer.evidence.metrics import RankingSummary

FAULTY = 2.5
"""Seconds per token over those of the same layout elsewhere in its source. Releases of one trainer differ by up to 2
(tests/data/README.md); a larger micro-batch, bubble aside, never costs more per token."""

STARTING = re.compile(r"time of iteration [1-5] \(single snapshot\)")
"""Notes of rows whose time is that of one of a job's first five iterations alone: kernels are loaded and channels opened in
them, buffers allocated, and loss scales of 16 bits lowered, an optimizer step skipped each time."""


def steady(cases: Iterable[Case]) -> list[Case]:
    """Return the cases but for those whose own notes say that their time is one of a job's first iterations alone."""
    return [case for case in cases if not STARTING.search(case.run.notes or "")]


def faulty_builds(cases: Iterable[Case]) -> set[str]:
    """Return the ids of timed runs that took more than ``FAULTY`` times what the same layout takes elsewhere in its source.

    The same layout: model, GPU, sequence, precision, recomputation, release and all degrees but data parallelism, with a
    micro-batch that is no larger. A token's seconds are GPU seconds less the ideal bubble.
    """
    groups: dict[Hashable, list[tuple[int, float, str]]] = defaultdict(list)
    for case in cases:
        if case.measured_s is not None:
            layout = case.layout
            groups[_key(case)].append(
                (layout.micro_batch, _seconds_per_token(case, case.measured_s), case.run.id)
            )
    return {
        name
        for rows in groups.values()
        for size, seconds, name in rows
        if seconds > FAULTY * min(other for least, other, _ in rows if least <= size)
    }


def _key(case: Case) -> Hashable:
    layout, run = case.layout, case.run
    degrees = (layout.tp, layout.cp, layout.pp, layout.vp, layout.ep, layout.precision)
    source = (run.source or "").split("@")[0].split()[:1]
    return (*source, run.model, run.gpu, run.seq, run.recompute, run.software, *degrees)


def _seconds_per_token(case: Case, seconds: float) -> float:
    layout = case.layout
    gpus = layout.tp * layout.cp * layout.pp * layout.dp
    sequences = layout.dp * layout.micro_batch * layout.micro_batches
    working = layout.micro_batches / (layout.micro_batches + (layout.pp - 1) / layout.vp)
    return seconds * working * gpus / sequences


def healthy(cases: Iterable[Case]) -> list[Case]:
    """Return the cases but for faulty builds."""
    listed = list(cases)
    faulty = faulty_builds(listed)
    return [case for case in listed if case.run.id not in faulty]


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """How layouts of one group come out, faulty builds out.

    ``worst_regret``: of the groups' picks; ``curse``: by how much the picks' predictions over measurements lie below
    the medians of their groups, in the mean (the optimizer's curse).
    """

    summary: RankingSummary
    worst_regret: float
    curse: float


def order_of(cases: Iterable[Case], predicted_s: Mapping[str, float]) -> Order:
    """Rank groups of at least three layouts by predicted seconds, which ``predicted_s`` has by id."""
    kept = [case for case in healthy(cases) if case.measured_s is not None]
    groups = ranked_groups(kept, {index: predicted_s[case.run.id] for index, case in enumerate(kept)})
    regrets, below = [], []
    for group in groups:
        ratios = [p / m for p, m in zip(group.predicted_s, group.measured_s, strict=True)]
        pick = min(range(len(ratios)), key=lambda index: group.predicted_s[index])
        regrets.append(group.measured_s[pick] / min(group.measured_s) - 1)
        below.append(median(ratios) - ratios[pick])
    return Order(
        summary=summarize_ranking([rank_group(group) for group in groups]),
        worst_regret=max(regrets),
        curse=fmean(below),
    )
