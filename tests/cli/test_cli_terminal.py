"""Shell completion, colours, quiet and verbose: how the command line behaves in a terminal and in a script."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from layoutopt.optimizer.specs.loading import cluster_names, model_names

if TYPE_CHECKING:
    from collections.abc import Callable

    from click.testing import Result

SMALL = ("llama3-8b", "h100x8", "--batch", "64")
ESCAPE = "\x1b["


def complete(line: str) -> list[str]:
    """Ask for completions as bash does: the words so far, the last one incomplete."""
    words = line.split(" ")
    env = {
        **os.environ,
        "_LAYOUTOPT_COMPLETE": "bash_complete",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(words) - 1),
    }
    done = subprocess.run(
        [str(Path(sys.executable).with_name("layoutopt"))],
        capture_output=True,
        text=True,
        env=env,
        check=False,
    )
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(shell: str) -> None:
    """click's script for each shell calls this program."""
    env = {**os.environ, "_LAYOUTOPT_COMPLETE": f"{shell}_source"}
    program = str(Path(sys.executable).with_name("layoutopt"))
    done = subprocess.run([program], capture_output=True, text=True, env=env, check=False)
    assert "_LAYOUTOPT_COMPLETE" in done.stdout


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("layoutopt ev", {"plain,evaluate"}),
        ("layoutopt solve llama3-8", {"plain,llama3-8b"}),
        ("layoutopt solve llama3-8b h100-2", {"plain,h100-256"}),
        ("layoutopt solve --frame", {"plain,--framework"}),
        ("layoutopt solve --framework nano", {"plain,nanotron"}),
        ("layoutopt export plan.json --to torch", {"plain,torchtitan"}),
        ("layoutopt explain --from train.sh --cluster h800", {"plain,h800-2048"}),
        ("layoutopt solve mymodel.y", {"file,mymodel.y"}),
        ("layoutopt nosuch --x", set()),
    ],
)
def test_completions(line: str, offered: set[str]) -> None:
    """Commands, options, built-in names and words of options are offered; else files; nothing ever complains."""
    assert set(complete(line)) == offered


def test_every_built_in_name_is_offered() -> None:
    """An empty word lists all models, and for the second argument all clusters."""
    assert set(complete("layoutopt solve ")) == {f"plain,{name}" for name in model_names()}
    assert set(complete("layoutopt solve llama3-8b ")) == {f"plain,{name}" for name in cluster_names()}


def coloured(**changes: str) -> str:
    """Return what a terminal that shows colours gets."""
    words = ["evaluate", *SMALL, "--layout", "tp=2,zero=1"]
    script = f"from layoutopt.cli import main; main({words!r})"
    env = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR")}
    env |= {"FORCE_COLOR": "1", "TERM": "xterm-256color", **changes}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=env, check=False
    )
    return done.stdout


def test_no_color_is_followed() -> None:
    """Colours where they are wanted, none with NO_COLOR (https://no-color.org), none in a pipe."""
    assert f"{ESCAPE}1;3" in coloured()
    assert "[1;32m" not in coloured(NO_COLOR="1") and "[32m" not in coloured(NO_COLOR="1")
    assert ESCAPE not in coloured(FORCE_COLOR="")


@pytest.mark.parametrize(
    "words",
    [
        ("solve", *SMALL),
        ("evaluate", *SMALL, "--layout", "tp=2,zero=1"),
        ("explain", *SMALL, "--layout", "tp=2,zero=1"),
        ("topology", "show", "h100x8"),
        ("catalog", "gpus"),
    ],
)
def test_quiet_leaves_the_answer_alone(words: tuple[str, ...], run: Callable[..., Result]) -> None:
    """``--quiet`` takes away what goes to stderr; JSON is the same with it, but for the time it took."""
    quiet = run(*words, "--quiet")
    assert quiet.stderr == "" and quiet.stdout
    loud, silent = (run(*words, "--json", *extra) for extra in ((), ("--quiet",)))
    assert without_times(loud.stdout) == without_times(silent.stdout)


def without_times(text: str) -> object:
    """Read JSON and drop how long solving took."""

    def strip(plain: object) -> object:
        if isinstance(plain, dict):
            return {key: strip(value) for key, value in plain.items() if key != "solve_time_s"}
        return [strip(item) for item in plain] if isinstance(plain, list) else plain

    return strip(json.loads(text))


def test_explanation_keys(run: Callable[..., Result]) -> None:
    """The keys of ``explain --json`` do not change."""
    words = ("explain", *SMALL, "--layout", "tp=1,zero=0", "--why-not", "tp=8", "--json")
    plain = json.loads(run(*words).stdout)
    assert set(plain) == {
        "verdict", "reasons", "broken", "warnings", "layout", "estimate", "advice", "fullest_rank", "remedies", "gap",
        "optimum", "why_not", "out_of_memory", "collectives",
    }  # fmt: skip
    assert set(plain["fullest_rank"]) == {"rank", "needed_bytes", "usable_bytes", "parts"}
    assert set(plain["fullest_rank"]["parts"][0]) == {"name", "bytes", "divided_by"}
    assert set(plain["remedies"][0]) == {
        "axes", "changes", "step_time_s", "slower", "gpus", "note", "layout", "estimate",
    }  # fmt: skip
    assert set(plain["why_not"][0]) == {"fixed", "slower", "why", "plan", "carried_by", "claim"}
    slow = json.loads(run("explain", *SMALL, "--layout", "tp=8,zero=1", "--json").stdout)
    assert set(slow["gap"]) == {"step_time_s", "best_s", "slower", "steps", "carried_by", "claim"}
    assert set(slow["gap"]["steps"][0]) == {"axes", "changes", "step_time_s", "saved_s", "why", "layout"}
