"""What happens to a store: time limits, dead workers, full disks, claims that never end, damage, locks, read-only files."""

from __future__ import annotations

import sqlite3
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from layoutopt.optimizer.report.json_forms import plan_to_plain
from layoutopt.optimizer.solve.plan import SolveOptions
from layoutopt.optimizer.specs.errors import InputError
from layoutopt.optimizer.sweep import store as store_module
from layoutopt.optimizer.sweep.owners import is_dead
from layoutopt.optimizer.sweep.rows import Outcome, lost_outcome
from layoutopt.optimizer.sweep.run import SweepProgress, SweepResult, heartbeat, run_sweep
from layoutopt.optimizer.sweep.store import SweepStore

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator
    from pathlib import Path

    from layoutopt.optimizer.sweep.executors.seam import PointWork
    from layoutopt.optimizer.sweep.points import SweepPoint
    from layoutopt.optimizer.sweep.work import Task

    MakePoints = Callable[..., tuple[SweepPoint, ...]]

ANSWER = {"status": "optimal", "step_time_s": 0.5}
FAR_FUTURE_S = 4e10


class Answering:
    """Answers every task with the same columns, or loses it; counts the tasks."""

    def __init__(self, *, lost: bool = False, **columns: Any) -> None:
        self._lost, self._columns, self.tasks = lost, columns or ANSWER, 0

    def run(self, work: PointWork, tasks: Iterator[Task]) -> Generator[Outcome]:
        """Answer."""
        for task in tasks:
            self.tasks += 1
            yield (
                lost_outcome(task.key, "died") if self._lost else Outcome(key=task.key, columns=self._columns)
            )


def sweep(points: tuple[SweepPoint, ...], path: Path, executor: Answering, **options: Any) -> SweepResult:
    """Run a sweep without warm starts, which need plans."""
    return run_sweep(points, path, executor, write_plan=plan_to_plain, warm_start=False, **options)


def tamper(path: Path, sql: str, *values: object) -> None:
    """Change a store behind its back."""
    db = sqlite3.connect(path, isolation_level=None)
    db.execute(sql, values)
    db.close()


def limited(make_points: MakePoints, limit_s: float) -> tuple[SweepPoint, ...]:
    """One point under a time limit."""
    return make_points(8, options=SolveOptions(top=1, time_limit_s=limit_s))


def test_a_proven_answer_holds_under_any_time_limit(tmp_path: Path, make_points: MakePoints) -> None:
    """The limit is not part of the question: what is proven is not solved again, with more time or with less."""
    store = tmp_path / "s.db"
    sweep(limited(make_points, 10.0), store, Answering())
    for limit_s in (1.0, 100.0, float("inf")):
        again = Answering()
        assert sweep(limited(make_points, limit_s), store, again).reused == 1
        assert again.tasks == 0


def test_an_unproven_answer_is_searched_again_with_more_time(tmp_path: Path, make_points: MakePoints) -> None:
    """A stopped search stands for limits up to its own; a longer one replaces it."""
    store = tmp_path / "s.db"
    stopped: dict[str, Any] = {"status": "stopped", "step_time_s": 0.9}
    sweep(limited(make_points, 10.0), store, Answering(**stopped))
    for limit_s in (5.0, 10.0):
        assert sweep(limited(make_points, limit_s), store, Answering()).reused == 1
    longer = sweep(limited(make_points, 20.0), store, Answering())
    assert (longer.solved, longer.unproven) == (1, 0)
    with SweepStore(store) as opened:
        (row,) = opened.rows()
    assert (row["status"], row["time_limit_s"]) == ("optimal", 20.0)


def test_a_point_whose_worker_died_is_no_answer(tmp_path: Path, make_points: MakePoints) -> None:
    """Killed workers cost time alone: nothing is stored, the end says so, the same command tries again."""
    points, store = make_points(8, 16), tmp_path / "s.db"
    first = sweep(points, store, Answering(lost=True))
    assert (first.lost, first.solved, first.failed) == (2, 0, 0)
    with SweepStore(store) as opened:
        assert not list(opened.rows())
        assert not opened.claims()
    assert sweep(points, store, Answering()).solved == 2


def test_a_full_disk_is_called_full(
    tmp_path: Path, make_points: MakePoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that cannot grow says why and keeps its answers."""
    points, path = make_points(8, 16), tmp_path / "s.db"
    connect: Callable[..., sqlite3.Connection] = sqlite3.connect

    def full(database: Any, **options: Any) -> sqlite3.Connection:
        db = connect(database, **options)
        db.execute("PRAGMA max_page_count = 12")
        return db

    SweepStore(path).close()
    monkeypatch.setattr(sqlite3, "connect", full)
    with SweepStore(path) as store:
        store.save(points[0], Outcome(key=points[0].key, columns=ANSWER), "me")
        big = Outcome(key=points[1].key, columns=ANSWER, plan=bytes(200_000))
        with pytest.raises(InputError, match="the disk is full"):
            store.save(points[1], big, "me")
        assert len(store.solved_keys()) == 1


def test_claims_that_nobody_renews_end(tmp_path: Path, make_points: MakePoints) -> None:
    """A claim of another machine until the year 3200 is waited for one lease, said aloud, and taken over."""
    (point,), path = make_points(8), tmp_path / "s.db"
    SweepStore(path).close()
    tamper(path, "INSERT INTO claims VALUES (?, ?, ?)", point.key, "elsewhere/7/1/x", FAR_FUTURE_S)
    states: list[SweepProgress] = []
    done = sweep((point,), path, Answering(), lease_s=0.6, on_progress=states.append)
    assert done.solved == 1
    assert any(state.waiting == 1 for state in states)


def test_claims_that_are_renewed_are_waited_for(tmp_path: Path, make_points: MakePoints) -> None:
    """Whoever renews keeps its points, however far its clock is off."""
    (point,), path = make_points(8), tmp_path / "s.db"
    owner, ended = "elsewhere/7/1/x", threading.Event()
    SweepStore(path).close()
    tamper(path, "INSERT INTO claims VALUES (?, ?, ?)", point.key, owner, FAR_FUTURE_S)

    def work() -> None:
        with SweepStore(path) as theirs:
            for beat in range(8):
                theirs.renew(owner, lease_s=FAR_FUTURE_S + beat, now_s=0.0)
                time.sleep(0.2)
            theirs.save(point, Outcome(key=point.key, columns=ANSWER), owner)
        ended.set()

    thread = threading.Thread(target=work)
    thread.start()
    mine = Answering()
    done = sweep((point,), path, mine, lease_s=0.6)
    thread.join()
    assert ended.is_set()
    assert (done.reused, mine.tasks) == (1, 0)


@pytest.mark.parametrize(
    "owner", ["", "garbage", "a/b", "/////", "me/x1/2/3", "me/²/2/3", f"me/{'9' * 40}/2/3"]
)
def test_garbage_owners_hold_nothing(tmp_path: Path, make_points: MakePoints, owner: str) -> None:
    """A claim whose owner no sweep can have written is nobody's."""
    (point,) = make_points(8)
    assert is_dead(owner)
    with SweepStore(tmp_path / "s.db") as store:
        tamper(store.path, "INSERT INTO claims VALUES (?, ?, ?)", point.key, owner, FAR_FUTURE_S)
        assert store.claim(point.key, "me", lease_s=1, now_s=0)


@pytest.mark.parametrize(
    "damage",
    ["step_time_s = 0.25", "tp = 3", "model = 'other'", "tiers = '[['", "gpus = gpus + 1", "verdict = 'fits'",
     "tiers = x'ff00'", "checksum = ''"],
)  # fmt: skip
def test_flipped_cells_are_never_shown(tmp_path: Path, make_points: MakePoints, damage: str) -> None:
    """A row that is not as it was written is refused in one line, whichever cell it is."""
    (point,), path = make_points(8), tmp_path / "s.db"
    with SweepStore(path) as store:
        store.save(point, Outcome(key=point.key, columns=ANSWER), "me")
        assert len(list(store.rows())) == 1
        tamper(path, f"UPDATE points SET {damage}")
        with pytest.raises(InputError, match="is damaged in the row of") as error:
            list(store.rows())
    assert len(error.value.problems) == 1


def test_a_locked_store_silences_the_heartbeat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_points: MakePoints
) -> None:
    """The thread that renews claims outlives a lock; the next answer meets it and says so."""
    (point,), path = make_points(8), tmp_path / "s.db"
    SweepStore(path).close()
    raised: list[object] = []
    monkeypatch.setattr(threading, "excepthook", raised.append)
    monkeypatch.setattr(store_module, "BUSY_S", 0.05)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with heartbeat(path, "me", 0.1):
        time.sleep(0.4)
    with SweepStore(path) as store, pytest.raises(InputError, match="stays locked by another process"):
        store.claim(point.key, "me", lease_s=1, now_s=0)
    other.execute("ROLLBACK")
    other.close()
    assert not raised


def test_a_store_that_cannot_be_written_can_be_read(
    tmp_path: Path, make_points: MakePoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading needs no write access: a file system that refuses SQLite's index of the log is read without."""
    (point,), path = make_points(8), tmp_path / "s.db"
    with SweepStore(path) as store:
        store.save(point, Outcome(key=point.key, columns=ANSWER), "me")
    connect: Callable[..., sqlite3.Connection] = sqlite3.connect

    def refusing(database: Any, **options: Any) -> sqlite3.Connection:
        if "immutable" not in str(database):
            raise_on = connect(":memory:")
            raise_on.close()
            return connect(f"{(tmp_path / 'nowhere' / 'x.db').as_uri()}?mode=ro", **options)
        return connect(database, **options)

    with SweepStore(path, read_only=True) as reader:
        assert len(list(reader.rows())) == 1
        with pytest.raises(InputError, match="can't be written"):
            reader.save(replace(point, key="other"), Outcome(key="other", columns=ANSWER), "me")
    monkeypatch.setattr(sqlite3, "connect", refusing)
    with SweepStore(path, create=False, read_only=True) as reader:
        assert len(list(reader.rows())) == 1
