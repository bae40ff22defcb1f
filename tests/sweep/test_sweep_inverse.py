"""Questions asked backwards."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from layoutopt.optimizer.plan.options import PlanOptions
from layoutopt.optimizer.report.tables.sweep import sizes_section
from layoutopt.optimizer.solve.api import solve_layout
from layoutopt.optimizer.solve.plan import SolveOptions
from layoutopt.optimizer.specs.errors import InputError
from layoutopt.optimizer.specs.loading import load_cluster, load_workload
from layoutopt.optimizer.sweep.families import load_family
from layoutopt.optimizer.sweep.inverse import (
    SizeAnswer,
    cheapest,
    cost_by_size,
    fewest_for_deadline,
    fewest_that_fit,
    largest_useful_batch,
    marginal_values,
    never_slower,
    size_answer,
)

if TYPE_CHECKING:
    from layoutopt.optimizer.specs.workload import Workload

SOLVE = SolveOptions(top=1)
OPTIONS = PlanOptions(gpu_hour_cost=2.0, solve=SOLVE)


def test_fewest_gpus_that_fit() -> None:
    """No smaller size of the family fits: every one from the bound on was tried."""
    workload, family = load_workload("llama3-8b"), load_family("h100")
    found = fewest_that_fit(workload, family, SOLVE)
    assert found.gpus == 4
    assert solve_layout(workload, family.at(4), SOLVE).layout is not None
    assert [answer.gpus for answer in found.tried] == [2]
    for gpus in (1, 2):
        assert solve_layout(workload, family.at(gpus), SOLVE).layout is None


def test_nothing_fits_up_to_the_largest() -> None:
    """The answer is None, not a guess."""
    found = fewest_that_fit(load_workload("llama3-405b"), load_family("h100"), SOLVE, largest=80)
    assert found.gpus is None
    assert found.at_least > 40


def test_fewest_gpus_for_a_deadline(tiny: Workload) -> None:
    """The answer meets it with failures counted; every smaller size tried misses it; the bound holds."""
    workload = replace(tiny, training=replace(tiny.training, total_tokens=40e9, global_batch=256))
    found = fewest_for_deadline(workload, load_family("h100"), OPTIONS, days=0.5)
    assert found.gpus is not None
    by_size = {answer.gpus: answer for answer in found.tried}
    assert (by_size[found.gpus].expected_days or 9) <= 0.5
    assert all((a.expected_days or 9) > 0.5 for a in found.tried if a.gpus < found.gpus)
    assert found.at_least <= found.gpus
    assert found.step_gpus == 8
    assert (
        by_size[found.gpus].expected_days
        == size_answer(workload, load_cluster(f"h100x{found.gpus}"), OPTIONS).expected_days
    )


def test_deadlines_need_tokens_and_time(tiny: Workload) -> None:
    """Both mistakes are one line."""
    silent = replace(tiny, training=replace(tiny.training, total_tokens=None))
    with pytest.raises(InputError, match="needs the number of tokens"):
        fewest_for_deadline(silent, load_family("h100"), OPTIONS, days=1)
    with pytest.raises(InputError, match="days: 0 days"):
        fewest_for_deadline(tiny, load_family("h100"), OPTIONS, days=0)


def test_cost_falls_with_efficiency_and_a_deadline_raises_it(tiny: Workload) -> None:
    """Small sizes are cheapest; a deadline that they miss costs more."""
    answers = cost_by_size(tiny, load_family("h100"), (8, 16, 32), OPTIONS)
    best = cheapest(answers)
    assert best is not None
    assert best.gpus == 8
    limit = ((answers[0].expected_days or 0) + (answers[1].expected_days or 0)) / 2
    in_time = cheapest(answers, days=limit)
    assert in_time is not None
    assert in_time.gpus == 16
    assert (in_time.cost or 0) > (best.cost or 0)
    assert cheapest(answers, days=1e-9) is None
    assert best.cost == pytest.approx((best.expected_days or 0) * 24 * 8 * 2.0)


def test_sizes_without_a_layout_are_no_candidates() -> None:
    """Nothing fits: no cost, never the cheapest; without a price GPU-days decide."""
    assert cheapest([SizeAnswer(gpus=8)]) is None
    fast, slow = SizeAnswer(gpus=16, expected_days=1.0), SizeAnswer(gpus=8, expected_days=3.0)
    assert cheapest([SizeAnswer(gpus=4), slow, fast]) == fast


def test_largest_useful_batch(tiny: Workload) -> None:
    """Doubling gains less and less; the last worthwhile batch is the answer, a limit is kept."""
    found = largest_useful_batch(tiny, load_cluster("h100x16"), SOLVE, worth=0.03)
    gains = [answer.gain for answer in found.tried]
    assert gains[0] is None
    assert all(gain is not None and gain >= 0.03 for gain in gains[1:-1])
    assert gains[-1] is not None
    assert gains[-1] < 0.03
    assert found.global_batch == found.tried[-2].global_batch
    limited = largest_useful_batch(tiny, load_cluster("h100x16"), SOLVE, worth=0.0, most=64)
    assert [answer.global_batch for answer in limited.tried] == [32, 64]


def test_marginal_values_are_solved(tiny: Workload) -> None:
    """More of anything never hurts; each value is the difference of two optima."""
    cluster = load_cluster("h100x16")
    before = solve_layout(tiny, cluster, SOLVE).estimate
    assert before is not None
    values = {v.resource: v for v in marginal_values(tiny, cluster, before.step_time_s, OPTIONS)}
    assert set(values) == {"memory", "network", "nvlink", "flops", "hbm"}
    for value in values.values():
        assert value.saved >= -1e-9
        assert value.saved == pytest.approx(1 - value.step_time_s / before.step_time_s)
    assert values["flops"].saved > 0.02
    faster = replace(cluster, nic_bytes_per_s=cluster.nic_bytes_per_s * 1.1)
    again = solve_layout(tiny, faster, SOLVE).estimate
    assert again is not None
    assert values["network"].step_time_s == again.step_time_s
    assert values["flops"].cost_saved == pytest.approx((values["flops"].days_saved or 0) * 24 * 16 * 2.0)


def test_graphs_have_no_rates_to_raise(tiny: Workload) -> None:
    """An explicit graph states its own links."""
    cluster = replace(load_cluster("h100x16"), graph={"nodes": []})
    with pytest.raises(InputError, match="explicit graph"):
        marginal_values(tiny, cluster, 1.0, OPTIONS)


def test_no_size_is_slower_than_a_smaller_one() -> None:
    """A size that takes longer, or on which nothing fits, runs the smaller job; idle GPUs are paid for."""
    days = {8: 4.0, 16: 2.5, 24: 3.0, 32: 1.0, 64: None, 128: 0.5}
    answers = [
        SizeAnswer(gpus=gpus, expected_days=one, mfu_causal=one and 0.4, cost=one and one * gpus)
        for gpus, one in days.items()
    ]
    found = {one.gpus: one for one in never_slower([*answers[1:], answers[0]])}
    assert [found[gpus].expected_days for gpus in days] == [4.0, 2.5, 2.5, 1.0, 1.0, 0.5]
    assert [found[gpus].used_gpus for gpus in days] == [None, None, 16, None, 32, None]
    assert (
        found[24].cost == 2.5 * 24
        and found[64].cost == 64.0
        and found[24].mfu_causal == pytest.approx(0.4 * 16 / 24)
    )
    assert [one.gpus for one in never_slower([*answers[1:], answers[0]])] == [16, 24, 32, 64, 128, 8]
    words = Console(width=90)
    with words.capture() as caught:
        words.print(sizes_section("Sizes", list(found.values()), 128))
    assert "24 (8 idle)" in caught.get() and "64 (32 idle)" in caught.get()
