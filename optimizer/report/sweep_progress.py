"""Progress of a sweep on stderr: a live bar on a terminal, sparse lines in a log."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Self

from layoutopt.optimizer.report.terminal import say
from layoutopt.optimizer.specs.printable import printable
from layoutopt.optimizer.specs.units import format_seconds

if TYPE_CHECKING:
    from types import TracebackType

    from rich.live import Live

    from layoutopt.optimizer.sweep.run import SweepProgress

LIVE_EVERY_S = 0.1
LINE_EVERY_S = 10.0
BAR_WIDTH = 24


def sweep_progress_text(state: SweepProgress) -> str:
    """Write the state on one line: a bar, points, rate, time left, the point just answered."""
    filled = BAR_WIDTH * state.done // max(state.total, 1)
    words = [f"[{'#' * filled}{'.' * (BAR_WIDTH - filled)}]", f"{state.done:,}/{state.total:,} points"]
    if state.points_per_s:
        words.append(f"{state.points_per_s:.2f}/s")
    if state.left_s is not None:
        words.append(f"{format_seconds(state.left_s)} left")
    if state.failed:
        words.append(f"{state.failed:,} failed")
    if state.last is not None:
        words.append(f"{state.last.model} {state.last.gpus:,} GPUs")
    return "  ".join(words)


class SweepProgressPrinter:
    """Shows progress as wanted; ``update`` may be called for every point."""

    def __init__(self, *, quiet: bool, verbose: bool) -> None:
        self._live_wanted = not quiet and sys.stderr.isatty()
        self._lines_wanted = not quiet and not self._live_wanted and verbose
        self._live: Live | None = None
        self._last = -LINE_EVERY_S

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Remove the bar."""
        if self._live is not None:
            self._live.stop()

    def update(self, state: SweepProgress) -> None:
        """Show a state if it is due; the last one always is."""
        every = LIVE_EVERY_S if self._live_wanted else LINE_EVERY_S
        now = time.perf_counter()
        if now - self._last < every and state.done < state.total:
            return
        self._last = now
        if self._lines_wanted:
            say(sweep_progress_text(state))
        elif self._live_wanted:
            self._draw(sweep_progress_text(state))

    def _draw(self, text: str) -> None:
        if self._live is None:
            from rich.console import Console
            from rich.live import Live

            console = Console(stderr=True, highlight=False, markup=False)
            self._live = Live(console=console, auto_refresh=False, transient=True)
            self._live.start()
        self._live.update(printable(text), refresh=True)
