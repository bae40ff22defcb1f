"""Cases made ready for pricing again and again with other constants; all but the constants is built once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.cost.batch import batch_of
from layoutopt.optimizer.cost.factory import build_cost_model
from layoutopt.optimizer.cost.stage_counts import rank_blocks
from layoutopt.optimizer.cost.terms import price_stages
from layoutopt.optimizer.evidence.predict import preset_of

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

    from numpy.typing import NDArray

    from layoutopt.optimizer.cost.batch import LayoutBatch
    from layoutopt.optimizer.evidence.case import Case

    FloatArray = NDArray[np.float64]
    IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedGroup:
    """Cases that differ in layout alone, as one batch.

    ``members`` index the list that was prepared; ``blocks`` and ``recomputed`` have shape (n, P, K).
    """

    members: tuple[int, ...]
    case: Case
    batch: LayoutBatch
    blocks: IntArray
    recomputed: IntArray


def prepare(cases: Sequence[Case]) -> list[PreparedGroup]:
    """Group cases of equal workload, cluster, framework and switches, and build one batch for each group."""
    groups: dict[Hashable, list[int]] = {}
    for index, case in enumerate(cases):
        groups.setdefault(_key(case), []).append(index)
    return [_group(members, cases) for members in groups.values()]


def _key(case: Case) -> Hashable:
    cluster = replace(case.cluster, calibration={})
    switches = tuple(sorted(case.switches.items()))
    calibration = tuple(sorted(case.cluster.calibration.items()))
    training = repr(replace(case.training, global_batch=1))
    return case.model, training, repr(cluster), calibration, case.framework, case.software, switches


def _group(members: Sequence[int], cases: Sequence[Case]) -> PreparedGroup:
    own = [cases[index] for index in members]
    counts = [rank_blocks(case.layout, case.model) for case in own]
    widest = max(case.layout.pp for case in own)
    return PreparedGroup(
        members=tuple(members),
        case=own[0],
        batch=batch_of([case.layout for case in own]),
        blocks=np.stack([_padded(blocks, widest) for blocks, _ in counts]),
        recomputed=np.stack([_padded(recomputed, widest) for _, recomputed in counts]),
    )


def _padded(counts: IntArray, ranks: int) -> IntArray:
    return np.pad(counts, ((0, ranks - len(counts)), (0, 0)))


def step_times_s(groups: Sequence[PreparedGroup], count: int, values: Mapping[str, float]) -> FloatArray:
    """Return predicted seconds of ``count`` prepared cases, NaN for those that no group holds."""
    seconds = np.full(count, np.nan)
    for group in groups:
        seconds[list(group.members)] = group_step_times_s(group, values)
    return seconds


def group_step_times_s(group: PreparedGroup, values: Mapping[str, float]) -> FloatArray:
    """Return predicted seconds of one group's cases, in the order of ``members``."""
    case = group.case
    cluster = replace(case.cluster, calibration={**case.cluster.calibration, **values})
    cost = build_cost_model(
        case.model, case.training, cluster, framework=case.framework, preset=preset_of(case, values)
    )
    return price_stages(cost.terms(group.batch), group.blocks, group.recomputed).step_time_s
