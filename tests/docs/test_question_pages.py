"""Every command of the tutorial, of frequent questions and of docs/questions runs, with the files that the page shows."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from layoutopt.cli import COMMANDS, main

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
QUESTIONS = sorted((ROOT / "docs" / "questions").glob("*.md"))
PAGES = [ROOT / "docs" / "tutorial.md", ROOT / "docs" / "faq.md", *QUESTIONS]
BLOCK = re.compile(
    r"(?:<!-- (?P<kind>file|exit):? (?P<what>[^ ]+) -->\n)?```(?P<language>\w*)\n(?P<body>.*?)\n```",
    re.DOTALL,
)


def blocks(page: Path) -> Iterator[tuple[str, str, str]]:
    """Yield (file name, content, "") for files and ("", command, exit code) for commands, in the order of the page."""
    for match in BLOCK.finditer(page.read_text(encoding="utf-8")):
        if match["kind"] == "file":
            yield match["what"], match["body"] + "\n", ""
        elif match["language"] == "sh":
            for line in match["body"].splitlines():
                yield "", line, match["what"] or "0"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_of_the_page_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each ends with the exit code that the page expects, 0 unless it says otherwise, and answers something."""
    monkeypatch.chdir(tmp_path)
    ran = 0
    for name, content, code in blocks(page):
        if name:
            (tmp_path / name).write_text(content, encoding="utf-8")
            continue
        program, *words = shlex.split(content)
        assert program == "layoutopt"
        done = CliRunner().invoke(main, words)
        assert done.exit_code == int(code), f"{content}\n{done.stderr}"
        assert done.stdout.strip() or done.stderr.strip(), content
        ran += 1
    assert ran


def test_pages_name_commands_that_exist() -> None:
    """What the text mentions in passing is a command, too."""
    for page in PAGES:
        for mentioned in re.findall(r"`layoutopt ([a-z-]+)", page.read_text(encoding="utf-8")):
            assert mentioned in COMMANDS, f"{page.name}: {mentioned}"


def test_every_question_has_a_page() -> None:
    """The five questions that users ask first."""
    asked = {"why-out-of-memory", "which-layout", "how-many-gpus", "calibrate-to-my-cluster", "add-a-gpu"}
    assert asked <= {page.stem for page in PAGES}
