"""The store: foreign and damaged files, claims, answers, neighbours."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from layoutopt.optimizer.report.json_forms import plan_to_plain
from layoutopt.optimizer.solve.inputs import cost_model_digest
from layoutopt.optimizer.specs.errors import InputError
from layoutopt.optimizer.sweep.owners import is_dead, new_owner
from layoutopt.optimizer.sweep.rows import Outcome, failed_outcome
from layoutopt.optimizer.sweep.store import SweepStore
from layoutopt.optimizer.sweep.work import SolveWork, Task

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from layoutopt.optimizer.sweep.points import SweepPoint

    MakePoints = Callable[..., tuple[SweepPoint, ...]]

ANSWER = {"status": "optimal", "step_time_s": 0.5}


def foreign_database(path: Path) -> None:
    """A SQLite file of another program."""
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE photos (name TEXT)")
    db.close()


def newer_store(path: Path) -> None:
    """A store with a schema of the future."""
    SweepStore(path).close()
    db = sqlite3.connect(path)
    db.execute("PRAGMA user_version = 99")
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    db.close()


def torn_store(path: Path) -> None:
    """A store whose pages after the first are noise."""
    SweepStore(path).close()
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\x5a" * (size - 4096))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: path.write_text("model,gpus\n"), "is no SQLite file"),
        (lambda path: path.write_bytes(b""), "is empty, no store"),
        (foreign_database, "is a SQLite file of another program"),
        (newer_store, "has store version 99"),
        (torn_store, "is damaged"),
    ],
)
def test_files_that_are_no_store_are_refused_and_kept(
    tmp_path: Path, make: Callable[[Path], None], message: str
) -> None:
    """Foreign, damaged and newer files give one line and stay as they are, byte for byte."""
    path = tmp_path / "sweep.db"
    make(path)
    before = path.read_bytes()
    with pytest.raises(InputError, match=message) as error:
        SweepStore(path)
    assert str(path) in str(error.value)
    assert len(error.value.problems) == 1
    assert path.read_bytes() == before


def test_truncated_stores_are_refused(tmp_path: Path) -> None:
    """A file cut in half is damaged, not empty."""
    path = tmp_path / "sweep.db"
    SweepStore(path).close()
    os.truncate(path, path.stat().st_size // 2 // 4096 * 4096)
    with pytest.raises(InputError, match="is damaged"):
        SweepStore(path)


def test_missing_stores(tmp_path: Path) -> None:
    """Reading needs a file; creating needs a folder."""
    with pytest.raises(InputError, match="no such file"):
        SweepStore(tmp_path / "none.db", create=False)
    with pytest.raises(InputError, match="can't be created"):
        SweepStore(tmp_path / "no" / "folder.db")
    assert not list(tmp_path.iterdir())


def test_answers_are_kept(tmp_path: Path, make_points: MakePoints) -> None:
    """A saved row comes back with its question and its answer, and only once."""
    (point,) = make_points(8)
    with SweepStore(tmp_path / "s.db") as store:
        assert store.save(point, Outcome(key=point.key, columns=ANSWER), "me")
        assert not store.save(point, Outcome(key=point.key, columns=ANSWER | {"step_time_s": 9.0}), "other")
    with SweepStore(tmp_path / "s.db") as store:
        (row,) = store.rows()
        assert (row["gpus"], row["model"], row["step_time_s"]) == (8, "tiny", 0.5)
        assert row["tiers"] == []
        assert store.solved_keys() == {point.key}
        assert list(store.rows([point.key])) == [row]


def test_answers_reach_other_processes_at_once(tmp_path: Path, make_points: MakePoints) -> None:
    """Opening and closing the store again in one process must not drop the locks under its log.

    Another process that comes and goes would then take the log for its own, delete it, and lose what is written later.
    """
    path, points = tmp_path / "s.db", make_points(8, 16)
    with SweepStore(path) as store:
        store.save(points[0], Outcome(key=points[0].key, columns=ANSWER), "me")
        SweepStore(path).close()
        assert _answers_elsewhere(path) == 1
        store.save(points[1], Outcome(key=points[1].key, columns=ANSWER), "me")
        assert _answers_elsewhere(path) == 2


def _answers_elsewhere(path: Path) -> int:
    """Count answers in a process that opens the store, reads, and closes it."""
    code = (
        "import sys; from layoutopt.optimizer.sweep.store import SweepStore\n"
        "with SweepStore(sys.argv[1]) as store: print(len(store.solved_keys()))"
    )
    command = [sys.executable, "-c", code, str(path)]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def test_a_claim_keeps_others_out_until_it_ends(tmp_path: Path, make_points: MakePoints) -> None:
    """A point is solved by one owner; a claim ends by an answer, a release, or its lease."""
    (point,) = make_points(8)
    mine, theirs = new_owner(), "other-machine/1/2/3"
    with SweepStore(tmp_path / "s.db") as store:
        assert store.claim(point.key, theirs, lease_s=60, now_s=1000)
        assert not store.claim(point.key, mine, lease_s=60, now_s=1059)
        store.renew(theirs, lease_s=60, now_s=1050)
        assert not store.claim(point.key, mine, lease_s=60, now_s=1061)
        assert store.claim(point.key, mine, lease_s=60, now_s=1111)
        store.release(mine)
        assert store.claim(point.key, theirs, lease_s=60, now_s=1111)
        store.save(point, Outcome(key=point.key, columns=ANSWER), theirs)
        assert not store.claim(point.key, mine, lease_s=60, now_s=9999)


def test_claims_of_dead_processes_are_taken_over_at_once(tmp_path: Path, make_points: MakePoints) -> None:
    """After kill -9 the same command need not wait for a lease."""
    (point,) = make_points(8)
    code = "from layoutopt.optimizer.sweep.owners import new_owner; print(new_owner())"
    dead = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.strip()
    assert is_dead(dead)
    assert not is_dead(new_owner())
    with SweepStore(tmp_path / "s.db") as store:
        assert store.claim(point.key, dead, lease_s=600, now_s=0)
        assert store.claim(point.key, new_owner(), lease_s=600, now_s=1)


def test_a_process_number_used_again_is_another_owner() -> None:
    """A living process that started at another time is not the owner."""
    machine, process, _, word = new_owner().split("/")
    assert is_dead(f"{machine}/{process}/1/{word}")


@pytest.mark.parametrize("process", [1 << 31, 10**10, 10**17])
def test_a_number_that_no_process_has_is_dead(process: int) -> None:
    """Process numbers are C ints: a larger one in a claim of this machine holds nothing, and is no internal error."""
    machine, _, started, word = new_owner().split("/")
    assert is_dead(f"{machine}/{process}/{started}/{word}")


def test_errors_can_be_tried_again(tmp_path: Path, make_points: MakePoints) -> None:
    """An error is an answer unless a retry is asked for, then a new answer replaces it."""
    (point,) = make_points(8)
    with SweepStore(tmp_path / "s.db") as store:
        store.save(point, failed_outcome(point.key, "boom"), "me")
        assert not store.claim(point.key, "me", lease_s=60, now_s=0)
        assert store.claim(point.key, "me", lease_s=60, now_s=0, retry=True)
        assert store.solved_keys(with_errors=False) == set()
        store.save(point, Outcome(key=point.key, columns=ANSWER), "me")
        (row,) = store.rows()
        assert row["status"] == "optimal"


def test_neighbours_are_the_nearest_size_of_the_chain(tmp_path: Path, make_points: MakePoints) -> None:
    """Solved for real: the layout of the nearest size comes back from the stored plan."""
    small, middle, large = make_points(1, 4, 8)
    (other,) = make_points(2, global_batches=(64,))
    work = SolveWork(write_plan=plan_to_plain)
    with SweepStore(tmp_path / "s.db") as store:
        assert store.neighbour(middle.chain, 4) is None
        for point in (small, large, other):
            task = Task(
                key=point.key, question=point.question, neighbour=None, cost_model=cost_model_digest()
            )
            store.save(point, work(task), "me")
        near = store.neighbour(middle.chain, 6)
        plan = store.plan(large.key)
        assert near is not None
        assert plan is not None
        assert near.gpus == 8
        assert plan["layout"]["tp"] == near.tp
        assert store.plan("none") is None
