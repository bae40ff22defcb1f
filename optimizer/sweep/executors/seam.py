"""The seam between a sweep and what runs it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from layoutopt.optimizer.sweep.rows import Outcome
    from layoutopt.optimizer.sweep.work import ShouldStop, Task


class PointWork(Protocol):
    """What is done with a task. Instances can be pickled; they return an answer for every task."""

    def __call__(self, task: Task, should_stop: ShouldStop | None = None) -> Outcome:
        """Answer one task; ``should_stop`` is polled and ends the work early."""
        ...


class Executor(Protocol):
    """Runs the work on every task."""

    def run(self, work: PointWork, tasks: Iterator[Task]) -> Generator[Outcome]:
        """Yield the answer of every task once, in any order.

        Tasks are drawn in the calling thread, only as many as are needed to keep the workers busy, so that
        memory stays flat. A task whose worker dies for good is answered with an error. Closing the generator,
        as an interrupt does, stops the workers.
        """
        ...
