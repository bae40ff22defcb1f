"""A real Dask scheduler with two worker processes: same answers, and a killed worker loses nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from layoutopt.optimizer.report.json_forms import plan_to_plain
from layoutopt.optimizer.solve.inputs import cost_model_digest
from layoutopt.optimizer.specs.errors import InputError
from layoutopt.optimizer.sweep.executors.distributed import DaskExecutor
from layoutopt.optimizer.sweep.run import SweepProgress, run_sweep
from layoutopt.optimizer.sweep.store import SweepStore
from layoutopt.optimizer.sweep.work import Task

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from layoutopt.optimizer.sweep.points import SweepPoint

    MakePoints = Callable[..., tuple[SweepPoint, ...]]

distributed = pytest.importorskip("distributed", reason="dask[distributed] is not installed")
WORKER = (
    "--nworkers",
    "1",
    "--nthreads",
    "1",
    "--no-dashboard",
    "--memory-limit",
    "0",
    "--death-timeout",
    "60",
)


class Cluster:
    """A scheduler and its workers, each a process of its own."""

    def __init__(self, folder: Path, works: Path) -> None:
        path = os.pathsep.join(filter(None, (str(works), os.environ.get("PYTHONPATH"))))
        self._env, self._folder = os.environ | {"PYTHONPATH": path}, folder
        file = folder / "scheduler.json"
        self._scheduler = self._start(
            "scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", str(file)
        )
        self.workers = [
            self._start("worker", "--scheduler-file", str(file), "--no-nanny", *WORKER) for _ in range(2)
        ]
        deadline = time.monotonic() + 60
        while not file.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        with distributed.Client(scheduler_file=str(file), set_as_default=False, timeout=60) as client:
            client.wait_for_workers(2, timeout=60)
            self.address = client.scheduler.address

    def _start(self, *words: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "distributed.cli.dask_" + words[0], *words[1:]]
        quiet = subprocess.DEVNULL
        return subprocess.Popen(command, env=self._env, cwd=self._folder, stdout=quiet, stderr=quiet)

    def stop(self) -> None:
        """End every process that was started."""
        for process in (*self.workers, self._scheduler):
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A scheduler and two workers on this machine; the tests below take it apart piece by piece."""
    started = Cluster(tmp_path_factory.mktemp("dask"), Path(__file__).parent / "works")
    yield started
    started.stop()


class Slowed:
    """Sends slow work in place of solving."""

    def __init__(self, inner: DaskExecutor, log: Path) -> None:
        self._inner, self._log = inner, log

    def run(self, work: object, tasks: Iterator[Task]) -> Generator[Any]:
        """Run the helper's work, which notes every task."""
        logged = import_module("sweep_works").LoggedWork(log=str(self._log), seconds=0.1)
        return self._inner.run(logged, tasks)


def test_real_points_on_dask(tmp_path: Path, cluster: Cluster, make_points: MakePoints) -> None:
    """Solving there gives proven answers."""
    points = make_points(1, 2, 4, 8)
    result = run_sweep(points, tmp_path / "s.db", DaskExecutor(cluster.address), write_plan=plan_to_plain)
    assert (result.solved, result.failed) == (4, 0)
    with SweepStore(tmp_path / "s.db") as store:
        assert {row["status"] for row in store.rows()} == {"optimal"}


@pytest.mark.skipif(os.name != "posix", reason="kills a worker with a POSIX signal")
def test_a_killed_worker_loses_nothing(
    tmp_path: Path, cluster: Cluster, make_points: MakePoints, works_on_path: Path
) -> None:
    """One of two workers dies in the middle: every point is answered, none with an error, none stored twice."""
    points = make_points(*range(1, 41))
    log = tmp_path / "log"
    killed: list[int] = []

    def kill(progress: SweepProgress) -> None:
        if progress.solved == 8 and not killed:
            cluster.workers[0].send_signal(signal.SIGKILL)
            killed.append(progress.solved)

    executor = Slowed(DaskExecutor(cluster.address), log)
    result = run_sweep(points, tmp_path / "s.db", executor, write_plan=plan_to_plain, on_progress=kill)
    assert killed == [8]
    assert cluster.workers[0].wait(timeout=10) == -signal.SIGKILL
    assert (result.solved, result.failed, result.interrupted) == (40, 0, False)
    with SweepStore(tmp_path / "s.db") as store:
        assert sorted(row["gpus"] for row in store.rows()) == list(range(1, 41))
    assert len(log.read_text().split()) <= 40 + 4  # only what the dead worker held ran again


def test_a_lost_scheduler_ends_the_sweep_with_one_line(
    tmp_path: Path, cluster: Cluster, make_points: MakePoints, works_on_path: Path
) -> None:
    """What was solved is stored; the message says how to go on."""
    points = make_points(*range(1, 41))

    def stop(progress: SweepProgress) -> None:
        if progress.solved == 4:
            cluster.stop()

    executor = Slowed(DaskExecutor(cluster.address, connect_s=3.0), tmp_path / "log")
    with pytest.raises(InputError, match="lost the scheduler") as error:
        run_sweep(points, tmp_path / "s.db", executor, write_plan=plan_to_plain, on_progress=stop)
    assert len(error.value.problems) == 1
    with SweepStore(tmp_path / "s.db") as store:
        assert len(store.solved_keys()) >= 4


def test_no_scheduler_is_one_line(make_points: MakePoints) -> None:
    """A wrong address says so and stops."""
    (point,) = make_points(1)
    task = Task(key=point.key, question=point.question, neighbour=None, cost_model=cost_model_digest())
    executor = DaskExecutor("tcp://127.0.0.1:9", connect_s=1.0)
    work = import_module("layoutopt.optimizer.sweep.work").SolveWork(write_plan=plan_to_plain)
    with pytest.raises(InputError, match=r"no scheduler answers at tcp://127\.0\.0\.1:9"):
        next(executor.run(work, iter([task])))


def test_without_dask_one_line_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """The base install has no dask."""
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(InputError, match="dask, which is not installed"):
        DaskExecutor("tcp://host:8786")
