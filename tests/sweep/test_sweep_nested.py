"""More GPUs never slow a step down when the far end may idle."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from layoutopt.optimizer.report.json_forms import plan_to_plain
from layoutopt.optimizer.solve.api import solve_layout
from layoutopt.optimizer.solve.judge import judge_layout
from layoutopt.optimizer.solve.plan import SolveOptions
from layoutopt.optimizer.space.context import RunOptions
from layoutopt.optimizer.specs.loading import load_cluster
from layoutopt.optimizer.specs.vocabulary import Verdict
from layoutopt.optimizer.sweep.executors.local import SerialExecutor
from layoutopt.optimizer.sweep.families import tier_rows, with_network
from layoutopt.optimizer.sweep.nested import best_within
from layoutopt.optimizer.sweep.run import run_sweep
from layoutopt.optimizer.sweep.store import SweepStore

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from layoutopt.optimizer.specs.workload import Workload
    from layoutopt.optimizer.sweep.points import SweepPoint


def row(
    gpus: int, step_time_s: float | None, chain: str = "c", idle: int = 0, network: float = 400
) -> dict[str, Any]:
    """A row of a store as far as nesting looks at it."""
    return {
        "key": f"{chain}{gpus}",
        "chain": chain,
        "gpus": gpus,
        "tiers": tier_rows(with_network(load_cluster(f"h100x{gpus}"), network)),
        "step_time_s": step_time_s,
        "idle_gpus": idle,
    }


def test_a_slower_larger_size_uses_the_smaller_one() -> None:
    """Sizes with worse divisors fall back on the best size inside them, and say how many GPUs that uses."""
    rows = best_within([row(8, 1.0), row(24, 1.2), row(16, 0.6, idle=1), row(32, 0.7), row(64, None)])
    assert [r["nested_step_time_s"] for r in rows] == [1.0, 0.6, 0.6, 0.6, 0.6]
    assert [r["used_gpus"] for r in rows] == [8, 15, 15, 15, 15]


def test_nothing_before_the_first_size_that_fits() -> None:
    """Without any answer inside there is none; other chains don't help."""
    rows = best_within([row(8, None), row(8, 1.0, chain="d")])
    assert rows[0]["nested_step_time_s"] is None
    assert rows[0]["used_gpus"] is None


def test_other_fabrics_are_not_inside() -> None:
    """A smaller cluster whose links differ is no part of the larger one, even in one chain."""
    rows = best_within([row(16, 0.1, network=200), row(32, 0.7)])
    assert rows[1]["nested_step_time_s"] == 0.7


@given(st.lists(st.tuples(st.integers(1, 5000), st.one_of(st.none(), st.floats(0.01, 100))), max_size=12))
def test_nested_step_times_never_rise(points: list[tuple[int, float | None]]) -> None:
    """Along the sizes of one family, whatever their own step times."""
    rows = best_within([row(gpus, step) for gpus, step in dict(points).items()])
    times = [r["nested_step_time_s"] for r in sorted(rows, key=lambda r: r["gpus"])]
    known = [time for time in times if time is not None]
    assert known == sorted(known, reverse=True)
    assert times[: len(times) - len(known)] == [None] * (len(times) - len(known))


@pytest.mark.parametrize("larger", [16, 64, 300, 4096])
def test_a_smaller_sizes_layout_runs_as_fast_inside_a_larger_cluster(tiny: Workload, larger: int) -> None:
    """What nesting rests on: the optimum of 8 GPUs has the same price on the first 8 of a larger reference fabric."""
    plan = solve_layout(tiny, load_cluster("h100x8"), SolveOptions(top=1))
    assert plan.layout is not None
    assert plan.estimate is not None
    idle = RunOptions(idle_gpus=True)
    judged = judge_layout(tiny, load_cluster(f"h100x{larger}"), plan.layout, run_options=idle)
    assert judged.verdict in (Verdict.FITS, Verdict.BORDERLINE)
    assert judged.estimate is not None
    assert judged.estimate.step_time_s == pytest.approx(plan.estimate.step_time_s, rel=1e-9)


def test_a_real_sweep_is_monotone(tmp_path: Path, make_points: Callable[..., tuple[SweepPoint, ...]]) -> None:
    """Every size from 1 to 40 GPUs, odd ones too: solved alone some are slower, nested none is."""
    points = make_points(*range(1, 13), 16, 20, 24, 28, 30, 32, 36, 40)
    run_sweep(points, tmp_path / "s.db", SerialExecutor(), write_plan=plan_to_plain)
    with SweepStore(tmp_path / "s.db") as store:
        rows = sorted(best_within(store.rows()), key=lambda row: row["gpus"])
    alone = [row["step_time_s"] for row in rows if row["step_time_s"] is not None]
    nested = [row["nested_step_time_s"] for row in rows]
    assert nested == sorted(nested, reverse=True)
    assert alone != sorted(alone, reverse=True)
