"""A small workload whose sizes solve in a tenth of a second, and the executors of the tests."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from layoutopt.optimizer.solve.plan import SolveOptions
from layoutopt.optimizer.specs.loading import load_workload
from layoutopt.optimizer.sweep.families import load_family
from layoutopt.optimizer.sweep.points import SweepGrid
from layoutopt.optimizer.sweep.rows import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from layoutopt.optimizer.specs.workload import Workload
    from layoutopt.optimizer.sweep.executors.seam import PointWork
    from layoutopt.optimizer.sweep.points import SweepPoint
    from layoutopt.optimizer.sweep.work import Task


@pytest.fixture(scope="session")
def tiny() -> Workload:
    """Eight layers of Llama 3 8B, 32 sequences of 2,048 tokens."""
    base = load_workload("llama3-8b")
    model = replace(base.model, name="tiny", runs=(replace(base.model.runs[0], count=8),))
    training = replace(base.training, global_batch=32, sequence_length=2048, total_tokens=1e9)
    return replace(base, model=model, training=training)


@pytest.fixture(scope="session")
def make_points(tiny: Workload) -> Callable[..., tuple[SweepPoint, ...]]:
    """Points of the tiny workload on the H100 family at given sizes."""

    def make(*gpus: int, **changes: Any) -> tuple[SweepPoint, ...]:
        family = load_family("h100")
        grid = SweepGrid(workloads=[tiny], families=[family], gpus=gpus, options=SolveOptions(top=1))
        return replace(grid, **changes).points()

    return make


@dataclass
class PretendExecutor:
    """Answers tasks without solving and remembers them; ``fails`` holds sizes whose answer is an error."""

    fails: tuple[int, ...] = ()
    interrupt_after: int | None = None
    tasks: list[Task] = field(default_factory=list)

    def run(self, work: PointWork, tasks: Iterator[Task]) -> Generator[Outcome]:
        """Answer every task with a step time of 1 s over its GPUs."""
        for task in tasks:
            if self.interrupt_after is not None and len(self.tasks) >= self.interrupt_after:
                raise KeyboardInterrupt
            self.tasks.append(task)
            gpus = task.question.cluster.gpu_count
            bad = gpus in self.fails
            answer = (
                {"status": "error", "message": "broken"}
                if bad
                else {"status": "optimal", "step_time_s": 1.0 / gpus}
            )
            yield Outcome(key=task.key, columns=answer)

    @property
    def sizes(self) -> list[int]:
        """Sizes solved so far, in order."""
        return [task.question.cluster.gpu_count for task in self.tasks]


@pytest.fixture
def works_on_path(monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make ``sweep_works`` importable here and in spawned processes."""
    folder = Path(__file__).parent / "works"
    monkeypatch.syspath_prepend(str(folder))
    return folder


@pytest.fixture
def pretend() -> type[PretendExecutor]:
    """The executor that answers without solving."""
    return PretendExecutor
