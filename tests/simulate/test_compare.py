"""Simulated against analytic for one layout."""

from __future__ import annotations

import numpy as np
import pytest

from layoutopt.optimizer.cost.orders import Pipeline
from layoutopt.optimizer.simulate.compare import rank_times, simulate_layout
from layoutopt.optimizer.simulate.engine import StageWork
from layoutopt.optimizer.specs.vocabulary import Schedule


def head_heavy(pp: int, vp: int) -> StageWork:
    """Return stages whose last one also runs the head."""
    forward = np.ones((pp, vp))
    forward[-1, -1] += 0.5
    return StageWork(
        forward_s=forward,
        dgrad_s=forward,
        wgrad_s=0.8 * forward,
        activation_bytes=1e9 * np.ones((pp, vp)),
        static_bytes=np.full(pp, 2e9),
        hop_s=np.full(pp, 0.01),
    )


def test_everything_adds_up() -> None:
    """Both steps contain the fixed time; deviation and exposed hops follow from them."""
    pipeline = Pipeline(schedule=Schedule.ONE_F_ONE_B, pp=4, micro_batches=8)
    plain, later = (simulate_layout(pipeline, head_heavy(4, 1), fixed_s=fixed) for fixed in (0.0, 3.0))
    assert later.simulated_step_s - plain.simulated_step_s == pytest.approx(3.0)
    assert later.analytic_step_s - plain.analytic_step_s == pytest.approx(3.0)
    assert later.deviation == later.analytic_step_s / later.simulated_step_s - 1.0
    assert 0.0 < later.simulated_exposed_hops_s <= later.analytic_exposed_hops_s + 1e-9
    # A slow last stage leaves the formula exact but for the hops that its bound counts.
    without = StageWork(
        forward_s=head_heavy(4, 1).forward_s, dgrad_s=head_heavy(4, 1).dgrad_s, wgrad_s=np.zeros((4, 1))
    )
    assert simulate_layout(pipeline, without).deviation == pytest.approx(0.0, abs=1e-12)


def test_memory_beside_the_closed_form() -> None:
    """Stage-by-stage peaks agree where a rank's chunks are alike, and the curve reaches them."""
    pipeline = Pipeline(schedule=Schedule.INTERLEAVED, pp=4, vp=2, micro_batches=16)
    compared = simulate_layout(pipeline, head_heavy(4, 2))
    np.testing.assert_allclose(compared.simulated_peak_bytes, compared.analytic_peak_bytes)
    assert compared.simulated_peak_bytes[0] == 2e9 + 11 * 1e9
    assert [memory.held_bytes.max() for memory in compared.result.memory] == list(
        compared.simulated_peak_bytes
    )


def test_the_cost_models_own_figure_can_be_compared() -> None:
    """A given step time replaces the closed form, not the simulation."""
    pipeline = Pipeline(schedule=Schedule.ONE_F_ONE_B, pp=2, micro_batches=4)
    compared = simulate_layout(pipeline, head_heavy(2, 1), analytic_step_s=20.0)
    assert compared.analytic_step_s == 20.0
    assert compared.deviation == pytest.approx(20.0 / compared.simulated_step_s - 1.0)


def test_rank_times_of_pairs_and_directions() -> None:
    """A DualPipe rank's time is the mean of its two directions, taken as pairs."""
    stages = np.array([[1.0], [2.0], [3.0], [4.0]])
    pipeline = Pipeline(schedule=Schedule.DUALPIPE, pp=4, micro_batches=8)
    work = StageWork(forward_s=stages, dgrad_s=stages, wgrad_s=stages)
    # Rank 0 pairs F of stage 0 (1) with B of stage 3 (8), and F of stage 3 (4) with B of stage 0 (2).
    assert rank_times(pipeline, work).tolist() == [7.5] * 4
    hidden = StageWork(forward_s=stages, dgrad_s=stages, wgrad_s=stages, pair_s=np.full((4, 2), 6.0))
    assert rank_times(pipeline, hidden).tolist() == [6.0] * 4


@pytest.mark.parametrize(
    ("factors", "m", "promised"),
    [
        ([1.0, 1.0, 1.0, 1.0], 4, 0.02),  # even
        ([1.0, 1.09, 1.0, 1.0], 4, 0.06),  # nearly even
        ([1.0, 1.5, 1.0, 1.0], 4, None),  # uneven, few micro-batches
        ([1.0, 1.5, 1.0, 1.0], 32, 0.06),  # uneven, many
    ],
)
def test_tolerance_says_what_is_promised(factors: list[float], m: int, promised: float | None) -> None:
    """The promise depends on how even the stages are and on micro-batches per rank."""
    stages = np.array(factors)[:, None]
    pipeline = Pipeline(schedule=Schedule.ONE_F_ONE_B, pp=4, micro_batches=m)
    compared = simulate_layout(pipeline, StageWork(forward_s=stages, dgrad_s=stages, wgrad_s=stages))
    assert compared.tolerance == promised


def test_gpipe_promises_nothing_when_forward_and_backward_disagree() -> None:
    """GPipe's phases have their own slowest ranks: max F + max B, not max (F + B), sets the pace."""
    forward, backward = np.array([[2.0], [1.0]]), np.array([[1.0], [2.0]])
    pipeline = Pipeline(schedule=Schedule.GPIPE, pp=2, micro_batches=16)
    compared = simulate_layout(
        pipeline, StageWork(forward_s=forward, dgrad_s=backward, wgrad_s=np.zeros((2, 1)))
    )
    assert compared.tolerance is None
    assert compared.deviation < -0.2
