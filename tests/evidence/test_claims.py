"""A claim that a layout is faster names the components that carry it and the measured runs behind each."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from checks.published import read_runs

from layoutopt.optimizer.cost.components import Component
from layoutopt.optimizer.evidence.band import bands, error_band
from layoutopt.optimizer.evidence.cases import build_cases
from layoutopt.optimizer.evidence.claims import FEW_ROWS, carriers
from layoutopt.optimizer.evidence.honesty import assess
from layoutopt.optimizer.evidence.predict import predict, price
from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.report.json_forms import plan_to_plain
from layoutopt.optimizer.report.tables.honesty import claim_size_words, claim_words
from layoutopt.optimizer.solve.api import solve_layout
from layoutopt.optimizer.solve.plan import SolveOptions
from layoutopt.optimizer.specs.loading import load_cluster, load_workload
from layoutopt.optimizer.specs.vocabulary import Precision

if TYPE_CHECKING:
    from layoutopt.optimizer.cost.estimate import Estimate
    from layoutopt.optimizer.evidence.case import Case


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    """Every case of the tables."""
    return build_cases(read_runs())[0]


def pairs(cases: list[Case]) -> list[tuple[Estimate, Estimate]]:
    """Price two layouts each of five published groups: the faster, the slower."""
    groups: dict[str, list[Case]] = defaultdict(list)
    for case in cases:
        if case.run.group and not case.run.group.startswith("xrel-"):
            groups[case.run.group].append(case)
    several = [group for group in groups.values() if len(group) >= 3]
    chosen = several[:: len(several) // 5][:5]
    found = []
    for first, *_, last in chosen:
        one, other = sorted((price(first), price(last)), key=lambda estimate: estimate.step_time_s)
        found.append((one, other))
    return found


def test_five_published_comparisons_by_hand(cases: list[Case]) -> None:
    """Differences of the two breakdowns, those of at least a tenth of the gain, with the shipped number of rows."""
    tested = bands()["tested"]
    for faster, slower in pairs(cases):
        whole = slower.step_time_s - faster.step_time_s
        assert whole > 0
        by_hand = []
        for name in Component:
            gain = slower.breakdown_s.get(name, 0.0) - faster.breakdown_s.get(name, 0.0)
            if gain >= 0.1 * whole:
                by_hand.append((gain, name))
        by_hand = sorted(by_hand, key=lambda one: -one[0])[:3]
        found = carriers(faster.breakdown_s, slower.breakdown_s)
        assert [one.component for one in found] == [name for _, name in by_hand]
        assert [one.share for one in found] == pytest.approx([gain / whole for gain, _ in by_hand])
        words = claim_words(faster, slower)
        for gain, name in by_hand:
            count = tested.get(name.value, 0)
            weak = ": little evidence" if count < FEW_ROWS else ""
            assert f"{name.record.words} {gain / whole:.0%} ({count} measured runs{weak})" in words


def test_rows_behind_a_component_are_counted_from_the_tables(cases: list[Case]) -> None:
    """Complete timed rows of whose step the component is predicted to be at least 1%."""
    counts: Counter[str] = Counter()
    for case in cases:
        if case.measured_s is not None and case.complete and not case.assumed:
            found = predict(case)
            counts.update(
                name.value
                for name, seconds in found.breakdown_s.items()
                if seconds >= 0.01 * found.step_time_s
            )
    assert dict(bands()["tested"]) == counts


def test_no_gain_no_claim() -> None:
    """Nothing carries what is not faster; what no row tests says so."""
    one, other = {Component.FORWARD: 1.0}, {Component.FORWARD: 1.0, Component.OFFLOAD: 1.0}
    assert carriers(one, one) == ()
    assert carriers(other, one) == ()
    (found,) = carriers(one, other)
    assert (found.component, found.share, found.rows) == (Component.OFFLOAD, 1.0, 0)


def test_a_gain_is_measured_against_the_band() -> None:
    """Too small to tell, plausible, or larger than what predictions of unseen runs are off by."""
    cluster = load_cluster("h100x16")
    found = error_band(load_workload("llama3-8b"), cluster, Precision.BF16, framework=Framework.MEGATRON)
    band = replace(found, indistinct=0.05, unseen_p90_ape=0.2)
    small, plausible, large = (claim_size_words(gain, band) for gain in (0.04, 0.1, 0.3))
    assert "5.0%" in small and "not distinguishable" in small
    assert "20%" in large and "doubt it" in large
    assert "doubt it" not in plausible and "not distinguishable" not in plausible


def test_json_names_what_carries_a_near_tie() -> None:
    """Every runner-up lists the components that make it slower, as ``carriers`` finds them, with their measured runs."""
    workload, cluster = load_workload("llama3-8b"), load_cluster("h100x8")
    options = SolveOptions(top=3)
    plan = solve_layout(workload, cluster, options)
    plain = plan_to_plain(plan, assess(plan, workload, cluster, options))
    assert plan.estimate is not None and plan.alternatives
    for other, slower in zip(plain["alternatives"], plan.alternatives, strict=True):
        found = carriers(plan.estimate.breakdown_s, slower.estimate.breakdown_s)
        assert [one["component"] for one in other["carried_by"]] == [one.component.value for one in found]
        assert [one["rows"] for one in other["carried_by"]] == [one.rows for one in found]
