"""Log step times of many cases for many sets of constants, in this process or in several."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

import numpy as np

from layoutopt.optimizer.evidence.profile import PreparedGroup, group_step_times_s, prepare

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence
    from concurrent.futures import ProcessPoolExecutor

    from numpy.typing import NDArray

    from layoutopt.optimizer.evidence.case import Case

    FloatArray = NDArray[np.float64]

_POOLED: list[PreparedGroup] = []
"""Groups of a worker process, set once when it starts."""


class Pricer:
    """Prices a fixed list of cases; a context manager that owns its worker processes."""

    def __init__(self, cases: Sequence[Case], *, workers: int = 1) -> None:
        self.count = len(cases)
        self.groups = prepare(cases)
        self.workers = workers
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> Self:
        if self.workers > 1:
            from concurrent.futures import ProcessPoolExecutor

            self._pool = ProcessPoolExecutor(self.workers, initializer=_start, initargs=(self.groups,))
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None

    def log_times(self, values: Mapping[str, float], wanted: Collection[int] | None = None) -> FloatArray:
        """Return log seconds of the wanted cases (None: all) and their groups, NaN for the others."""
        (result,) = self.log_times_of([(values, wanted)])
        return result

    def log_times_of(
        self, requests: Sequence[tuple[Mapping[str, float], Collection[int] | None]]
    ) -> list[FloatArray]:
        """Answer several (values, wanted cases) requests."""
        results = [np.full(self.count, np.nan) for _ in requests]
        jobs = [
            (request, index, dict(values))
            for request, (values, wanted) in enumerate(requests)
            for index in self._needed(wanted)
        ]
        for (request, index, _), seconds in zip(jobs, self._run(jobs), strict=True):
            results[request][list(self.groups[index].members)] = np.log(seconds)
        return results

    def _needed(self, wanted: Collection[int] | None) -> list[int]:
        if wanted is None:
            return list(range(len(self.groups)))
        own = set(wanted)
        return [index for index, group in enumerate(self.groups) if not own.isdisjoint(group.members)]

    def _run(self, jobs: Sequence[tuple[int, int, dict[str, float]]]) -> Iterator[FloatArray]:
        if self._pool is None:
            yield from (group_step_times_s(self.groups[index], values) for _, index, values in jobs)
            return
        indices, values = [job[1] for job in jobs], [job[2] for job in jobs]
        yield from self._pool.map(_work, indices, values, chunksize=max(1, len(jobs) // (8 * self.workers)))


def _start(groups: list[PreparedGroup]) -> None:
    _POOLED[:] = groups


def _work(index: int, values: dict[str, float]) -> FloatArray:
    return group_step_times_s(_POOLED[index], values)
