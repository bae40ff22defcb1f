"""Control characters are written out, everything else stays."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from layoutopt.optimizer.specs.printable import printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("llama3-8b", "llama3-8b"),
        ("Modèle 模型 α", "Modèle 模型 α"),
        ("red \x1b[31m", r"red \x1b[31m"),
        ("title \x1b]0;x\x07", r"title \x1b]0;x\x07"),
        ("c1 \x9b31m", r"c1 \x9b31m"),
        ("back\x08 del\x7f nul\x00", r"back\x08 del\x7f nul\x00"),
        ("two\nlines\r\tof", r"two\nlines\r\tof"),
        ("right \u202e left", r"right \u202e left"),
        ("half \udc9b", r"half \udc9b"),
        ("break \u2028 here", r"break \u2028 here"),
    ],
)
def test_controls_are_written_out(text: str, shown: str) -> None:
    """Escapes of ANSI and of the eighth bit, directions, half pairs, line separators."""
    assert printable(text) == shown


def test_lines_stay_where_wanted() -> None:
    """Line ends and tabs of a document, but not its carriage returns."""
    assert printable("a\n\tb\r\n", lines=True) == "a\n\tb\\r\n"


@given(st.text(st.characters(codec=None)))
def test_result_is_one_line_that_can_be_printed(text: str) -> None:
    """No text leaves a control, a line end or what no encoding can write; doing it twice changes nothing."""
    shown = printable(text)
    assert len(shown.splitlines()) <= 1
    assert not any(ord(sign) < 32 or 0x7F <= ord(sign) < 0xA0 for sign in shown)
    shown.encode()
    assert printable(shown) == shown
