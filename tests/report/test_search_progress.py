"""Progress of a search: which printer is chosen and what it says."""

from __future__ import annotations

import math
import sys

import pytest

from layoutopt.optimizer.report import progress
from layoutopt.optimizer.report.progress import Lines, LiveLine, Silent, progress_printer, progress_text
from layoutopt.optimizer.solve.search.result import Progress


def state(best_s: float = 5.0, bound_s: float = 4.9, rows_left: int = 1234) -> Progress:
    """Return a state of a search."""
    return Progress(best_s=best_s, bound_s=bound_s, rows_left=rows_left, solves=3)


def test_text_says_best_bound_and_gap() -> None:
    """Best, gap, bound and what is left, in less than 80 columns."""
    text = progress_text(state(), 2.0)
    assert text == "best 5 s  gap 2.00%  bound 4.9 s  1,234 left  3 solved  2.0 s"
    assert len(progress_text(state(12345.678, 12345.0, 10**9), 9999.0)) < 80


def test_text_before_the_first_layout() -> None:
    """Without a layout there is no gap, without a bound none is shown."""
    assert "no layout yet" in progress_text(state(best_s=math.inf), 0.0)
    assert "bound" not in progress_text(state(best_s=math.inf, bound_s=math.inf), 0.0)


@pytest.mark.parametrize(
    ("terminal", "quiet", "verbose", "kind"),
    [
        (True, False, False, LiveLine),
        (True, False, True, LiveLine),
        (True, True, True, Silent),  # quiet wins
        (False, False, False, Silent),  # a log is not filled unasked
        (False, False, True, Lines),
    ],
)
def test_choice_of_printer(
    monkeypatch: pytest.MonkeyPatch, terminal: bool, quiet: bool, verbose: bool, kind: type[Silent]
) -> None:
    """A live line on terminals only, plain lines in logs when asked for."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal, raising=False)
    assert type(progress_printer(quiet=quiet, verbose=verbose)) is kind


def test_lines_are_news_only(capsys: pytest.CaptureFixture[str]) -> None:
    """A line is printed for a better layout and not for every state."""
    with Lines() as printer:
        for best_s in (5.0, 5.0, 4.8, 4.8):
            printer.update(state(best_s=best_s))
    captured = capsys.readouterr()
    assert len(captured.err.splitlines()) == 2
    assert captured.out == ""


def test_live_line_cleans_up(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The live line writes to stderr and stops at the end, also when nothing was shown."""
    with LiveLine():
        pass
    monkeypatch.setattr(progress, "LIVE_EVERY_S", 0.0)
    with LiveLine() as printer:
        printer.update(state())
    assert capsys.readouterr().out == ""


def test_interrupt_asks_first_and_aborts_then() -> None:
    """The first Ctrl-C sets the flag, the second raises, and the old handler is back afterwards."""
    import signal

    from layoutopt.optimizer.report.commands.searching import Interrupt

    before, told = signal.getsignal(signal.SIGINT), []
    with pytest.raises(KeyboardInterrupt), Interrupt(lambda: told.append(1)) as interrupt:
        assert not interrupt.asked()
        signal.raise_signal(signal.SIGINT)
        assert interrupt.asked()
        signal.raise_signal(signal.SIGINT)
    assert told == [1]
    assert signal.getsignal(signal.SIGINT) == before
