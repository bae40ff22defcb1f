"""Work that worker processes of the tests do in place of solving; imported by name there."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from layoutopt.optimizer.sweep.rows import Outcome

if TYPE_CHECKING:
    from layoutopt.optimizer.sweep.work import ShouldStop, Task


@dataclass(frozen=True)
class LoggedWork:
    """Takes ``seconds``, notes the task in a log, and dies on the task of ``deadly`` GPUs."""

    log: str
    seconds: float = 0.0
    deadly: int = 0

    def __call__(self, task: Task, should_stop: ShouldStop | None = None) -> Outcome:
        gpus = task.question.cluster.gpu_count
        if gpus == self.deadly:
            os._exit(9)
        end = time.monotonic() + self.seconds
        while time.monotonic() < end and not (should_stop is not None and should_stop()):
            time.sleep(0.01)
        with Path(self.log).open("a") as file:
            file.write(f"{gpus}\n")
        return Outcome(key=task.key, columns={"status": "optimal", "step_time_s": 1.0 / gpus})


@dataclass(frozen=True)
class FirstThen:
    """Does one work on a single GPU and another on more."""

    first: LoggedWork
    then: LoggedWork

    def __call__(self, task: Task, should_stop: ShouldStop | None = None) -> Outcome:
        work = self.first if task.question.cluster.gpu_count == 1 else self.then
        return work(task, should_stop)
