"""Intervals of step times and memory hold what they say, on runs whose publication no constant was fitted to."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest
from checks.published import read_runs
from checks.residuals import FEWEST, Residual, coverage, families, from_csv, ratios

from layoutopt.optimizer.evidence.band import ALL, SHARES, error_band, intervals, memory_ratios
from layoutopt.optimizer.evidence.cases import build_cases
from layoutopt.optimizer.evidence.honesty import assess_layout
from layoutopt.optimizer.evidence.predict import predict
from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.solve.api import solve_layout
from layoutopt.optimizer.solve.plan import SolveOptions
from layoutopt.optimizer.specs.loading import load_cluster, load_workload, override_training
from layoutopt.optimizer.specs.vocabulary import Precision

RESIDUALS = from_csv((Path(__file__).parents[2] / "benchmarks" / "left_out.csv").read_text(encoding="utf-8"))
QUANTITIES = {name: [one for one in RESIDUALS if one.quantity == name] for name in ("step", "memory")}
FAMILIES = [
    (quantity, family)
    for quantity, rows in QUANTITIES.items()
    for family in (ALL, *families(rows))
    if family == ALL or Counter(one.family for one in rows)[family] >= FEWEST
]

POINTS = 0.05
"""How far the share inside may be from the percent stated."""


@pytest.mark.parametrize("percent", SHARES)
@pytest.mark.parametrize(("quantity", "family"), FAMILIES)
def test_intervals_cover_what_they_say(quantity: str, family: str, percent: str) -> None:
    """Of every family with at least 20 rows, 50, 80 and 95% of runs left out of the fit lie in those intervals."""
    found = coverage(QUANTITIES[quantity], family, percent)
    assert abs(found.inside - int(percent) / 100) <= POINTS


EVERY = 6
"""Of the runs that constants were fitted to, every so many is priced again."""


def test_the_residuals_are_those_of_todays_prices() -> None:
    """The committed table belongs to the constants and the cost model as they are; benchmarks/intervals.py renews it."""
    held = {one.id: one.in_fit for one in QUANTITIES["step"] if one.in_fit is not None}
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
    for quantity, rows in QUANTITIES.items():
        assert set(intervals()[quantity]) == {ALL, *families(rows)}
        for family, kinds in intervals()[quantity].items():
            for percent, ends in ratios(rows, family).items():
                assert kinds["unseen"][percent] == pytest.approx(ends, abs=6e-4)
    for family, kinds in intervals()["step"].items():
        for percent, ends in ratios(QUANTITIES["step"], family, in_fit=True).items():
            assert kinds["seen"][percent] == pytest.approx(ends, abs=6e-4)


def test_intervals_made_without_a_publication_cover_most_of_it() -> None:
    """Four fifths are meant: of all steps, publication by publication, at least 70% lie inside intervals made without it."""
    found = coverage(QUANTITIES["step"], ALL, "80")
    assert found.sources >= 20 and found.rows >= 900
    assert 0.7 <= found.inside_apart <= 0.9


def test_a_wider_spread_widens_the_interval() -> None:
    """Twice the errors, twice the logs of the ends; a family of its own is told from the others."""
    rows = [
        Residual(quantity="step", id=str(n), family="a", source=f"s{n % 5}", left_out=n / 1e3, in_fit=None)
        for n in range(-200, 201)
    ]
    low, high = ratios(rows, "a")["80"]
    wide = ratios([replace(one, left_out=2 * one.left_out) for one in rows], "a")["80"]
    assert wide == pytest.approx((low**2, high**2))
    assert coverage(rows, "a", "80").inside == pytest.approx(0.8, abs=0.01)
    moved = [replace(one, source="b") if one.left_out > 0.15 else one for one in rows]
    assert coverage(moved, "a", "80").inside_apart < coverage(moved, "a", "80").inside


def test_answers_carry_their_intervals() -> None:
    """Step time and peak times the measured over predicted of the kind of run; the calibrated cluster's are narrower."""
    workload, cluster = override_training(load_workload("llama3-8b"), global_batch=64), load_cluster("h100x8")
    plan = solve_layout(workload, cluster, SolveOptions())
    assert plan.layout is not None and plan.estimate is not None
    found = assess_layout(plan.layout, workload, cluster, framework=Framework.MEGATRON)
    assert found is not None
    step_s, peak_bytes = plan.estimate.step_time_s, plan.estimate.memory.peak_bytes
    for percent in SHARES:
        low, high = error_band(workload.model, cluster, Precision.BF16).ratios[percent]
        assert found.intervals_s(step_s)[percent] == pytest.approx((low * step_s, high * step_s))
        low, high = memory_ratios(Framework.MEGATRON)[percent]
        assert found.intervals_bytes(peak_bytes)[percent] == pytest.approx(
            (low * peak_bytes, high * peak_bytes)
        )
    own = replace(found, calibrated=True).intervals_s(step_s)["80"]
    other = found.intervals_s(step_s)["80"]
    assert own[1] - own[0] < other[1] - other[0]
