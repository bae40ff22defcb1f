"""Solve points on a Dask cluster, wherever its workers run."""

from __future__ import annotations

import logging
import re
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from importlib import import_module
from itertools import islice
from typing import TYPE_CHECKING, Any

from layoutopt.optimizer.solve.inputs import cost_model_digest
from layoutopt.optimizer.specs.errors import InputError, input_error
from layoutopt.optimizer.sweep.rows import failed_outcome, lost_outcome

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from layoutopt.optimizer.sweep.executors.seam import PointWork
    from layoutopt.optimizer.sweep.rows import Outcome
    from layoutopt.optimizer.sweep.work import Task

CONNECT_S = 20.0
ADDRESS = re.compile(r"([a-z]+://)?[^/\s]+:\d+")
POLL_S = 1.0
"""How often a lost scheduler is noticed and new workers are counted."""

QUEUED_PER_THREAD = 2
LOGGERS = (
    "distributed", "distributed.client", "distributed.comm", "distributed.core", "tornado.application", "asyncio"
)  # fmt: skip
"""Who logs when a scheduler is gone."""

KILLED = "KilledWorker"
"""What dask raises for a task over which several workers died (distributed.scheduler)."""


class DaskExecutor:
    """Sends tasks to a running scheduler, e.g. ``tcp://host:8786``.

    Dask restarts the tasks of workers that die; a task that keeps killing workers is lost.
    """

    def __init__(self, address: str, *, connect_s: float = CONNECT_S) -> None:
        """Remember where the scheduler is; raises ``InputError`` when dask is not installed."""
        try:
            _dask()
        except ImportError:
            what = "a scheduler needs dask, which is not installed"
            raise input_error(what, 'pip install "dask[distributed]"', key="scheduler") from None
        if not ADDRESS.fullmatch(address):
            shown, allowed = (
                repr(address[:60]),
                "the address that `dask scheduler` prints, e.g. tcp://host:8786",
            )
            raise input_error(f"{shown} is no address", allowed, key="scheduler")
        self.address, self._connect_s = address, connect_s

    def run(self, work: PointWork, tasks: Iterator[Task]) -> Generator[Outcome]:
        """Yield answers as they come, see ``Executor.run``; ``InputError`` when the scheduler is gone."""
        with _silent_logs():
            yield from self._run(work, tasks)

    def _run(self, work: PointWork, tasks: Iterator[Task]) -> Generator[Outcome]:
        client = self._connect()
        running: dict[Any, Task] = {}
        try:
            self._check_workers(client)
            yield from self._outcomes(client, work, tasks, running)
        except (OSError, CancelledError):  # a connection that breaks in the middle of a call
            raise self._lost() from None
        finally:
            with suppress(OSError, CancelledError):  # nothing is left to tell a scheduler that is gone
                if client.status == "running":
                    client.cancel(list(running), force=True)
                client.close(timeout=self._connect_s)

    def _outcomes(
        self, client: Any, work: PointWork, tasks: Iterator[Task], running: dict[Any, Task]
    ) -> Iterator[Outcome]:
        while True:
            # Workers come and go while a cluster grows: asked anew each time, and one where all are gone for now.
            wanted = max(sum(client.nthreads().values()), 1) * QUEUED_PER_THREAD
            for task in islice(tasks, max(wanted - len(running), 0)):
                # Not pure: dask would make a key of work and task, and hand out what it keeps under it (Client.submit).
                running[client.submit(work, task, pure=False)] = task
            if not running:
                return
            done = _finished(client, list(running))
            for future in done:
                yield _outcome(future, running.pop(future))
            if client.status != "running":
                raise self._lost()

    def _connect(self) -> Any:
        try:
            return _dask().Client(self.address, timeout=self._connect_s, set_as_default=False)
        except (OSError, ValueError) as error:
            what = f"no scheduler answers at {self.address} ({type(error).__name__})"
            raise input_error(what, "the address that `dask scheduler` prints", key="scheduler") from None

    def _check_workers(self, client: Any) -> None:
        """Ask the workers that are there for their cost model: another one would answer other questions."""
        try:
            digests = client.run(cost_model_digest)
        except Exception as error:  # whatever a foreign environment raises on import
            what = f"the workers of {self.address} can't run layoutopt ({type(error).__name__}: {error})"
            raise input_error(what, "the same layoutopt installed on every worker", key="scheduler") from None
        others = [worker for worker, digest in digests.items() if digest != cost_model_digest()]
        if others:
            what = f"{others[0]} runs another version of the cost model"
            raise input_error(what, "the same layoutopt on every worker", key="scheduler")

    def _lost(self) -> InputError:
        what = f"lost the scheduler at {self.address}; what was solved is stored"
        return input_error(what, "start it and run the same command again", key="scheduler")


@contextmanager
def _silent_logs() -> Iterator[None]:
    """Keep the tracebacks of a lost connection out of the terminal: the sweep says what happened in one line."""
    loggers = [logging.getLogger(name) for name in LOGGERS]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)


def _dask() -> Any:
    """Return dask's package: imported when needed, and only partly typed."""
    return import_module("distributed")


def _finished(client: Any, futures: list[Any]) -> set[Any]:
    """Wait a moment for futures to finish and return those that did."""
    with client.as_current():  # wait() knows no other way to be told the client
        try:
            done: set[Any] = _dask().wait(futures, timeout=POLL_S, return_when="FIRST_COMPLETED").done
        except TimeoutError:
            return set()
    return done


def _outcome(future: Any, task: Task) -> Outcome:
    try:
        outcome: Outcome = future.result()
    except Exception as error:  # a worker that keeps dying, or an answer that can't be sent
        kind = type(error).__name__
        made = lost_outcome if kind == KILLED else failed_outcome
        outcome = made(task.key, f"{kind}: {error}")
    future.release()
    return outcome
