"""Solve one point after another in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from layoutopt.optimizer.sweep.executors.seam import PointWork
    from layoutopt.optimizer.sweep.rows import Outcome
    from layoutopt.optimizer.sweep.work import Task


class SerialExecutor:
    """The simplest executor, and the yardstick of the others."""

    def run(self, work: PointWork, tasks: Iterator[Task]) -> Generator[Outcome]:
        """Yield the answer of every task in order."""
        for task in tasks:
            yield work(task)
