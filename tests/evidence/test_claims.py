"""A claim that a layout is faster names the components that carry it and the measured runs behind each."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

import pytest
from checks.published import read_runs

from layoutopt.optimizer.cost.components import Component
from layoutopt.optimizer.evidence.band import bands
from layoutopt.optimizer.evidence.cases import build_cases
from layoutopt.optimizer.evidence.claims import FEW_ROWS, carriers
from layoutopt.optimizer.evidence.predict import predict, price
from layoutopt.optimizer.report.tables.honesty import claim_words

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
