"""The console and the few shapes that all tables share."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.box import Box
from rich.console import Console, Group
from rich.padding import Padding
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from layoutopt.optimizer.specs.printable import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import ConsoleOptions, RenderableType, RenderResult

# Only a rule under the header: tables stay readable in logs.
_RULED = Box("    \n    \n -- \n    \n    \n    \n    \n    \n", ascii=True)
WIDTH = 100
"""Columns of what is printed into a file or pipe: an answer fits one screen of this width."""

STYLES = {
    "optimal": "bold green",
    "within_gap": "bold green",
    "fits": "bold green",
    "accepted": "bold green",
    "borderline": "bold yellow",
    "stopped": "bold yellow",
}
"""Styles of verdicts; all others are bad news."""


def console() -> Console:
    """Return a console on stdout, as wide as the terminal or ``COLUMNS``, ``WIDTH`` columns where there is neither."""
    found = Console(highlight=False, emoji=False, markup=False)
    # Rich takes 80 columns where it finds no terminal.
    if not found.is_terminal and "COLUMNS" not in os.environ:
        found.width = WIDTH
    return found


def verdict_text(word: str) -> Text:
    """Write a status or verdict in its colour, without underscores."""
    return Text(word.replace("_", " "), style=STYLES.get(word, "bold red"))


def section(title: str, *parts: RenderableType, note: str = "") -> Group:
    """Put a heading over indented parts."""
    heading = Text.assemble((title, "bold"), (f"  {note}" if note else "", "dim"))
    return Group(Text(""), heading, *(Padding(part, (0, 0, 0, 2)) for part in parts))


def grid(
    columns: Sequence[str], rows: Iterable[Sequence[str]], *, left: Sequence[int] = (0,), wraps: bool = False
) -> Table:
    """Build a table; columns are right-aligned but for those listed in ``left``, which may wrap after the first.

    ``wraps``: the first may too, where its words would else cost numbers their digits.
    """
    table = Table(box=_RULED, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for index, name in enumerate(columns):
        is_text = index in left
        table.add_column(
            name,
            justify="left" if is_text else "right",
            # A number that wraps is two numbers.
            no_wrap=not is_text or (index == 0 and not wraps),
            overflow="fold",
        )
    for row in rows:
        table.add_row(*row)
    return table


def facts(pairs: Iterable[tuple[str, str]]) -> Table:
    """Build two columns of names and values; values wrap under themselves."""
    table = Table(box=None, show_header=False, show_edge=False, pad_edge=False, padding=(0, 1))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in pairs:
        table.add_row(Text(name, style="dim"), value)
    return table


def bullets(lines: Iterable[str]) -> Table:
    """Build a list whose lines wrap under themselves."""
    table = Table(box=None, show_header=False, show_edge=False, pad_edge=False, padding=(0, 1))
    table.add_column(no_wrap=True, width=1)
    table.add_column(overflow="fold")
    for line in lines:
        table.add_row("-", line)
    return table


def percent(share: float | None, form: str = ".1f") -> str:
    """Write a share in percent for a column whose head or note has the sign; a dash for none."""
    return "-" if share is None else format(100 * share, form)


@dataclass(frozen=True, slots=True)
class Printable:
    """Something for rich to show, with the control characters of its text written out; colours stay."""

    content: RenderableType

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for part in console.render(self.content, options):
            yield part if part.control else Segment(printable(part.text, lines=True), part.style)
