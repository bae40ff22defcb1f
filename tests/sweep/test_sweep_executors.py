"""Executors: the same answers from all, dying workers, clean stops, few tasks held."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

import pytest

from layoutopt.optimizer.report.json_forms import plan_to_plain
from layoutopt.optimizer.solve.inputs import cost_model_digest
from layoutopt.optimizer.specs.errors import InputError
from layoutopt.optimizer.sweep.executors.local import LocalExecutor, SerialExecutor
from layoutopt.optimizer.sweep.work import SolveWork, Task

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from typing import Any

    from layoutopt.optimizer.sweep.points import SweepPoint

    MakePoints = Callable[..., tuple[SweepPoint, ...]]


def tasks_of(points: tuple[SweepPoint, ...], cost_model: str | None = None) -> Iterator[Task]:
    """Tasks without warm starts."""
    for point in points:
        digest = cost_model or cost_model_digest()
        yield Task(key=point.key, question=point.question, neighbour=None, cost_model=digest)


def logged_work(works: Path, **values: Any) -> Any:
    """Work of the helper module, importable in spawned workers."""
    assert works.exists()
    return import_module("sweep_works").LoggedWork(**values)


def test_local_processes_give_the_serial_answers(make_points: MakePoints) -> None:
    """The same step times and layouts from two processes as from one."""
    points, work = make_points(1, 2, 4, 8), SolveWork(write_plan=plan_to_plain)
    answers = []
    for executor in (SerialExecutor(), LocalExecutor(2)):
        outcomes = executor.run(work, tasks_of(points))
        found = {o.key: (o.columns["step_time_s"], o.columns["tp"], o.columns["dp"]) for o in outcomes}
        answers.append(found)
    assert answers[0] == answers[1]
    assert len(answers[0]) == 4


def test_a_dying_worker_costs_its_own_point_only(
    tmp_path: Path, make_points: MakePoints, works_on_path: Path
) -> None:
    """The task that kills its process is an error; its neighbours in the pool are answered."""
    points = make_points(*range(1, 13))
    work = logged_work(works_on_path, log=str(tmp_path / "log"), deadly=5)
    outcomes = list(LocalExecutor(2).run(work, tasks_of(points)))
    assert sorted(outcome.key for outcome in outcomes) == sorted(point.key for point in points)
    failed = [outcome for outcome in outcomes if outcome.failed]
    assert [outcome.key for outcome in failed] == [points[4].key]
    assert "process died" in failed[0].columns["message"]


def test_tasks_are_drawn_as_needed(tmp_path: Path, make_points: MakePoints, works_on_path: Path) -> None:
    """A pool of two holds at most four tasks, so a long sweep's memory stays flat."""
    drawn = 0

    def counted() -> Iterator[Task]:
        nonlocal drawn
        for task in tasks_of(make_points(*range(1, 21))):
            drawn += 1
            yield task

    work, answered = logged_work(works_on_path, log=str(tmp_path / "log"), seconds=0.01), 0
    for _ in LocalExecutor(2).run(work, counted()):
        answered += 1
        assert drawn <= answered + 4
    assert answered == 20


def test_closing_stops_the_workers(tmp_path: Path, make_points: MakePoints, works_on_path: Path) -> None:
    """Long work sees the flag: closing takes far less than the work itself."""
    work = logged_work(works_on_path, log=str(tmp_path / "log"), seconds=0.2)
    slow = logged_work(works_on_path, log=str(tmp_path / "log"), seconds=600.0)
    outcomes = LocalExecutor(1).run(_first_then(work, slow), tasks_of(make_points(1, 2, 4)))
    next(outcomes)
    outcomes.close()
    assert len((tmp_path / "log").read_text().split()) <= 3


def _first_then(work: Any, slow: Any) -> Any:
    """Quick on one GPU, slow on more."""
    return import_module("sweep_works").FirstThen(work, slow)


def test_another_cost_model_is_an_error(make_points: MakePoints) -> None:
    """A worker with other formulas refuses to answer under this key."""
    work = SolveWork(write_plan=plan_to_plain)
    (outcome,) = SerialExecutor().run(work, tasks_of(make_points(1), cost_model="other"))
    assert outcome.failed
    assert "another version of the cost model" in outcome.columns["message"]


def test_whatever_a_solve_raises_is_an_answer(make_points: MakePoints) -> None:
    """A bug in one point must not end a sweep."""

    def broken(_: object) -> dict[str, Any]:
        raise RuntimeError("no plan can be written")

    (outcome,) = SerialExecutor().run(SolveWork(write_plan=broken), tasks_of(make_points(1)))
    assert outcome.columns == {"status": "error", "message": "RuntimeError: no plan can be written"}


def test_no_workers_is_bad_input() -> None:
    """A pool needs a process."""
    with pytest.raises(InputError, match="0 workers"):
        LocalExecutor(0)
