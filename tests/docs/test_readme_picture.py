"""The README's picture is what the command beside it draws, from a sweep in which more GPUs never take longer."""

from __future__ import annotations

import re
import shlex
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from click.testing import CliRunner

from layoutopt.cli import main
from layoutopt.optimizer.sweep.nested import best_within
from layoutopt.optimizer.sweep.store import SweepStore

if TYPE_CHECKING:
    import pytest

ROOT = Path(__file__).parents[2]
SVG = "{http://www.w3.org/2000/svg}"


def shape(picture: Path) -> tuple[str, int]:
    """Return the title of a picture and its number of dots, one a point; their places move with the constants."""
    root = ElementTree.fromstring(picture.read_text(encoding="utf-8"))
    return root.findtext(f"{SVG}title") or "", len(root.findall(f".//{SVG}circle"))


def test_the_command_draws_the_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run word for word in an empty folder it writes the file that the README shows, with as many dots.

    Its step times never rise with more GPUs of one network where GPUs may idle at the far end.
    """
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = re.search(
        r"!\[[^]]*\]\((?P<file>[^)]+)\)\n\n<!-- picture command -->\n```\n(?P<command>.*)\n```", text
    )
    assert shown is not None
    program, *words = shlex.split(shown["command"])
    assert program == "layoutopt"
    assert words[-2:] == ["--plot", shown["file"]]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs").mkdir()
    done = CliRunner().invoke(main, [*words, "--jobs", "1", "-q"])
    assert done.exit_code == 0, done.output
    title, dots = shape(tmp_path / shown["file"])
    assert (title, dots) == shape(ROOT / shown["file"])
    assert title
    assert dots == 2 * 3 * 7  # step time and MFU of every point
    with SweepStore(tmp_path / "sweep.db") as store:
        rows = sorted(best_within(store.rows()), key=lambda row: (row["network_gbit_per_s"], row["gpus"]))
    for _, members in groupby(rows, key=lambda row: row["network_gbit_per_s"]):
        times = [row["nested_step_time_s"] for row in members]
        assert len(times) == 7
        assert times == sorted(times, reverse=True)
