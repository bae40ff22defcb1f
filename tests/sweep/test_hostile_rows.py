"""Texts of a sweep's rows stay texts: in a table for spreadsheets and on a page."""

from __future__ import annotations

import csv
import json
import random
from html.parser import HTMLParser
from io import StringIO
from typing import TYPE_CHECKING, Any

import pytest

from layoutopt.optimizer.report.html.swept import sweep_page
from layoutopt.optimizer.report.json_forms import plan_to_plain
from layoutopt.optimizer.sweep.export import FORMULA_STARTS, write_text
from layoutopt.optimizer.sweep.run import run_sweep
from layoutopt.optimizer.sweep.store import SweepStore

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from layoutopt.optimizer.sweep.points import SweepPoint

PIECES = (
    "=cmd|' /C calc'!A0", "+1+1", "-2+3", "@SUM(1)", "\t=1", "\r=1", "<script>alert(1)</script>", "</script>",
    '"', "'", ",", ";",
    "\n", "<img src=x onerror=alert(1)>", "&lt;", "-->", "<!--", "]]>", "{{7*7}}", "javascript:alert(1)", "ä", "a b", "\\",
)  # fmt: skip
TEXTS = ("model", "family", "framework")


def hostile(count: int) -> list[str]:
    """Return texts of one to three pieces, the same in every run."""
    draw = random.Random(7)
    return ["".join(draw.choices(PIECES, k=draw.randint(1, 3))) for _ in range(count)]


@pytest.fixture
def rows(
    tmp_path: Path, make_points: Callable[..., tuple[SweepPoint, ...]], pretend: Any
) -> list[dict[str, Any]]:
    """Rows of three answered sizes."""
    run_sweep(make_points(1, 2, 4), tmp_path / "s.db", pretend(), write_plan=plan_to_plain)
    with SweepStore(tmp_path / "s.db") as store:
        # pretended answers leave out figures that a page draws
        return [
            {name: 1.0 if value is None else value for name, value in row.items()} for row in store.rows()
        ]


def test_cells_are_texts_and_no_formulas(rows: list[dict[str, Any]]) -> None:
    """Each comes back from a CSV reader, and none starts as a spreadsheet's formula does; numbers are untouched."""
    for text in hostile(300):
        file = StringIO(newline="")
        write_text([rows[0] | dict.fromkeys(TEXTS, text)], file, "csv")
        lines = text.replace("\r\n", "\n").replace("\r", "\n")
        (back,) = csv.DictReader(StringIO(file.getvalue(), newline=""))
        for name in TEXTS:
            assert not back[name].startswith(FORMULA_STARTS)
            assert back[name].removeprefix("'") == lines.removeprefix("'")
        assert back["gpus"] == str(rows[0]["gpus"])
        whole = StringIO()
        write_text([rows[0] | dict.fromkeys(TEXTS, text)], whole, "json")
        assert json.loads(whole.getvalue())[0]["model"] == text


class _Tags(HTMLParser):
    """Counts elements and keeps the names of their attributes."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.seen: list[tuple[str, tuple[str, ...]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep an element."""
        self.seen.append((tag, tuple(name for name, _ in attrs)))


def tags(page: str) -> list[tuple[str, tuple[str, ...]]]:
    """Return the elements of a page in order, with the names of their attributes."""
    found = _Tags()
    found.feed(page)
    found.close()
    return found.seen


def test_pages_gain_no_element(rows: list[dict[str, Any]]) -> None:
    """A page of hostile rows has the elements of a page of plain ones, no more and no others."""
    plain = tags(sweep_page([row | dict.fromkeys(TEXTS, "plain") for row in rows]))
    assert len(plain) > 20
    for text in hostile(40):
        assert tags(sweep_page([row | dict.fromkeys(TEXTS, text) for row in rows])) == plain, text
