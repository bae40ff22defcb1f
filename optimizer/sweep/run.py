"""Run a sweep: claim points, solve them somewhere, store every answer at once, and say how it goes."""

from __future__ import annotations

import threading
import time
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from math import inf
from typing import TYPE_CHECKING

from layoutopt.optimizer.solve.certificate import Status
from layoutopt.optimizer.solve.inputs import cost_model_digest
from layoutopt.optimizer.specs.errors import InputError
from layoutopt.optimizer.sweep.owners import new_owner
from layoutopt.optimizer.sweep.store import SweepStore
from layoutopt.optimizer.sweep.work import SolveWork, Task

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from layoutopt.optimizer.sweep.executors.seam import Executor, PointWork
    from layoutopt.optimizer.sweep.points import SweepPoint
    from layoutopt.optimizer.sweep.rows import Outcome
    from layoutopt.optimizer.sweep.store import Claim
    from layoutopt.optimizer.sweep.work import PlanWriter

LEASE_S = 120.0
"""A claim of another machine's process that isn't renewed for so long is taken over."""

POLL_S = 0.5
"""How often points are looked at that another sweep is solving."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepProgress:
    """How a sweep goes.

    Of ``total`` points ``reused`` were in the store or solved by another sweep, ``solved`` were solved now,
    of which ``failed`` ended in an error. ``points_per_s`` and ``left_s`` are None until a point is solved.
    ``lost`` points have no answer because their worker died. ``waiting`` points are being solved by another sweep, and
    nothing else is left to do. ``last`` is the point just answered.
    """

    total: int
    reused: int
    solved: int
    failed: int
    points_per_s: float | None
    left_s: float | None
    last: SweepPoint | None = None
    lost: int = 0
    waiting: int = 0

    @property
    def done(self) -> int:
        """Points with an answer."""
        return self.reused + self.solved


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepResult:
    """How a sweep ended; its answers are in the store.

    ``unproven`` counts answers that hit a time limit, ``lost`` points whose worker died: the same command tries them again.
    """

    total: int
    reused: int
    solved: int
    failed: int
    unproven: int
    infeasible: int
    interrupted: bool
    seconds: float
    lost: int = 0


def run_sweep(
    points: Sequence[SweepPoint],
    store: str | Path,
    executor: Executor,
    *,
    write_plan: PlanWriter,
    on_progress: Callable[[SweepProgress], None] | None = None,
    retry_errors: bool = False,
    warm_start: bool = True,
    lease_s: float = LEASE_S,
) -> SweepResult:
    """Answer every point that the store doesn't hold yet.

    Parameters
    ----------
    points
        From ``SweepGrid.points``.
    store
        Path of the store, created if missing. Other sweeps may use it at the same time.
    write_plan
        Turns a plan into plain data to store; importable by name, so that it can be sent to workers.
    on_progress
        Called after every answer, in this thread.
    retry_errors
        Solve points again whose answer is an error.
    warm_start
        Start from the nearest size's layout where the store has one.
    lease_s
        How long a claim outlives the last sign of life of a process on another machine.

    Raises
    ------
    InputError
        If the store can't be used or the executor's workers can't be reached. Answers so far are stored. An
        interrupt ends the sweep cleanly: the result says so.
    """
    with SweepStore(store) as opened:
        sweep = _Sweep(points, opened, on_progress, retry_errors, warm_start, lease_s)
        # A solve may take longer than a lease, in which another machine would take the point for abandoned.
        with heartbeat(opened.path, sweep.owner, lease_s):
            try:
                return sweep.run(executor, SolveWork(write_plan=write_plan))
            finally:
                opened.release(sweep.owner)


class _Sweep:
    """State of one run in the calling thread."""

    def __init__(
        self,
        points: Sequence[SweepPoint],
        store: SweepStore,
        on_progress: Callable[[SweepProgress], None] | None,
        retry: bool,
        warm_start: bool,
        lease_s: float,
    ) -> None:
        self.owner = new_owner()
        self._points, self._store, self._on_progress = points, store, on_progress
        self._retry, self._warm, self._lease_s = retry, warm_start, lease_s
        self._begun = time.perf_counter()
        self._reused = self._solved = self._failed = self._unproven = self._infeasible = self._lost = 0
        self._limit_s = points[0].question.options.time_limit_s if points else inf
        self._held: dict[str, tuple[Claim, float]] = {}
        self._at_work: dict[str, SweepPoint] = {}

    def run(self, executor: Executor, work: PointWork) -> SweepResult:
        """Solve what is open; wait for what other sweeps are solving."""
        interrupted = False
        try:
            answered = self._answered()
            self._open = [point for point in self._points if point.key not in answered]
            self._reused = len(self._points) - len(self._open)
            self._report(None)
            while self._open:
                self._round(executor, work)
        except KeyboardInterrupt:
            interrupted = True
        return SweepResult(
            total=len(self._points),
            reused=self._reused,
            solved=self._solved,
            failed=self._failed,
            unproven=self._unproven,
            infeasible=self._infeasible,
            interrupted=interrupted,
            lost=self._lost,
            seconds=time.perf_counter() - self._begun,
        )

    def _round(self, executor: Executor, work: PointWork) -> None:
        """Go once over the open points; those that others hold stay open."""
        taken, self._open = self._open, []
        tasks = self._tasks(taken)
        # Whether anything can be claimed is known only by claiming: executors start for work alone.
        first = next(tasks, None)
        if first is not None:
            with closing(executor.run(work, chain([first], tasks))) as outcomes:
                for outcome in outcomes:
                    self._keep(outcome)
        elif self._open:
            # All that is left is being solved by others.
            time.sleep(POLL_S)
            self._drop_answered()

    def _tasks(self, points: Iterable[SweepPoint]) -> Iterator[Task]:
        """Claim points as workers ask for them."""
        for point in points:
            taken = self._store.claim(
                point.key, self.owner, lease_s=self._lease_s, now_s=time.time(), retry=self._retry,
                time_limit_s=self._limit_s, silent=self._silent(point.key),
            )  # fmt: skip
            if not taken:
                self._open.append(point)
                continue
            self._at_work[point.key] = point
            # Looked up when a worker asks, not when the sweep begins: sizes answered meanwhile are the nearest.
            neighbour, prices = None, cost_model_digest()
            if self._warm:
                neighbour = self._store.neighbour(point.chain, point.gpus)
            yield Task(key=point.key, question=point.question, neighbour=neighbour, cost_model=prices)

    def _drop_answered(self) -> None:
        """Forget open points that another sweep has answered."""
        answered = self._answered()
        left = [point for point in self._open if point.key not in answered]
        self._reused += len(self._open) - len(left)
        self._open = left
        self._watch()
        self._report(None, waiting=len(left))

    def _answered(self) -> set[str]:
        return self._store.solved_keys(with_errors=not self._retry, time_limit_s=self._limit_s)

    def _watch(self) -> None:
        """Note since when each claim of others has been as it is."""
        now = time.monotonic()
        found = self._store.claims()
        self._held = {
            key: before if (before := self._held.get(key)) and before[0] == held else (held, now)
            for key, held in found.items()
        }

    def _silent(self, key: str) -> Claim | None:
        """Return a claim that nobody renewed for a whole lease, whatever it says: clocks differ, owners renew."""
        held, since = self._held.get(key, (None, time.monotonic()))
        return held if time.monotonic() - since > self._lease_s else None

    def _keep(self, outcome: Outcome) -> None:
        point = self._at_work.pop(outcome.key)
        if outcome.lost:
            # Nothing was answered, so that anybody may try again at once.
            self._store.release(self.owner, [point.key])
            self._lost += 1
        # Somebody else was faster, after our claim had run out.
        elif not self._store.save(point, outcome, self.owner):
            self._reused += 1
        else:
            status = outcome.columns["status"]
            self._solved += 1
            self._failed += outcome.failed
            self._unproven += status == Status.STOPPED
            self._infeasible += status == Status.INFEASIBLE
        self._report(point)

    def _report(self, last: SweepPoint | None, *, waiting: int = 0) -> None:
        if self._on_progress is None:
            return
        seconds = time.perf_counter() - self._begun
        rate = self._solved / seconds if self._solved else None
        # Points that others hold count as left until they are answered.
        left = len(self._points) - self._reused - self._solved - self._lost
        self._on_progress(
            SweepProgress(
                total=len(self._points),
                reused=self._reused,
                solved=self._solved,
                failed=self._failed,
                points_per_s=rate,
                left_s=left / rate if rate else None,
                last=last,
                lost=self._lost,
                waiting=waiting,
            )
        )


@contextmanager
def heartbeat(path: Path, owner: str, lease_s: float) -> Iterator[None]:
    """Renew this sweep's claims from a thread of its own until the block ends."""
    ended = threading.Event()

    def beat() -> None:
        """Renew the claims until the worker ends."""
        while not ended.wait(lease_s / 4):
            # What keeps a claim from being renewed (a lock, a full disk) meets the next answer too, and is said there.
            with suppress(InputError), SweepStore(path) as store:
                store.renew(owner, lease_s=lease_s, now_s=time.time())

    # Of its own thread the store needs its own connection: SQLite's objects belong to the thread that made them.
    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
