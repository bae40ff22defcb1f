"""Names that steer a terminal reach it written out, on every way there; files are written where they lead."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from click.testing import Result

EVIL = "x\x1b]0;owned\x07\x1b[31m\x9b2J\u202e"
SMALL = ("llama3-8b", "h100x8", "--batch", "64")
ACTED_ON = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def evil_files(folder: Path) -> dict[str, Path]:
    """Write files of other tools with such names inside."""
    config = {
        "architectures": [EVIL], "model_type": EVIL, "hidden_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 2, "intermediate_size": 128, "vocab_size": 100,
    }  # fmt: skip
    texts = {
        "config.json": json.dumps(config),
        "job.env": f"SLURM_JOB_NODELIST={EVIL}\nSLURM_JOB_NUM_NODES=2\nSLURM_NTASKS_PER_NODE=8\n",
        "runs.csv": f"id,model,gpu\n{EVIL},{EVIL},{EVIL}\n",
        "broken.yaml": f"architecture:\n  {json.dumps(EVIL)}: 3\n",
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
    return {name: folder / name for name in texts}


def clean(result: Result) -> bool:
    """Tell whether neither stream holds anything that a terminal acts on."""
    return not ACTED_ON.search(result.stdout) and not ACTED_ON.search(result.stderr)


@pytest.mark.parametrize(
    "words",
    [
        ("import", "config.json"),
        ("import", "job.env"),
        ("import", "broken.yaml"),
        ("validate", "runs.csv"),
        ("solve", "config.json", "h100x8"),
        ("solve", "broken.yaml", "h100x8"),
        ("solve", EVIL, "h100x8"),
        ("solve", *SMALL, f"--{EVIL}"),
        ("evaluate", *SMALL, "--layout", f"tp={EVIL}"),
        ("verify", EVIL),
        ("sweep", "export", EVIL),
        (EVIL,),
    ],
)
def test_errors_and_notes_show_escapes(
    words: tuple[str, ...], run: Callable[..., Result], tmp_path: Path
) -> None:
    """Hugging Face configurations, SLURM variables, CSV cells, keys, arguments, names of files and stores."""
    files = evil_files(tmp_path)
    result = run(*[str(files[word]) if word in files else word for word in words])
    assert clean(result), (result.stdout, result.stderr)
    assert result.exit_code in (0, 2)


def test_tables_show_escapes(run: Callable[..., Result], tmp_path: Path) -> None:
    """A store's name in the table of a sweep."""
    store = tmp_path / f"s{EVIL}.db"
    result = run("sweep", *SMALL, "--store", str(store), "--jobs", "1", "-v")
    assert r"\x1b]0;owned" in result.stdout and clean(result)


def test_colours_stay() -> None:
    """The filter takes the text's escapes, not those of the tables' own colours."""
    from rich.console import Console
    from rich.text import Text

    from layoutopt.optimizer.report.tables.console import Printable

    target = Console(force_terminal=True, color_system="standard", no_color=False, width=80)
    with target.capture() as captured:
        target.print(Printable(Text(f"bad {EVIL}", style="red")))
    assert captured.get().startswith("\x1b[31mbad") and r"\x1b]0;owned" in captured.get()
    assert "\x1b]0" not in captured.get()


def shell(*words: str, out: Path | None = None) -> subprocess.CompletedProcess[bytes]:
    """Run the command line in a process of its own."""
    script = f"from layoutopt.cli import main; main({list(words)!r})"
    env = {**os.environ, "NO_COLOR": "1"}
    if out is None:
        return subprocess.run([sys.executable, "-c", script], capture_output=True, env=env, check=False)
    with out.open("wb") as stream:
        return subprocess.run(
            [sys.executable, "-c", script], stdout=stream, stderr=subprocess.PIPE, env=env, check=False
        )


def test_answers_go_into_pipes_devices_and_links(tmp_path: Path) -> None:
    """``-o /dev/null`` leaves the device, ``-o /dev/stdout`` prints the plan, a link stays a link."""
    assert shell("solve", *SMALL, "-o", "/dev/null", "-q").returncode == 0
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)
    printed = shell("solve", *SMALL, "-o", "/dev/stdout", "-q").stdout
    assert b'"status": "optimal"' in printed
    target = tmp_path / "real.json"
    target.write_text("old")
    target.chmod(0o600)
    link = tmp_path / "link.json"
    link.symlink_to(target)
    assert shell("solve", *SMALL, "-o", str(link), "-q").returncode == 0
    assert link.is_symlink() and json.loads(target.read_text())["status"] == "optimal"
    assert stat.S_IMODE(target.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("option", "name"), [("-o", "plan.json"), ("--report", "page.html"), ("--plot", "chart.svg")]
)
def test_read_only_files_are_refused_before_the_search(
    option: str, name: str, run: Callable[..., Result], tmp_path: Path
) -> None:
    """One line, exit 2, the file as it was."""
    file = tmp_path / name
    file.write_text("old")
    file.chmod(0o444)
    result = run("solve", *SMALL, option, str(file))
    assert result.exit_code == 2 and result.stdout == ""
    assert result.stderr.endswith(": is read-only (a file that you may write to)\n")
    assert result.stderr.count("\n") == 1 and file.read_text() == "old"
