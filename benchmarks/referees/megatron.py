"""Megatron-LM's parser and validation on random launches of several releases.

Needs a checkout of Megatron-LM (its parser is in no wheel); each release is read at its tag into a temporary folder.
"""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

from checks.agreement import Trainer
from checks.launches import Launch, builtin_launches, random_launches

from benchmarks.referees.environments import tree_of
from benchmarks.referees.verdicts import Tally, compare
from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.specs.loading import load_cluster

INSIDE = Path(__file__).parent / "inside" / "megatron_launches.py"
# Release, and a Transformer Engine of its months: a version that the release's own checks ask for, no older.
ENGINES = {
    "0.10": "1.13", "0.11": "2.1", "0.12": "2.2", "0.13": "2.4", "0.14": "2.7", "0.15": "2.9", "0.16": "2.11",
    "0.17": "2.13", "0.18": "2.14", "0.19": "2.16",
}  # fmt: skip
CLUSTER = "h100x256"
ROOT = Path(__file__).parents[2]
WRITERS = ROOT / "optimizer" / "interop" / "megatron"
RECORDED = ROOT / "tests" / "data" / "referees" / "megatron_flags.json"


def findings(python: Path, tree: Path, release: str, launches: list[Launch]) -> list[dict[str, Any]]:
    """What Megatron-LM says to each launch."""
    asked = [
        json.dumps({"argv": one.words, "env": one.environment, "world": one.layout.gpus}) for one in launches
    ]
    command = [str(python), str(INSIDE), str(tree), ENGINES[release]]
    done = subprocess.run(command, input="\n".join(asked), capture_output=True, text=True)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no word"])[-1]
        return [{"error": f"referee: core {release} does not load: {last}", "derived": {}} for _ in launches]
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def record(checkout: Path, python: Path, folder: Path) -> None:
    """Write the releases that know each flag which the exporter can write, for the ordinary tests."""
    known: dict[str, set[str]] = {}
    for release, engine in ENGINES.items():
        tree = tree_of(checkout, f"core_v{release}.0", "megatron", folder)
        command = [str(python), str(INSIDE), str(tree), engine, "--flags"]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        known[release] = set(json.loads(done.stdout.splitlines()[-1]))
    sources = "".join(path.read_text() for path in WRITERS.glob("write*.py"))
    before = json.loads(RECORDED.read_text())[
        "flags"
    ]  # of fields of the configuration too, which no source spells
    written = sorted({*before, *re.findall(r'"(--[a-z0-9-]+)"', sources)})
    flags = {flag: [release for release in ENGINES if flag in known[release]] for flag in written}
    origin = "NVIDIA/Megatron-LM megatron/training/arguments.py, option strings of its parser at the tags core_v*.0"
    rows = ",\n".join(f"    {json.dumps(flag)}: {json.dumps(releases)}" for flag, releases in flags.items())
    head = f'  "source": {json.dumps(origin)},\n  "releases": {json.dumps(list(ENGINES))},\n'
    RECORDED.write_text(f'{{\n{head}  "flags": {{\n{rows}\n  }}\n}}\n')


def referee(checkout: Path, python: Path, folder: Path, release: str, number: int, seed: int) -> Tally:
    """Judge random launches of a release."""
    trainer = Trainer(
        framework=Framework.MEGATRON, release=f"core {release}", kind="megatron-args", file="launch.sh"
    )
    cluster = load_cluster(CLUSTER)
    launches = [
        *random_launches(trainer, number, seed, cluster),
        *builtin_launches(trainer, number, seed, cluster),
    ]
    tree = tree_of(checkout, f"core_v{release}.0", "megatron", folder)
    return compare(release, launches, findings(python, tree, release, launches))
