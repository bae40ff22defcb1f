"""Executors of this machine: points one after another in this process, or on a pool of local processes."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from typing import TYPE_CHECKING

from layoutopt.optimizer.specs.errors import input_error
from layoutopt.optimizer.sweep.rows import failed_outcome, lost_outcome

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from multiprocessing.synchronize import Event

    from layoutopt.optimizer.sweep.executors.seam import PointWork
    from layoutopt.optimizer.sweep.rows import Outcome
    from layoutopt.optimizer.sweep.work import Task


QUEUED_PER_WORKER = 2
"""Tasks handed out per worker: one at work and one waiting, so that no worker idles and little is held."""

TRIES_ALONE = 2
"""Deaths of processes that were solving nothing else, after which a point is given up until the next run."""

_STOP: Event | None = None


class LocalExecutor:
    """A pool of fresh (spawned) processes, which also works where forking a threaded process does not."""

    def __init__(self, workers: int | None = None) -> None:
        """Use ``workers`` processes, by default one for each core this process may use."""
        if workers is not None and workers < 1:
            raise input_error(f"{workers} workers", "1 or more", key="workers")
        self.workers = workers or _usable_cores()

    def run(self, work: PointWork, tasks: Iterator[Task]) -> Generator[Outcome]:
        """Yield answers as they come. See ``Executor.run``."""
        run = _Run(work, self.workers)
        try:
            yield from run.outcomes(tasks)
        finally:
            run.close()


class _Run:
    """One run: the pool, what is in it, and what has to be tried again alone."""

    def __init__(self, work: PointWork, workers: int) -> None:
        self._work, self._workers = work, workers
        self._context = multiprocessing.get_context("spawn")
        self._stop = self._context.Event()
        self._running: dict[Future[Outcome], Task] = {}
        self._suspects: deque[Task] = deque()
        self._deaths: dict[str, int] = {}
        self._pool = self._start()

    def _start(self) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(
            self._workers, mp_context=self._context, initializer=_begin, initargs=(self._stop,)
        )

    def close(self) -> None:
        """Stop the workers: what waits is dropped, what runs sees the flag."""
        self._stop.set()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def outcomes(self, tasks: Iterator[Task]) -> Iterator[Outcome]:
        """Keep the pool full until nothing is left."""
        while True:
            self._fill(tasks)
            if not self._running:
                return
            done, _ = wait(self._running, return_when=FIRST_COMPLETED)
            lost = []
            for future in done:
                task = self._running.pop(future)
                try:
                    yield future.result()
                except BrokenProcessPool:
                    lost.append(task)
                except Exception as error:  # the answer could not be sent back
                    yield failed_outcome(task.key, f"{type(error).__name__}: {error}")
            if lost:
                yield from self._recover(lost)

    def _fill(self, tasks: Iterator[Task]) -> None:
        """Hand out tasks: one suspect alone, or as many others as the workers can use."""
        if self._suspects:
            if not self._running:
                self._submit(self._suspects.popleft())
            return
        for task in islice(tasks, max(self._workers * QUEUED_PER_WORKER - len(self._running), 0)):
            self._submit(task)

    def _submit(self, task: Task) -> None:
        try:
            future = self._pool.submit(_call, self._work, task)
        except BrokenProcessPool as error:
            # A worker that died between two answers shows here: the task counts among the lost ones, as those at work do.
            future = Future()
            future.set_exception(error)
        self._running[future] = task

    def _recover(self, lost: list[Task]) -> Iterator[Outcome]:
        """Replace a pool that lost a process. One task of several did it: each is tried alone.

        A task that was alone when its process died gets another try, in case somebody killed it, and then is lost.
        """
        lost += self._running.values()
        self._running.clear()
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._pool = self._start()
        if len(lost) > 1:
            self._suspects.extend(lost)
            return
        key = lost[0].key
        self._deaths[key] = self._deaths.get(key, 0) + 1
        if self._deaths[key] < TRIES_ALONE:
            self._suspects.append(lost[0])
        else:
            yield lost_outcome(key, "the worker process died (out of memory, or killed)")


def _usable_cores() -> int:
    usable = getattr(os, "sched_getaffinity", None)
    return len(usable(0)) if usable else os.cpu_count() or 1


def _begin(stop: Event) -> None:
    """Prepare a worker: interrupts are the parent's business, and it ends when the parent is killed."""
    global _STOP  # a pool passes shared flags to its workers in no other way
    _STOP = stop
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _call(work: PointWork, task: Task) -> Outcome:
    return work(task, None if _STOP is None else _STOP.is_set)


class SerialExecutor:
    """The simplest executor, and the yardstick of the others."""

    def run(self, work: PointWork, tasks: Iterator[Task]) -> Generator[Outcome]:
        """Yield the answer of every task in order."""
        for task in tasks:
            yield work(task)
