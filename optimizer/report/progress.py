"""Progress of a running search or sweep on stderr: one live line on a terminal, sparse plain lines in a log."""

from __future__ import annotations

import math
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Self

from layoutopt.optimizer.report.terminal import say
from layoutopt.optimizer.specs.printable import printable
from layoutopt.optimizer.specs.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

    from rich.live import Live

    from layoutopt.optimizer.solve.search.result import Progress
    from layoutopt.optimizer.sweep.run import SweepProgress


LIVE_EVERY_S = 0.1
LINE_EVERY_S = 2.0
BAR_WIDTH = 24


def live_line() -> Live:
    """Return a line on stderr that is redrawn when asked, and gone at the end."""
    from rich.console import Console
    from rich.live import Live

    console = Console(stderr=True, highlight=False, markup=False)
    return Live(console=console, auto_refresh=False, transient=True)


def bar(share: float) -> str:
    """Draw how much is done."""
    filled = int(BAR_WIDTH * share + 1e-9)  # full only where all is done
    return f"[{'#' * filled}{'.' * (BAR_WIDTH - filled)}]"


def progress_text(state: Progress, spent_s: float) -> str:
    """Write the state on one line of less than 80 columns."""
    if math.isinf(state.best_s):
        best = "no layout yet"
    else:
        gap = max(0.0, 1.0 - state.bound_s / state.best_s)
        best = f"best {state.best_s:.5g} s  gap {gap:.2%}"
    bound = "" if math.isinf(state.bound_s) else f"  bound {state.bound_s:.5g} s"
    return f"{best}{bound}  {state.rows_left:,} left  {state.solves} solved  {spent_s:.1f} s"


class Silent:
    """Shows nothing; what the other printers do is built on it."""

    def __init__(self) -> None:
        self._start = self._last = time.perf_counter()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave nothing behind."""

    def update(self, state: Progress) -> None:
        """Take note of a new state."""

    def _due(self, every_s: float) -> bool:
        now = time.perf_counter()
        due = now - self._last >= every_s
        self._last = now if due else self._last
        return due

    def _text(self, state: Progress) -> str:
        return progress_text(state, time.perf_counter() - self._start)


class Lines(Silent):
    """Prints a line when the best layout changes, and now and then."""

    def __init__(self) -> None:
        super().__init__()
        self._best_s = math.inf

    def update(self, state: Progress) -> None:
        """Print the state if it is news."""
        # A better layout is news at any time; else now and then, to show that it goes on.
        if state.best_s < self._best_s or self._due(LINE_EVERY_S):
            self._best_s = state.best_s
            say(self._text(state))


class LiveText:
    """A line on stderr that is drawn anew, and gone at the end of the context."""

    _live: Live | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Remove the line."""
        if self._live is not None:
            self._live.stop()

    def _draw(self, text: str) -> None:
        # Started at the first text: what is over at once shows nothing.
        if self._live is None:
            self._live = live_line()
            self._live.start()
        self._live.update(printable(text), refresh=True)


class LiveLine(LiveText, Silent):
    """Keeps one line up to date and removes it at the end."""

    def update(self, state: Progress) -> None:
        """Redraw the line, at most ten times a second."""
        if self._due(LIVE_EVERY_S):
            self._draw(self._text(state))


def progress_printer(*, quiet: bool, verbose: bool) -> Silent:
    """Choose how to show progress: live on a terminal, lines when asked for detail, else not at all."""
    if quiet:
        return Silent()
    if sys.stderr.isatty():
        return LiveLine()
    return Lines() if verbose else Silent()


SWEEP_LINE_EVERY_S = 10.0


def sweep_progress_text(state: SweepProgress) -> str:
    """Write the state on one line: a bar, points, rate, time left, the point just answered."""
    words = [bar(state.done / max(state.total, 1)), f"{state.done:,}/{state.total:,} points"]
    if state.points_per_s:
        words.append(f"{state.points_per_s:.2f}/s")
    if state.left_s is not None:
        words.append(f"{format_seconds(state.left_s)} left")
    if state.lost:
        words.append(f"{state.lost:,} lost with their worker")
    if state.waiting:
        words.append(f"waiting for {state.waiting:,} that another sweep is solving")
    if state.failed:
        words.append(f"{state.failed:,} failed")
    if state.last is not None:
        words.append(f"{state.last.model} {state.last.gpus:,} GPUs")
    return "  ".join(words)


class SweepProgressPrinter(LiveText):
    """Shows progress as wanted; ``update`` may be called for every point."""

    def __init__(self, *, quiet: bool, verbose: bool) -> None:
        self._live_wanted = not quiet and sys.stderr.isatty()
        self._lines_wanted = not quiet and not self._live_wanted and verbose
        self._last = -SWEEP_LINE_EVERY_S
        self._waits_unsaid = not quiet

    def update(self, state: SweepProgress) -> None:
        """Show a state if it is due; the last one always is."""
        if state.waiting and self._waits_unsaid and not self._live_wanted:
            self._waits_unsaid = False  # whoever waits wants to know for what, also without progress
            say(
                f"waiting for {state.waiting:,} points that another sweep is solving; its claims end when it does"
            )
        every = LIVE_EVERY_S if self._live_wanted else SWEEP_LINE_EVERY_S
        now = time.perf_counter()
        # The last state always: a log must not end short of what was done.
        if now - self._last < every and state.done < state.total:
            return
        self._last = now
        if self._lines_wanted:
            say(sweep_progress_text(state))
        elif self._live_wanted:
            self._draw(sweep_progress_text(state))


@contextmanager
def reading_progress(*, quiet: bool) -> Iterator[Callable[[str, float], None] | None]:
    """Yield what shows on a terminal which file is read and how far, None where nothing is to be shown."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    with live_line() as live:
        last = 0.0

        def show(name: str, share: float) -> None:
            """Draw how much of a file is read, at most every ``LIVE_EVERY_S``."""
            nonlocal last
            now = time.perf_counter()
            if now - last >= LIVE_EVERY_S:
                last = now
                live.update(printable(f"{bar(share)}  {share:.0%} of {name}"), refresh=True)

        yield show
