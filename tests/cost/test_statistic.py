"""Statistics over sets of constants: means, largest, quantiles, and what may be below a value."""

from __future__ import annotations

import numpy as np
import pytest

from layoutopt.optimizer.cost.statistic import Statistic, StatisticKind, quantile_place

STEPS = np.array([[3.0, 1.0, 2.0, 5.0], [4.0, 4.0, 4.0, 1.0]])
EVEN = np.ones(4)


def statistic(kind: StatisticKind, weights: object = EVEN, **more: int) -> Statistic:
    """A statistic over four sets."""
    return Statistic(kind=kind, weights=np.asarray(weights), **more)


def test_each_kind_is_what_its_name_says() -> None:
    """Weighted sum, largest weighted step, the step that so many sets keep to, not below one that must count."""
    assert statistic(StatisticKind.MEAN, EVEN / 4).of(STEPS).tolist() == [2.75, 3.25]
    assert statistic(StatisticKind.LARGEST, [1.0, 6.0, 1.0, 1.0]).of(STEPS).tolist() == [6.0, 24.0]
    assert statistic(StatisticKind.QUANTILE, place=3).of(STEPS).tolist() == [3.0, 4.0]
    assert statistic(StatisticKind.QUANTILE, place=1).of(STEPS).tolist() == [1.0, 1.0]
    assert statistic(StatisticKind.QUANTILE, place=1, must=0).of(STEPS).tolist() == [3.0, 4.0]


def test_only_the_set_with_the_largest_step_tells_why() -> None:
    """Weights count; of other statistics every set has a part."""
    for row, told in zip(STEPS, (3, 0), strict=True):
        assert statistic(StatisticKind.LARGEST).telling(row) == [told]
    assert statistic(StatisticKind.LARGEST, [1.0, 6.0, 1.0, 1.0]).telling(STEPS[0]) == [1]
    assert statistic(StatisticKind.MEAN).telling(STEPS[0]) == [0, 1, 2, 3]
    assert statistic(StatisticKind.QUANTILE, place=2).telling(STEPS[0]) == [0, 1, 2, 3]


def test_a_quantile_is_possible_where_sets_enough_are_below() -> None:
    """As many as the place, and the one that must count among them."""
    below = np.array([[True, True, False, False], [False, True, True, True]])
    assert statistic(StatisticKind.QUANTILE, place=2).possible(below).tolist() == [True, True]
    assert statistic(StatisticKind.QUANTILE, place=3).possible(below).tolist() == [False, True]
    assert statistic(StatisticKind.QUANTILE, place=2, must=0).possible(below).tolist() == [True, False]


@pytest.mark.parametrize("samples", [1, 2, 10, 64])
def test_the_place_is_the_least_that_holds_the_share(samples: int) -> None:
    """The smallest place whose share of the values is not below the quantile's, 1 at least."""
    for share in (0.0, 0.01, 0.5, 0.9, 1.0):
        place = quantile_place(share, samples)
        assert place / samples >= share - 1e-9
        assert place == 1 or (place - 1) / samples < share
