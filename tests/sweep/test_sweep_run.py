"""Running a sweep: what is solved, reused, waited for, stored; interrupts and kill -9."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from layoutopt.optimizer.report.json_forms import plan_to_plain
from layoutopt.optimizer.report.verification import verify_plan
from layoutopt.optimizer.sweep.executors.local import SerialExecutor
from layoutopt.optimizer.sweep.owners import new_owner
from layoutopt.optimizer.sweep.rows import Outcome
from layoutopt.optimizer.sweep.run import SweepProgress, SweepResult, run_sweep
from layoutopt.optimizer.sweep.store import SweepStore

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import Any

    from layoutopt.optimizer.sweep.points import SweepPoint

    MakePoints = Callable[..., tuple[SweepPoint, ...]]


def sweep(points: tuple[SweepPoint, ...], path: Path, executor: Any, **options: Any) -> SweepResult:
    """Run with the real plan writer."""
    return run_sweep(points, path, executor, write_plan=plan_to_plain, **options)


def test_points_are_solved_once_and_reused(tmp_path: Path, make_points: MakePoints, pretend: Any) -> None:
    """The same command twice solves nothing the second time; more sizes solve only the new ones."""
    path, first, second = tmp_path / "s.db", pretend(), pretend()
    result = sweep(make_points(1, 2, 4), path, first)
    assert (result.solved, result.reused, first.sizes) == (3, 0, [1, 2, 4])
    result = sweep(make_points(1, 2, 4, 8), path, second)
    assert (result.solved, result.reused, second.sizes) == (1, 3, [8])


def test_progress_counts_and_estimates(tmp_path: Path, make_points: MakePoints, pretend: Any) -> None:
    """A report before the first point and after each, with a rate and a time left."""
    seen: list[SweepProgress] = []
    sweep(make_points(1, 2, 4), tmp_path / "s.db", pretend(), on_progress=seen.append)
    assert [(p.done, p.total) for p in seen] == [(0, 3), (1, 3), (2, 3), (3, 3)]
    assert seen[0].points_per_s is None
    assert seen[1].left_s is not None
    assert seen[1].left_s > 0
    assert seen[-1].left_s == 0
    assert seen[-1].last is not None


def test_errors_are_rows_and_are_retried_on_request(
    tmp_path: Path, make_points: MakePoints, pretend: Any
) -> None:
    """A failing point doesn't stop the others and keeps its message."""
    path = tmp_path / "s.db"
    result = sweep(make_points(1, 2, 4), path, pretend(fails=(2,)))
    assert (result.solved, result.failed) == (3, 1)
    with SweepStore(path) as store:
        messages = [row["message"] for row in store.rows() if row["status"] == "error"]
    assert messages == ["broken"]
    assert sweep(make_points(1, 2, 4), path, pretend()).solved == 0
    again = pretend()
    assert sweep(make_points(1, 2, 4), path, again, retry_errors=True).solved == 1
    assert again.sizes == [2]


def test_an_interrupt_keeps_answers_and_gives_up_claims(
    tmp_path: Path, make_points: MakePoints, pretend: Any
) -> None:
    """Ctrl-C: what is solved stays, what was claimed is free at once."""
    path = tmp_path / "s.db"
    result = sweep(make_points(1, 2, 4, 8), path, pretend(interrupt_after=2))
    assert result.interrupted
    assert result.solved == 2
    rest = pretend()
    assert not sweep(make_points(1, 2, 4, 8), path, rest).interrupted
    assert rest.sizes == [4, 8]


def test_points_of_another_sweep_are_waited_for(
    tmp_path: Path, make_points: MakePoints, pretend: Any
) -> None:
    """A point that another living sweep holds is not solved again: its answer is awaited."""
    path, points, executor = tmp_path / "s.db", make_points(1, 2), pretend()
    other = SweepStore(path)
    owner = new_owner()
    other.claim(points[0].key, owner, lease_s=60, now_s=time.time())

    def answer(progress: SweepProgress) -> None:
        if progress.solved == 1:
            other.save(points[0], Outcome(key=points[0].key, columns={"status": "optimal"}), owner)

    result = sweep(points, path, executor, on_progress=answer)
    assert (result.solved, result.reused, executor.sizes) == (1, 1, [2])


def test_points_of_a_vanished_sweep_are_taken_over(
    tmp_path: Path, make_points: MakePoints, pretend: Any
) -> None:
    """A claim of another machine that nobody renews ends with its lease."""
    path, points, executor = tmp_path / "s.db", make_points(1, 2), pretend()
    with SweepStore(path) as other:
        other.claim(points[0].key, "elsewhere/1/2/3", lease_s=1.0, now_s=time.time())
    assert sweep(points, path, executor).solved == 2
    assert executor.sizes == [2, 1]


def test_real_points_with_warm_starts_equal_cold_ones(tmp_path: Path, make_points: MakePoints) -> None:
    """Starting from the neighbouring size changes no answer; sizes after the first start warm."""
    points = make_points(1, 2, 4, 8, 16)
    for name, warm in (("warm.db", True), ("cold.db", False)):
        sweep(points, tmp_path / name, SerialExecutor(), warm_start=warm)
    with SweepStore(tmp_path / "warm.db") as warm_store, SweepStore(tmp_path / "cold.db") as cold_store:
        warm_rows, cold_rows = list(warm_store.rows()), list(cold_store.rows())
    assert [row["step_time_s"] for row in warm_rows] == pytest.approx(
        [row["step_time_s"] for row in cold_rows]
    )
    assert [row["status"] for row in warm_rows] == ["optimal"] * 5
    assert sum(row["warm_started"] for row in warm_rows) >= 3
    assert not any(row["warm_started"] for row in cold_rows)


KILLED = """
import sys
from dataclasses import dataclass, replace
from layoutopt.optimizer.report.json_forms import plan_to_plain
from layoutopt.optimizer.solve.plan import SolveOptions
from layoutopt.optimizer.specs.loading import load_workload
from layoutopt.optimizer.sweep.executors.local import LocalExecutor
from layoutopt.optimizer.sweep.families import load_family
from layoutopt.optimizer.sweep.points import SweepGrid
from layoutopt.optimizer.sweep.run import run_sweep
sys.path.insert(0, sys.argv[3])
from sweep_works import LoggedWork

@dataclass
class Logged:
    inner: object
    def run(self, work, tasks):
        return self.inner.run(LoggedWork(log=sys.argv[2], seconds=0.05), tasks)

if __name__ == "__main__":
    grid = SweepGrid(workloads=[load_workload("llama3-8b")], families=[load_family("h100")],
                     gpus=tuple(range(8, 8 * 61, 8)), options=SolveOptions(top=1))
    result = run_sweep(grid.points(), sys.argv[1], Logged(LocalExecutor(2)), write_plan=plan_to_plain)
    print(result.solved, result.reused)
"""


@pytest.mark.skipif(os.name != "posix", reason="kill -9 is a POSIX signal")
def test_kill_9_loses_nothing_and_solves_nothing_twice(tmp_path: Path, works_on_path: Path) -> None:
    """Killed again and again, the same command resumes; only points at work may run a second time."""
    script, store, log = tmp_path / "killed.py", tmp_path / "s.db", tmp_path / "log"
    script.write_text(KILLED)
    command = [sys.executable, str(script), str(store), str(log), str(works_on_path)]
    saved = 0
    for kills in range(2):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        goal, deadline = 12 * (kills + 1), time.monotonic() + 60
        while _lines(log) < goal and time.monotonic() < deadline:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait()
        with SweepStore(store) as opened:
            now = len(opened.solved_keys())
        assert now >= saved
        saved = now
    assert 12 <= saved < 60
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=100)
    assert done.stdout.split() == [str(60 - saved), str(saved)]
    with SweepStore(store) as opened:
        assert len(list(opened.rows())) == 60
    assert _lines(log) <= 60 + 2 * 4  # two workers with two tasks each were at work at every kill


def _lines(path: Path) -> int:
    return len(path.read_text().splitlines()) if path.exists() else 0


def test_a_warm_started_plan_verifies(tmp_path: Path, make_points: MakePoints) -> None:
    """The independent check accepts a stored plan that started from its neighbour's layout."""
    points = make_points(4, 8)
    sweep(points, tmp_path / "s.db", SerialExecutor())
    with SweepStore(tmp_path / "s.db") as store:
        warm = [row["key"] for row in store.rows() if row["warm_started"]]
        plan = store.plan(warm[0])
    report = verify_plan(plan)
    assert report.accepted, report
