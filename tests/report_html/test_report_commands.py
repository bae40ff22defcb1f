"""``--report`` and ``--plot``: files appear whole, errors come before any work, the answer stays the same."""

from __future__ import annotations

import sys
from importlib import resources
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from layoutopt.cli import main
from layoutopt.optimizer.report.html import raster

if TYPE_CHECKING:
    from pathlib import Path

    from click.testing import Result

SMALL = ["solve", "llama3-8b", "h100x16", "-q"]


def run(*words: str) -> Result:
    """Run the command line."""
    return CliRunner().invoke(main, list(words))


def test_solve_writes_page_and_picture(tmp_path: Path) -> None:
    """Both files are written, nothing else is left behind, and stdout is what it is without them."""
    page, picture = tmp_path / "a.html", tmp_path / "a.svg"
    done = run(*SMALL, "--json", "--report", str(page), "--plot", str(picture))
    assert done.exit_code == 0
    assert done.stdout.startswith("{")
    assert page.read_text("utf-8").startswith("<!DOCTYPE html>")
    assert picture.read_text("utf-8").startswith("<svg")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.html", "a.svg"]


def test_plan_and_sweep_write_theirs(tmp_path: Path) -> None:
    """The other commands write a page and a picture too; answers to extra questions are on the page."""
    page, picture = tmp_path / "p.html", tmp_path / "p.svg"
    done = run(
        "plan", "llama3-8b", "h100x16", "--tokens", "1T", "-q", "--sizes", "8:32:x2",
        "--report", str(page), "--plot", str(picture),
    )  # fmt: skip
    assert done.exit_code == 0
    assert "Days by cluster size" in page.read_text("utf-8")
    assert "days expected" in picture.read_text("utf-8")
    done = run(
        "sweep", "llama3-8b", "h100", "--gpus", "8:32:x2", "-j", "1", "-q", "--store", str(tmp_path / "s.db"),
        "--gpu-hour-cost", "2", "--report", str(page), "--plot", str(picture),
    )  # fmt: skip
    assert done.exit_code == 0
    assert "Cost of a trillion tokens" in page.read_text("utf-8")
    assert "step time and MFU" in picture.read_text("utf-8")


def test_infeasible_writes_a_page_that_says_why(tmp_path: Path) -> None:
    """Without a layout the page explains; the picture is left out with a note."""
    page, picture = tmp_path / "a.html", tmp_path / "a.svg"
    done = run("solve", "llama3-405b", "h100x8", "--report", str(page), "--plot", str(picture))
    assert done.exit_code == 3
    assert "Why nothing fits" in page.read_text("utf-8")
    assert not picture.exists()
    assert "no layout to draw" in done.stderr


@pytest.mark.parametrize(
    ("option", "name", "words"),
    [
        ("--report", "a.pdf", "a name ending in .html or .htm"),  # a page is HTML
        ("--plot", "a.jpg", "a name ending in .svg or .png"),  # no such picture
        ("--plot", "a", "a name ending in .svg or .png"),  # no ending at all
        ("--report", "missing/a.html", "a file in a folder that exists"),  # nowhere to write
    ],
)
def test_bad_names_are_refused_before_any_work(tmp_path: Path, option: str, name: str, words: str) -> None:
    """One line names the option and what would be valid; nothing is solved or written."""
    done = run("solve", "no-such-model", "h100x8", option, str(tmp_path / name))
    assert done.exit_code == 2
    assert len(done.stderr.splitlines()) == 1
    assert option in done.stderr
    assert words in done.stderr


def test_missing_plotly_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the extra the line names it, and a picture needs none of it."""
    for name in [name for name in sys.modules if name.split(".")[0] == "plotly"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "plotly", None)
    done = run(*SMALL, "--report", str(tmp_path / "a.html"))
    assert done.exit_code == 2
    assert done.stderr == "--report: needs plotly, which is not installed (pip install plotly)\n"
    assert run(*SMALL, "--plot", str(tmp_path / "a.svg")).exit_code == 0


def test_png_without_renderer_is_refused_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where nothing draws PNG, the line says that SVG works."""
    monkeypatch.setattr(raster, "find_renderer", lambda: None)
    done = run("solve", "no-such-model", "h100x8", "--plot", str(tmp_path / "a.png"))
    assert done.exit_code == 2
    assert done.stderr.startswith("--plot: PNG needs chromium or kaleido")
    assert ".svg" in done.stderr


def test_old_file_survives_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A picture that can't be drawn leaves the file of before as it was; the answer is printed all the same."""
    picture = tmp_path / "a.png"
    picture.write_bytes(b"old")
    monkeypatch.setattr(raster, "find_renderer", lambda: "/bin/true")
    done = run(*SMALL, "--plot", str(picture))
    assert done.exit_code == 2
    assert "optimal" in done.stdout
    assert "could not draw the PNG" in done.stderr
    assert picture.read_bytes() == b"old"


def test_names_from_files_stay_texts(tmp_path: Path) -> None:
    """A model whose name is markup shows as written."""
    model = tmp_path / "model.yaml"
    source = resources.files("layoutopt.models").joinpath("llama3-8b.yaml").read_text("utf-8")
    name = "<script>alert(1)</script></script>"
    lines = [f"name: '{name}'" if line.startswith("name:") else line for line in source.splitlines()]
    model.write_text("\n".join(lines), encoding="utf-8")
    page = tmp_path / "a.html"
    done = run("solve", str(model), "h100x16", "-q", "--report", str(page), "--plot", str(tmp_path / "a.svg"))
    assert done.exit_code == 0, done.stderr
    for written in (page, tmp_path / "a.svg"):
        assert "<script>alert" not in written.read_text("utf-8")
        assert "&lt;script&gt;alert(1)" in written.read_text("utf-8")
