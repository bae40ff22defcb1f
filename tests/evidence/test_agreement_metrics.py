"""Error summaries, Kendall's tau, clear pairs and regret, against hand-worked figures and a reference."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.stats import kendalltau

from layoutopt.optimizer.evidence.case import Case
from layoutopt.optimizer.evidence.cases import build_case
from layoutopt.optimizer.evidence.metrics import (
    RankedGroup,
    is_clear,
    kendall_tau,
    quantile,
    rank_group,
    summarize,
    summarize_ranking,
)
from layoutopt.optimizer.evidence.robust import huber_location
from layoutopt.optimizer.evidence.validate import ranked_groups

if TYPE_CHECKING:
    from collections.abc import Callable

    from layoutopt.optimizer.evidence.run import MeasuredRun


def test_summary_by_hand() -> None:
    """MAPE, median, P90 and bias of five signed errors."""
    summary = summarize([0.1, -0.2, 0.0, 0.3, -0.1])
    assert summary.rows == 5
    assert summary.mape == pytest.approx(0.14)
    assert summary.median_ape == pytest.approx(0.1)
    assert summary.p90_ape == pytest.approx(0.26)
    assert summary.bias == pytest.approx(0.02)


def test_summary_of_nothing() -> None:
    """No rows give no figures, not zeros."""
    assert (summarize([]).rows, summarize([]).mape, summarize([]).bias) == (0, None, None)


def test_quantile_of_one_value() -> None:
    """A single value is every quantile."""
    assert quantile([3.0], 0.9) == 3.0


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=2, max_size=12))
def test_tau_is_tau_b(pairs: list[tuple[int, int]]) -> None:
    """Ties on either side are corrected for as the reference implementation does."""
    first, second = [float(a) for a, _ in pairs], [float(b) for _, b in pairs]
    tau = kendall_tau(first, second)
    if len(set(first)) == 1 or len(set(second)) == 1:
        assert tau is None
    else:
        assert tau == pytest.approx(kendalltau(first, second).statistic)


def test_a_group_by_hand() -> None:
    """Measured 1.0, 1.05, 1.2, 2.0; the model prefers the third, then the second, and ties the last two."""
    group = RankedGroup(name="g", measured_s=(1.0, 1.05, 1.2, 2.0), predicted_s=(3.0, 2.0, 1.0, 3.0))
    ranking = rank_group(group)
    # Clear are all pairs but (1, 1.05); right (1.05, 2) and (1.2, 2), and half of the tied (1, 2).
    assert (ranking.clear_pairs, ranking.clear_right) == (5, 2.5)
    assert ranking.top1_regret == pytest.approx(0.2)
    assert ranking.top3_regret == pytest.approx(0.0)


def test_clear_pairs_are_more_than_ten_percent_apart() -> None:
    """The gap is measured against the faster one."""
    assert not is_clear(1.0, 1.1)
    assert is_clear(1.11, 1.0)


def test_groups_of_two_are_not_ranked() -> None:
    """Ranking needs three layouts; without any group the figures are absent."""
    two = rank_group(RankedGroup(name="g", measured_s=(1.0, 2.0), predicted_s=(1.0, 2.0)))
    summary = summarize_ranking([two])
    assert (summary.groups, summary.kendall_tau, summary.top1_regret_mean) == (0, None, None)


def test_repeats_are_averaged_and_mixed_releases_left_out(make_run: Callable[..., MeasuredRun]) -> None:
    """Two runs of one layout are one entry; groups that mix releases are not ranked."""
    layouts = [{"micro_batch": 1}, {"micro_batch": 2}, {"micro_batch": 4}, {"micro_batch": 1}]
    times = [4.0, 3.0, 2.0, 6.0]
    runs = [
        make_run(id=f"{group}-{index}", group=group, measured_step_s=time, **layout)
        for group in ("g", "xrel-g")
        for index, (layout, time) in enumerate(zip(layouts, times, strict=True))
    ]
    cases = [case for run in runs if isinstance(case := build_case(run), Case)]
    predicted = {index: float(index) for index in range(len(cases))}
    (group,) = ranked_groups(cases, predicted)
    assert group.name == "g"
    assert sorted(group.measured_s) == [2.0, 3.0, 5.0]
    assert sorted(group.predicted_s) == [1.0, 1.5, 2.0]


@given(st.lists(st.floats(-0.05, 0.05), min_size=4, max_size=20), st.floats(1.0, 5.0))
def test_an_outlier_barely_moves_the_location(values: list[float], outlier: float) -> None:
    """Among at least four agreeing values one wild one moves the estimate less than it moves the mean."""
    location = huber_location([*values, outlier], least_spread=0.03)
    mean = (sum(values) + outlier) / (len(values) + 1)
    inner = sum(values) / len(values)
    assert abs(location.value - inner) < abs(mean - inner)
    assert location.weights[-1] < 0.5


@given(st.lists(st.floats(-3, 3), min_size=1, max_size=20), st.floats(-2, 2))
def test_location_moves_with_its_values(values: list[float], shift: float) -> None:
    """Shifting every value shifts the estimate, and it stays between the extremes."""
    assume(all(abs(value) > 1e-6 for value in values))
    base = huber_location(values, least_spread=0.03).value
    moved = huber_location([value + shift for value in values], least_spread=0.03).value
    assert moved == pytest.approx(base + shift, abs=1e-6)
    assert min(values) - 1e-9 <= base <= max(values) + 1e-9
