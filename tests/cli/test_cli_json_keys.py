"""The keys of every command's JSON do not change: what ``json_keys.txt`` lists is printed, more may come.

Run as a program it prints the list anew: ``python tests/cli/test_cli_json_keys.py > tests/cli/json_keys.txt``.
"""

from __future__ import annotations

import json
import os
import tempfile
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from layoutopt.cli import COMMANDS, main
from layoutopt.optimizer.report.json_forms import FORMS

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).parent
SAMPLES = HERE.parent / "interop" / "samples"
PROFILES = HERE.parent / "data" / "profiles" / "cpu_dp2"
RUNS = HERE.parents[1] / "optimizer" / "evidence" / "reference_runs.csv"
KEYS = HERE / "json_keys.txt"

Q = ("llama3-8b", "h100x8", "--batch", "64")
LAUNCH = ("--from", str(SAMPLES / "megatron_train.sh"), "--cluster", "h100-256")
RUNNING = (*Q, "--tokens", "1e11", "--gpu-hour-cost", "2", "--days", "100", "--sizes", "8,16")
PRINTED: dict[str, tuple[str, ...]] = {
    "solve": ("solve", *Q, "--robust", "--top", "3", "-o", "plan.json"),
    "solve infeasible": ("solve", "llama3-405b", "h100x8"),
    "solve space": ("solve", *Q, "--space"),
    "evaluate": ("evaluate", *Q, "--layout", "tp=3,zero=1"),
    "evaluate launch": ("evaluate", *LAUNCH),
    "explain": ("explain", *Q, "--layout", "tp=1,zero=0", "--why-not", "tp=8"),
    "explain slow": ("explain", *Q, "--layout", "tp=8,zero=1"),
    "explain died": ("explain", *LAUNCH, "--from", str(SAMPLES / "oom.txt"), "--no-compare"),
    "sweep": ("sweep", "llama3-8b", "h100x8", "--batch", "64", "--store", "store.db", "--jobs", "1"),
    "plan": ("plan", *RUNNING, "--largest-batch", "--marginal"),
    "plan of several": (
        "plan",
        "llama3-8b",
        "h100,a100",
        "--days",
        "60",
        "--tokens",
        "1e11",
        "--price-kwh",
        "0.1",
    ),
    "simulate": ("simulate", "plan.json"),
    "verify": ("verify", "plan.json"),
    "export": ("export", "plan.json", "--to", "megatron-lm"),
    "published": ("published", "--time-limit", "1"),
    "validate": ("validate", str(RUNS), "--worst", "1"),
    "next-runs": ("next-runs", *Q, "--top", "3", "--budget", "2"),
    "pareto": ("pareto", *Q, "--of", "time,memory", "--points", "3"),
    "topology": ("topology", "show", "h100x64"),
    "catalog": ("catalog",),
    "model": ("model", "show", "llama3-8b"),
    "cluster": ("cluster", "show", "h100x8"),
    "rules": ("rules",),
    "schema": ("schema", "layout"),
    "diagnose": ("diagnose", "llama3-8b", "--gpu", "h100", "--gpus", "256", "--tokens-per-s", "2.5M"),
    "solve for profiles": ("solve", "llama2-7b", "h100x2", "--batch", "8", "-o", "two.json"),
    "diagnose profiles": ("diagnose", "two.json", str(PROFILES)),
    "import job": ("import", str(SAMPLES / "megatron_train.sh")),
    "import nodes": ("import", str(SAMPLES / "slurm_env.txt")),
    "import oom": ("import", str(SAMPLES / "oom.txt")),
    "import nccl": ("import", str(SAMPLES / "nccl_all_reduce.txt")),
    "import calibration": ("import", str(SAMPLES / "nccl_all_reduce.txt"), "--cluster", "h100x64"),
}
"""One call for every kind of answer, in an order in which later ones find earlier ones' files."""

UNTESTED = {"calibrate"}
"""Commands whose JSON is not read here: its own test holds the keys of a calibration."""

BY_NAME = frozenset(
    ("factors", "valid", "kinds", "recomputed_kinds", "removed_by_rule", "components_bytes", "predicted_s_by_vp", "by",
     "families", "by_kind", "by_count", "by_framework", "inputs", "reasons", "files", "calibration", "fixed", "properties",
     "$defs", "columns")
)  # fmt: skip
"""Mappings whose keys are data."""


def key_paths(plain: Any, path: str = "") -> Iterator[str]:
    """Yield every key with the keys that lead to it; entries of lists and of mappings by name count as one."""
    if isinstance(plain, list):
        for item in plain:
            yield from key_paths(item, f"{path}[]")
    elif isinstance(plain, dict):
        for key, item in plain.items():
            place = f"{path}.{key}".lstrip(".")
            yield place
            if key not in BY_NAME:
                yield from key_paths(item, place)


def printed_keys() -> dict[str, list[str]]:
    """Run every call in an empty folder and return the sorted keys of its answer; what it said instead if it has none."""
    found, back = {}, Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            for name, words in PRINTED.items():
                told = CliRunner().invoke(main, [*words, "--json"])
                try:
                    found[name] = sorted(set(key_paths(json.loads(told.stdout))))
                except json.JSONDecodeError:
                    found[name] = [f"no JSON: {told.stderr[-500:]} {told.exception!r}"]
        finally:
            os.chdir(back)
    return found


@pytest.fixture(scope="module")
def printed() -> dict[str, list[str]]:
    """Return the keys of this version."""
    return printed_keys()


@pytest.mark.parametrize("name", PRINTED)
def test_no_key_is_lost(name: str, printed: dict[str, list[str]]) -> None:
    """Every key that was printed once still is."""
    listed = {
        line.split(": ", 1)[1] for line in KEYS.read_text().splitlines() if line.startswith(f"{name}: ")
    }
    assert listed, f"{KEYS.name} lists nothing of {name}"
    assert sorted(listed - set(printed[name])) == [], printed[name][:1]


def test_every_command_is_listed() -> None:
    """A command with JSON has a call here."""
    assert {words[0] for words in PRINTED.values()} == set(COMMANDS) - UNTESTED


@pytest.mark.parametrize("name", FORMS)
def test_forms_name_records_and_their_fields(name: str) -> None:
    """A form that names no class, or leaves out what is no field, would be heeded by nobody."""
    module, kind = name.split(":")
    record = getattr(import_module(f"layoutopt.optimizer.{module}"), kind)
    fields = set(record.__dataclass_fields__)
    form = FORMS[name]
    assert set(form.without) <= fields and set(form.renamed) <= fields


if __name__ == "__main__":
    print("\n".join(f"{name}: {key}" for name, keys in printed_keys().items() for key in keys))
