"""When a search has to end: its time limit, a stop that is asked for, and overtime while no layout is known."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

OVERTIME_STEPS = 8
"""Steps of the search after a time limit as long as no layout is known: an answer without one helps nobody."""


class Deadline:
    """The end of a search that begins now. ``should_stop`` asks for an earlier one."""

    def __init__(self, time_limit_s: float, should_stop: Callable[[], bool] | None) -> None:
        self._limit_s, self._should_stop = time_limit_s, should_stop
        self._end_s = time.perf_counter() + time_limit_s
        self._steps = OVERTIME_STEPS

    @property
    def left_s(self) -> float:
        """Seconds until the time limit, negative after it."""
        return self._end_s - time.perf_counter()

    @property
    def half_over(self) -> bool:
        """Whether half of the time limit is over."""
        return self.left_s < self._limit_s / 2

    def grant(self) -> None:
        """Grant all the overtime again."""
        self._steps = OVERTIME_STEPS

    def reached(self, *, known: bool) -> bool:
        """Whether to begin no other step; without a ``known`` layout, a few begin after the time limit to find one."""
        if self.asked():
            return True
        late = self.left_s < 0
        # A stop with nothing found would tell a user nothing.
        if late and not known and self._steps:
            self._steps -= 1
            return False
        return late

    def over(self, *, known: bool) -> bool:
        """Whether what runs has to end."""
        # Overtime lets what runs go on, as it lets steps begin.
        return self.asked() or ((known or not self._steps) and self.left_s < 0)

    def asked(self) -> bool:
        """Whether a stop was asked for."""
        return self._should_stop is not None and self._should_stop()
