"""Every option that writes a file goes through the one writer: links, pipes, devices and folders are what they are."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from click.testing import Result

QUESTION = ("llama3-8b", "h100x8", "--batch", "64", "-q")
WRITERS = {
    "solve -o": ("solve", *QUESTION, "-o", "FILE"),
    "solve --report": ("solve", *QUESTION, "--report", "FILE"),
    "solve --plot": ("solve", *QUESTION, "--plot", "FILE"),
    "simulate --trace": ("simulate", "PLAN", "-q", "--trace", "FILE"),
    "sweep export -o": ("sweep", "export", "--store", "STORE", "-o", "FILE", "--format", "csv"),
    "topology --graph": ("topology", "show", "h100x8", "--graph", "FILE"),
}
ENDINGS = {"solve --report": ".html", "solve --plot": ".svg"}
START = {
    "solve -o": b"{",
    "solve --report": b"<!",
    "solve --plot": b"<",
    "simulate --trace": b"{",
    "sweep export -o": b"key,",
    "topology --graph": b"<graphml",
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A plan and a sweep's store."""
    from click.testing import CliRunner

    from layoutopt.cli import main

    folder = tmp_path_factory.mktemp("made")
    plan, store = folder / "plan.json", folder / "s.db"
    for words in (
        ["solve", *QUESTION, "-o", str(plan)],
        ["sweep", "llama3-8b", "h100x8", "--batch", "64", "--store", str(store), "-q"],
    ):
        assert CliRunner().invoke(main, words).exit_code == 0
    return {"PLAN": str(plan), "STORE": str(store)}


def words_for(name: str, file: Path, made: dict[str, str]) -> list[str]:
    """Return a command's words with its files in place."""
    places = {**made, "FILE": str(file)}
    return [places.get(word, word) for word in WRITERS[name]]


@pytest.mark.parametrize("name", WRITERS)
def test_links_and_pipes_are_written_through(
    name: str, run: Callable[..., Result], made: dict[str, str], tmp_path: Path
) -> None:
    """A link stays one and its target is new; the reader of a pipe gets the whole file, and the pipe stays."""
    suffix = ENDINGS.get(name, ".x")
    link, target, pipe = tmp_path / f"link{suffix}", tmp_path / "target", tmp_path / f"pipe{suffix}"
    target.write_text("old")
    link.symlink_to(target)
    done = run(*words_for(name, link, made))
    assert done.exit_code == 0, done.stderr
    assert link.is_symlink()
    assert target.read_bytes().startswith(START[name])
    os.mkfifo(pipe)
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.append(pipe.read_bytes()), daemon=True)
    reader.start()
    done = run(*words_for(name, pipe, made))
    reader.join(timeout=60)
    assert done.exit_code == 0, done.stderr
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert got and got[0].startswith(START[name])
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted((link.name, "target", pipe.name))


@pytest.mark.parametrize("name", WRITERS)
def test_what_cannot_be_written_is_one_line(
    name: str, run: Callable[..., Result], made: dict[str, str], tmp_path: Path
) -> None:
    """A folder that is not there, one in a file's place, and links in a circle: exit 2, before any work."""
    suffix = ENDINGS.get(name, ".x")
    circle, other, folder = (tmp_path / f"{word}{suffix}" for word in ("circle", "other", "folder"))
    circle.symlink_to(other)
    other.symlink_to(circle)
    folder.mkdir()
    for file in (tmp_path / "no" / f"x{suffix}", folder, circle):
        done = run(*words_for(name, file, made))
        assert done.exit_code == 2, file
        assert not done.stdout
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        assert "Traceback" not in done.stderr
        assert any(file.name in line for line in lines)


def test_devices_are_written(run: Callable[..., Result], made: dict[str, str]) -> None:
    """The null device takes every file that needs no ending and stays one; a full one is said."""
    for name in WRITERS.keys() - ENDINGS.keys():
        assert run(*words_for(name, Path(os.devnull), made)).exit_code == 0, name
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)
    if not os.path.exists("/dev/full"):
        return
    for name in ("solve -o", "simulate --trace", "sweep export -o"):
        done = run(*words_for(name, Path("/dev/full"), made))
        assert done.exit_code == 2
        assert "No space left" in done.stderr


@pytest.mark.skipif(not os.path.exists("/dev/stdin"), reason="no /dev/stdin here")
def test_standard_input_by_its_name() -> None:
    """``cat model.yaml | layoutopt solve /dev/stdin h100x8``."""
    from importlib.resources import files

    text = (files("layoutopt") / "models" / "llama3-8b.yaml").read_text()
    words = ["solve", "/dev/stdin", "h100x8", "--batch", "64", "-q", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "layoutopt", *words], input=text, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert '"status": "optimal"' in done.stdout


def commands(command: click.Command, *names: str) -> Iterator[tuple[str, click.Command]]:
    """Yield every command that is no group, by its words."""
    if isinstance(command, click.Group):
        ctx = click.Context(command)
        for name in command.list_commands(ctx):
            found = command.get_command(ctx, name)
            assert found is not None
            yield from commands(found, *names, *([name] if name else []))
    else:
        yield " ".join(names), command


def test_every_option_that_writes_is_checked() -> None:
    """A path that must be a file is read, or of the type that keeps inputs."""
    from layoutopt.cli import main
    from layoutopt.optimizer.report.commands.paths import WrittenFile

    files = {
        (words, param.opts[-1]): isinstance(param.type, WrittenFile)
        for words, command in commands(main)
        for param in command.params
        if isinstance(param.type, click.Path) and not param.type.dir_okay
    }
    assert sum(files.values()) >= 15
    assert [name for name, written in files.items() if not written] == [("sweep export", "--store")]


@pytest.mark.parametrize(
    ("words", "refused"),
    [
        ("diagnose A B --report B", "PROFILE"),
        ("diagnose A B --trace LINK", "PROFILE"),
        ("diagnose A B --calibrate A", "PLAN"),
        ("diagnose A FOLDER --trace B", "PROFILE"),
        ("diagnose A TRACES --trace OUT", "PROFILE"),
        ("diagnose A TRACES --report IN", "PROFILE"),
        ("diagnose A TRACES --calibrate FAR", "PROFILE"),
        ("diagnose A TRACES --trace INSIDE", "PROFILE"),
        ("calibrate --cluster h100x8 --profile TRACES --plan B -o OUT", "--profile"),
        ("diagnose A B --calibrate NEW --trace NEW", "--calibrate writes too"),
        ("solve A B -o B", "CLUSTER"),
        ("solve A B --report NEW --plot NEW", "--report writes too"),
        ("simulate A --trace HARD", "PLAN"),
        ("plan A B -o A", "MODEL"),
        ("calibrate A --cluster B -o B", "--cluster"),
        ("calibrate --cluster h100x8 --profile A --plan B -o B", "--plan"),
        ("validate A --assume B --plot B", "--assume"),
        ("topology show A --graph A", "CLUSTER"),
        ("sweep export --store A -o A --format csv", "--store"),
        ("sweep A h100x8 --store A", "MODEL"),
        ("cluster show A -o A", "CLUSTER"),
    ],
)
def test_inputs_are_never_written_over(
    words: str, refused: str, run: Callable[..., Result], tmp_path: Path
) -> None:
    """One line, exit 2, before any work: by the path, a link, a second name or a folder."""
    places = {name: tmp_path / f"{name.lower()}.json" for name in ("A", "B", "LINK", "HARD", "NEW")}
    places["FOLDER"] = tmp_path
    places["A"].write_text("first")
    places["B"].write_text("second")
    places["LINK"].symlink_to(places["B"])
    places["HARD"].hardlink_to(places["A"])
    traces, far = tmp_path / "traces", tmp_path / "far"
    traces.mkdir()
    far.mkdir()
    places |= {"TRACES": traces, "IN": traces / "rank0.json", "INSIDE": traces / "new.json"}
    places |= {"OUT": far / "out.yaml", "FAR": far / "rank1.json"}
    places["IN"].write_text("third")
    places["FAR"].write_text("fourth")
    places["OUT"].symlink_to(places["IN"])
    (traces / "rank1.json").symlink_to(places["FAR"])
    done = run(*(str(places.get(word, word)) for word in words.split()))
    assert done.exit_code == 2 and len(done.stderr.splitlines()) == 1
    assert refused in done.stderr and ("writes too" in done.stderr or "is read as" in done.stderr)
    assert places["A"].read_text() == "first" and places["B"].read_text() == "second"
    assert places["IN"].read_text() == "third" and places["FAR"].read_text() == "fourth"
    assert not places["NEW"].exists() and not places["INSIDE"].exists()


def test_an_export_keeps_its_plan(run: Callable[..., Result], made: dict[str, str], tmp_path: Path) -> None:
    """A folder's files have names of their own: none of them may be the plan."""
    folder = tmp_path / "out"
    done = run("export", made["PLAN"], "--to", "megatron", "-o", str(folder))
    assert done.exit_code == 0, done.stderr
    name = sorted(file.name for file in folder.iterdir())[0]
    plan = folder / name
    plan.write_bytes(Path(made["PLAN"]).read_bytes())
    done = run("export", str(plan), "--to", "megatron", "-o", str(folder))
    assert done.exit_code == 2 and "is read as PLAN" in done.stderr
    assert plan.read_bytes() == Path(made["PLAN"]).read_bytes()
