"""The store of a sweep: one SQLite file, one row per answered point, claims for points being solved.

A point is written in one transaction when it is solved, so a process killed at any moment loses at most what
it was solving. A claim says who is solving a point and until when; claims of dead processes are taken over:
several sweeps may share a file without solving a point twice.
"""

from __future__ import annotations

import json
import os
import sqlite3
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from math import inf, isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from layoutopt.optimizer.solve.certificate import Status
from layoutopt.optimizer.specs.canonical import layout_from_plain
from layoutopt.optimizer.specs.errors import input_error
from layoutopt.optimizer.sweep.owners import is_dead
from layoutopt.optimizer.sweep.rows import COLUMNS, ERROR, checksum, unpack_plan

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from layoutopt.optimizer.specs.errors import InputError
    from layoutopt.optimizer.specs.layout import Layout
    from layoutopt.optimizer.sweep.points import SweepPoint
    from layoutopt.optimizer.sweep.rows import Outcome, Row

APPLICATION_ID = 0x4C4F5054
"""``LOPT``: marks the file as a store of sweeps (PRAGMA application_id)."""

SCHEMA_VERSION = 3
BUSY_S = 60.0
"""Wait for another process's transaction; each takes milliseconds."""

_SCHEMA = f"""
CREATE TABLE points ({", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())}) WITHOUT ROWID;
CREATE INDEX points_by_question ON points (model, family, gpus);
CREATE INDEX points_by_chain ON points (chain, gpus);
CREATE TABLE claims (key TEXT PRIMARY KEY, owner TEXT NOT NULL, expires_s REAL NOT NULL) WITHOUT ROWID;
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {SCHEMA_VERSION};
"""


_SHORT_OF_TIME = f"(status = '{Status.STOPPED.value}' AND coalesce(time_limit_s, 1e999) < ?)"
"""Answers whose search had less time than is given now; 1e999 is infinity."""

Claim = tuple[str, float]
"""Who solves a point, and until when it is claimed (seconds since 1970)."""

_ORDER = "model, family, sequence_length, global_batch, network_gbit_per_s, framework, chain, gpus, key"


class SweepStore:
    """An open store. Use one object per thread; ``close`` it, or use it in a ``with`` statement."""

    def __init__(self, path: str | Path, *, create: bool = True, read_only: bool = False) -> None:
        """Open a store, or create it; ``read_only`` reads one that this user may not write to as well.

        Raises
        ------
        InputError
            If the file is damaged, is no store of sweeps or comes from another version (it is left as it is),
            if it can't be written, or if it is missing and ``create`` is False.
        """
        self.path = Path(path)
        if not self.path.exists():
            if not create:
                raise input_error("no such file", "a store that `layoutopt sweep` wrote", file=str(path))
            _create(self.path)
        # Ahead of any connection that could write: a file of another program stays untouched.
        _check_kind(self.path)
        try:
            # Without an isolation level: Python would begin transactions of its own before a write, and not take the lock
            # that ``_transaction`` wants at the start of one.
            connect = _reading if read_only else _writing
            self._db = connect(self.path)
            self._db.row_factory = sqlite3.Row
            self._check_content()
            # A point takes far longer than the disk: wait for it, so that a power cut loses nothing either.
            if not read_only:
                self._db.execute("PRAGMA synchronous = FULL")
        except sqlite3.DatabaseError as error:
            raise _unusable(self.path, error) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def _check_content(self) -> None:
        """Check the pages and the columns; a half-overwritten file shows here."""
        problem = self._db.execute("PRAGMA quick_check(1)").fetchone()[0]
        if problem != "ok":
            raise sqlite3.DatabaseError(problem)
        names = {row["name"] for row in self._db.execute("PRAGMA table_info(points)")}
        # A store that lost a column would else fail only when a row is written.
        if not set(COLUMNS) <= names:
            raise sqlite3.DatabaseError("the table of points lacks columns")

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Run statements as one transaction that holds the write lock from its start."""
        try:
            # A lock taken only at the first write could find that another writer came between.
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
            except BaseException:
                if self._db.in_transaction:  # a full disk has ended it
                    self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")
        except sqlite3.DatabaseError as error:
            raise _unusable(self.path, error) from None

    def solved_keys(self, *, with_errors: bool = True, time_limit_s: float = inf) -> set[str]:
        """Return the keys of all answered points, those that failed included or not.

        An unproven answer counts unless ``time_limit_s`` is longer than the limit that it had.
        """
        kept = [] if with_errors else [f"status != '{ERROR}'"]
        sql = f"SELECT key FROM points WHERE {' AND '.join([*kept, f'NOT {_SHORT_OF_TIME}'])}"
        return {row["key"] for row in self._read(sql, (time_limit_s,))}

    def claim(
        self,
        key: str,
        owner: str,
        *,
        lease_s: float,
        now_s: float,
        retry: bool = False,
        time_limit_s: float = inf,
        silent: Claim | None = None,
    ) -> bool:
        """Claim a point for ``lease_s`` seconds; False when it is answered or somebody alive works on it.

        ``retry`` claims a point whose answer is an error, a longer ``time_limit_s`` one whose search ended too early.
        ``silent`` is a claim that has not been renewed while its owner should have: it no longer counts. ``now_s`` is
        seconds since 1970.
        """
        with self._transaction() as db:
            sql = f"SELECT status, {_SHORT_OF_TIME} AS short FROM points WHERE key = ?"
            answered = db.execute(sql, (time_limit_s, key)).fetchone()
            again = answered is not None and (answered["short"] or (retry and answered["status"] == ERROR))
            if answered is not None and not again:
                return False
            held = db.execute("SELECT owner, expires_s FROM claims WHERE key = ?", (key,)).fetchone()
            # Of a process on this machine it is known that it died, before its lease is up.
            alive = held is not None and held["expires_s"] > now_s and not is_dead(held["owner"])
            if alive and (held["owner"], held["expires_s"]) != silent:
                return False
            db.execute("INSERT OR REPLACE INTO claims VALUES (?, ?, ?)", (key, owner, now_s + lease_s))
            return True

    def claims(self) -> dict[str, Claim]:
        """Return who claims which point, and until when (seconds since 1970)."""
        rows = self._read("SELECT key, owner, expires_s FROM claims", ())
        return {row["key"]: (row["owner"], row["expires_s"]) for row in rows}

    def renew(self, owner: str, *, lease_s: float, now_s: float) -> None:
        """Prolong all claims of ``owner``."""
        with self._transaction() as db:
            db.execute("UPDATE claims SET expires_s = ? WHERE owner = ?", (now_s + lease_s, owner))

    def release(self, owner: str, keys: Sequence[str] | None = None) -> None:
        """Give up claims of ``owner``: the given ones, or all."""
        with self._transaction() as db:
            # By the owner too: a claim that ran out may be another sweep's by now.
            sql = "DELETE FROM claims WHERE owner = ?"
            if keys is None:
                db.execute(sql, (owner,))
            else:
                db.executemany(f"{sql} AND key = ?", [(owner, key) for key in keys])

    def save(self, point: SweepPoint, outcome: Outcome, owner: str) -> bool:
        """Write an answer and drop the claim on it; False when another sweep answered first."""
        values = point.columns() | outcome.columns | {"key": point.key, "plan": outcome.plan}
        limit_s = point.question.options.time_limit_s
        values |= {
            "tiers": json.dumps(values["tiers"]),
            "solved_at": datetime.now(UTC).isoformat(timespec="seconds"),
            # SQLite has no infinity that compares as one.
            "time_limit_s": limit_s if isfinite(limit_s) else None,
        }
        # SQLite checks pages for damage of its own structure, and not that a cell is what was written.
        values["checksum"] = checksum(values)
        names = [name for name in COLUMNS if name in values]
        # Of two answers to one point the first stays; both are right.
        sql = f"INSERT OR IGNORE INTO points ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})"
        with self._transaction() as db:
            replaced = f"DELETE FROM points WHERE (status = '{ERROR}' OR {_SHORT_OF_TIME}) AND key = ?"
            db.execute(replaced, (limit_s, point.key))
            written = db.execute(sql, [values[name] for name in names]).rowcount == 1
            db.execute("DELETE FROM claims WHERE key = ? AND owner = ?", (point.key, owner))
        return written

    def rows(self, keys: Iterable[str] | None = None) -> Iterator[Row]:
        """Yield rows without their plans: all, sizes innermost, or those with the given keys in order."""
        # Plans are read one at a time (``plan``): they are by far the most of a store.
        names = ", ".join(name for name in COLUMNS if name != "plan")
        if keys is None:
            sql = f"SELECT {names} FROM points ORDER BY {_ORDER}"
            yield from (self._row(row) for row in self._read(sql, ()))
            return
        for key in keys:
            found = self._read(f"SELECT {names} FROM points WHERE key = ?", (key,))
            yield from (self._row(row) for row in found)

    def _row(self, row: sqlite3.Row) -> Row:
        """Return a row as it was written; raises ``InputError`` for one that is not."""
        plain = dict(row)
        try:
            if plain["checksum"] != checksum(plain):
                raise ValueError("its cells do not meet its checksum")
            return plain | {"tiers": json.loads(plain["tiers"])}
        except (ValueError, TypeError) as error:
            what = f"is damaged in the row of {str(plain['model'])[:40]!r} on {plain['gpus']} GPUs ({error})"
            raise input_error(what, "a backup, or another --store path", file=str(self.path)) from None

    def neighbour(self, chain: str, gpus: int) -> Layout | None:
        """Return the layout answered at the size nearest to ``gpus`` in a chain, None when there is none."""
        where = "chain = ? AND step_time_s > 0 AND plan NOTNULL ORDER BY abs(gpus - ?) LIMIT 1"
        for row in self._read(f"SELECT plan FROM points WHERE {where}", (chain, gpus)):
            plain = unpack_plan(row["plan"], file=str(self.path))
            return layout_from_plain(plain["layout"], file=str(self.path)) if plain.get("layout") else None
        return None

    def plan(self, key: str) -> dict[str, Any] | None:
        """Return the plain data of a point's plan, None when there is none."""
        found = list(self._read("SELECT plan FROM points WHERE key = ?", (key,)))
        if not found or found[0]["plan"] is None:
            return None
        return unpack_plan(found[0]["plan"], file=str(self.path))

    def _read(self, sql: str, values: Sequence[object]) -> Iterator[sqlite3.Row]:
        try:
            yield from self._db.execute(sql, values).fetchall()  # no cursor outlives the file
        except sqlite3.ProgrammingError:
            raise
        except sqlite3.DatabaseError as error:
            raise _unusable(self.path, error) from None


def _writing(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, timeout=BUSY_S, isolation_level=None)


def _reading(path: Path) -> sqlite3.Connection:
    """Open a store for reading, also where neither it nor its folder can be written."""
    uri = f"{path.absolute().as_uri()}?mode=ro"
    try:
        db = sqlite3.connect(uri, uri=True, timeout=BUSY_S, isolation_level=None)
        db.execute("SELECT 1 FROM sqlite_master").fetchall()
    except sqlite3.OperationalError as error:
        log = path.with_name(f"{path.name}-wal")
        if "unable to open" not in str(error) or (log.exists() and log.stat().st_size):
            raise
        # SQLite wants its index of the log beside the file; without a log there is nothing that it could miss
        db = sqlite3.connect(f"{uri}&immutable=1", uri=True, isolation_level=None)
    return db


def _create(path: Path) -> None:
    """Build an empty store beside ``path`` and link it there: the file is whole from its first moment on.

    If another process creates it at the same time, one of the two wins and both use it.
    """
    fresh = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        with closing(sqlite3.connect(fresh)) as db:
            db.executescript(_SCHEMA)
            # With a write-ahead log those that read go on while another process writes (sqlite.org/wal.html).
            db.execute("PRAGMA journal_mode = WAL")
        try:
            # Unlike a rename a link fails where the name is taken, so that nobody's store is replaced.
            os.link(fresh, path)
        except FileExistsError:
            pass
        except OSError:  # a file system without hard links
            if not path.exists():
                fresh.replace(path)
    except (OSError, sqlite3.Error) as error:
        what = f"can't be created ({error})"
        raise input_error(what, "a path in a folder you may write to", file=str(path)) from None
    finally:
        fresh.unlink(missing_ok=True)


def _check_kind(path: Path) -> None:
    """Refuse what is no store, through a connection that can't write.

    The file must not be opened in any other way: closing a plain file drops all locks that SQLite holds on it in this
    process, and other processes would delete the log under it (sqlite.org/howtocorrupt.html, section 2.2).
    """
    try:
        # SQLite takes an empty file for a database without tables, and would make one of it.
        if path.stat().st_size == 0:
            raise _no_store(path, "is empty, no store")
        with closing(_reading(path)) as db:
            kind = db.execute("PRAGMA application_id").fetchone()[0]
            version = db.execute("PRAGMA user_version").fetchone()[0]
    except OSError as error:
        raise input_error(f"can't be read ({error.strerror})", "a store of sweeps", file=str(path)) from None
    except sqlite3.DatabaseError as error:
        if "not a database" not in str(error):
            raise _unusable(path, error) from None
        raise _no_store(path, "is no SQLite file") from None
    if kind != APPLICATION_ID:
        raise _no_store(path, "is a SQLite file of another program")
    if version != SCHEMA_VERSION:
        raise _no_store(path, f"has store version {version}, this layoutopt writes {SCHEMA_VERSION}")


def _no_store(path: Path, what: str) -> InputError:
    return input_error(f"{what}; it was left as it is", "another --store path", file=str(path))


def _unusable(path: Path, error: sqlite3.DatabaseError) -> InputError:
    """Say what SQLite could not do, and what helps."""
    text = str(error)
    if "is full" in text:
        what, do = "can't be written: the disk is full", "free space; what was solved is kept"
    elif "readonly" in text or "unable to open" in text:
        what, do = f"can't be written ({text})", "a store you may write to"
    elif "locked" in text:
        what, do = f"stays locked by another process for {BUSY_S:g} s", "try again later"
    else:
        what, do = f"is damaged ({text}); it was left as it is", "a backup, or another --store path"
    return input_error(what, do, file=str(path))
