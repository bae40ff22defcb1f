"""Predictions of a few runs over a grid of one constant: all that fitting and leaving out needs is built once."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.cost.batch import batch_of
from layoutopt.optimizer.cost.factory import build_cost_model
from layoutopt.optimizer.cost.stage_counts import rank_blocks, seat_blocks
from layoutopt.optimizer.cost.step import durations, form_of, graph_of
from layoutopt.optimizer.cost.terms import price_stages
from layoutopt.optimizer.evidence.predict import preset_of
from layoutopt.optimizer.evidence.robust import huber_location, huber_loss

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

    from numpy.typing import NDArray

    from layoutopt.optimizer.cost.batch import LayoutBatch
    from layoutopt.optimizer.cost.cost_model import CostModel
    from layoutopt.optimizer.cost.step import PathForm
    from layoutopt.optimizer.cost.terms import StageTerms
    from layoutopt.optimizer.evidence.case import Case
    from layoutopt.optimizer.evidence.parameters import Parameter

    FloatArray = NDArray[np.float64]
    IntArray = NDArray[np.int64]


SPREAD = 0.03
"""Spread of log ratios inside which a run is as good as its repeats."""

PRIOR_SIGMA = {"gemm_cap": 0.15, "nvlink_fraction": 0.2, "network_fraction": 0.35, "host_layer_s": 0.6}
"""Standard deviation of the log of a constant around the package's value. Clusters share their chips, not
their fabric, and hosts differ most: fabrics reach 0.49-0.86 of nominal, hosts take 0.55-1.4 ms a layer."""

_STEPS = (0.4, 0.5, 0.6, 0.7, 0.8, 0.87, 0.93, 1.0, 1.07, 1.15, 1.25, 1.43, 1.67, 2.0, 2.5, 3.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Log of measured over predicted seconds, ``log_ratios[i][run]``, at values ``grid[i]`` of one constant.

    ``start`` is the index of the constant's present value, ``sigma`` its standard deviation in log units.
    """

    sigma: float
    grid: tuple[float, ...]
    log_ratios: tuple[tuple[float, ...], ...]
    start: int

    def fixed(self) -> Profile:
        """Return the profile at the present value alone."""
        return replace(
            self, grid=(self.grid[self.start],), log_ratios=(self.log_ratios[self.start],), start=0
        )

    def without(self, run: int) -> Profile:
        """Return the profile of the other runs."""
        return replace(self, log_ratios=tuple(row[:run] + row[run + 1 :] for row in self.log_ratios))


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileFit:
    """The grid point with the least loss, the constant's value there, and the log scale that goes with it."""

    index: int
    value: float
    log_scale: float


def profile_of(cases: Sequence[Case], parameter: Parameter, values: Mapping[str, float]) -> Profile:
    """Price timed cases on a grid of one constant, the others at ``values``."""
    present = values.get(parameter.name, parameter.value)
    # The present value stays on the grid, so that no change is one of the choices.
    grid = sorted({parameter.clipped(present * step) for step in _STEPS} | {present})
    groups = prepare(cases)
    rows = [_log_ratios(cases, groups, {**values, parameter.name: value}) for value in grid]
    sigma = PRIOR_SIGMA[parameter.name.partition(".")[0]]
    return Profile(sigma=sigma, grid=tuple(grid), log_ratios=tuple(rows), start=grid.index(present))


def _log_ratios(
    cases: Sequence[Case], groups: Sequence[PreparedGroup], values: Mapping[str, float]
) -> tuple[float, ...]:
    seconds = step_times_s(groups, len(cases), values).tolist()
    return tuple(
        math.log((case.measured_s or 0.0) / predicted) for case, predicted in zip(cases, seconds, strict=True)
    )


def fit_profile(profile: Profile) -> ProfileFit:
    """Choose the constant's value: Huber loss after the best scale, plus a prior around the present value."""
    present = profile.grid[profile.start]
    losses, scales = [], []
    for value, ratios in zip(profile.grid, profile.log_ratios, strict=True):
        # Each value of the constant is judged with the scale that suits it best, since a scale is fitted
        # after.
        scale = huber_location(ratios, least_spread=SPREAD).value
        # Without it few runs would drag a constant to the end of its grid.
        prior = (math.log(value / present) / profile.sigma) ** 2 / 2
        losses.append(sum(huber_loss(ratio - scale, SPREAD) for ratio in ratios) + prior)
        scales.append(scale)
    index = losses.index(min(losses))
    return ProfileFit(index=index, value=profile.grid[index], log_scale=scales[index])


def left_out_error(profile: Profile) -> float:
    """Return the mean absolute log ratio of each run after fitting the others."""
    errors = []
    for run in range(len(profile.log_ratios[0])):
        fit = fit_profile(profile.without(run))
        errors.append(abs(profile.log_ratios[fit.index][run] - fit.log_scale))
    return fmean(errors)


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedGroup:
    """Cases that differ in layout alone, as one batch.

    ``members`` index the list that was prepared; ``blocks`` and ``recomputed`` have shape (n, P, K). ``paths`` are the
    longest ones through each case's schedule under its own constants, None where no order runs it.
    """

    members: tuple[int, ...]
    case: Case
    batch: LayoutBatch
    blocks: IntArray
    recomputed: IntArray
    paths: tuple[CasePath | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CasePath:
    """A path through a case's schedule, and its blocks and recomputed blocks of every chunk, (V, P, K)."""

    form: PathForm
    blocks: IntArray
    recomputed: IntArray

    def step_s(self, terms: StageTerms, row: int) -> float:
        """Return the seconds of the path in a row's step: the exact step as long as no other path becomes longer."""
        one = terms.take(np.array([row]))
        work = (self.form.block_s(one)[0] * self.blocks).sum() + (
            self.form.again_s(one)[0] * self.recomputed
        ).sum()
        return float(work + self.form.constant_s(one)[0])


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
    # The batch is in each layout's micro-batches; all else must be equal to share a cost model.
    training = repr(replace(case.training, global_batch=1))
    return case.model, training, repr(cluster), calibration, case.framework, case.software, switches


def _group(members: Sequence[int], cases: Sequence[Case]) -> PreparedGroup:
    own = [cases[index] for index in members]
    counts = [rank_blocks(case.layout, case.model) for case in own]
    widest = max(case.layout.pp for case in own)
    batch = batch_of([case.layout for case in own])
    # Paths are those under the case's own constants, found once; values only change their lengths.
    terms = _cost_model(own[0], {}).terms(batch)
    return PreparedGroup(
        members=tuple(members),
        case=own[0],
        batch=batch,
        paths=tuple(_path(terms, row, case) for row, case in enumerate(own)),
        blocks=np.stack([_padded(blocks, widest) for blocks, _ in counts]),
        recomputed=np.stack([_padded(recomputed, widest) for _, recomputed in counts]),
    )


def _padded(counts: IntArray, ranks: int) -> IntArray:
    # Batches are rectangular: ranks that a shallower pipeline lacks hold nothing.
    return np.pad(counts, ((0, ranks - len(counts)), (0, 0)))


def step_times_s(groups: Sequence[PreparedGroup], count: int, values: Mapping[str, float]) -> FloatArray:
    """Return predicted seconds (count,) of prepared cases, NaN for those that no group holds."""
    seconds = np.full(count, np.nan)
    for group in groups:
        seconds[list(group.members)] = group_step_times_s(group, values)
    return seconds


def group_step_times_s(group: PreparedGroup, values: Mapping[str, float]) -> FloatArray:
    """Return predicted seconds (members,) of one group's cases, in their order.

    Each is the length of the path that is the longest under the case's own constants: linear in what ``values`` change, and
    never above the exact step.
    """
    terms = _cost_model(group.case, values).terms(group.batch)
    seconds = price_stages(terms, group.blocks, group.recomputed).step_time_s.copy()
    for row, path in enumerate(group.paths):
        if path is not None:
            seconds[row] = path.step_s(terms, row)
    return seconds


def _cost_model(case: Case, values: Mapping[str, float]) -> CostModel:
    cluster = replace(case.cluster, calibration={**case.cluster.calibration, **values})
    return build_cost_model(
        case.model, case.training, cluster, framework=case.framework, preset=preset_of(case, values)
    )


def _path(terms: StageTerms, row: int, case: Case) -> CasePath | None:
    graph = graph_of(terms, row)
    if graph is None:
        return None
    blocks, recomputed = seat_blocks(case.layout, case.model)
    _, (path,) = graph.longest(durations(terms, row, blocks[None], recomputed[None]))
    return CasePath(form=form_of(path, terms, row), blocks=blocks, recomputed=recomputed)
