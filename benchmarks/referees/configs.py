"""Frameworks that are started from files: their own classes read what we export."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from checks.agreement import Trainer
from checks.launches import BUILTIN_MODELS, builtin_launches, random_launches

from benchmarks.referees.verdicts import Tally, compare
from layoutopt.optimizer.ask.load import load_cluster
from layoutopt.optimizer.frameworks.registry import Framework

if TYPE_CHECKING:
    from checks.launches import Launch

CLUSTER = "h100x256"
INSIDE = Path(__file__).parent / "inside"


@dataclass(frozen=True, slots=True, kw_only=True)
class Referee:
    """A framework's release, and what reads its files: a script and reader in an environment, perhaps of a checkout.

    ``part`` is what of a checkout's ``commit`` is read, ``path`` where its packages are. ``models``: built-in
    ones that it has a configuration of, where it trains no others.
    """

    framework: Framework
    release: str
    environment: str
    reader: str
    script: str = "config_files.py"
    checkout: str | None = None
    commit: str = ""
    part: str = "."
    path: str = ""
    models: tuple[str, ...] = ()

    @property
    def trainer(self) -> Trainer:
        """The exporter's side."""
        return Trainer(framework=self.framework, release=self.release, kind="", file="")


REGISTERED = ("llama3-8b", "llama3-70b", "deepseek-v3", "gpt-oss-120b")
"""Built-in models that torchtitan's registry names (torchtitan/models/*/config_registry.py)."""
REFEREES = (
    Referee(framework=Framework.ACCELERATE, release="1.15", environment="accelerate", reader="accelerate"),
    Referee(framework=Framework.DEEPSPEED, release="0.19.8", environment="deepspeed", reader="deepspeed"),
    Referee(
        framework=Framework.NANOTRON,
        release="2026-04",
        environment="nanotron",
        reader="nanotron",
        checkout="nanotron",
        commit="HEAD",
        part="src",
        path="src",
    ),
    Referee(
        framework=Framework.MEGATRON_DEEPSPEED,
        release="2025-07",
        environment="deepspeed",
        reader="megatron-deepspeed",
        script="megatron_deepspeed.py",
        checkout="megatron_deepspeed",
        commit="HEAD",
    ),
    Referee(
        framework=Framework.TORCHTITAN,
        release="era A",
        environment="torchtitan",
        reader="torchtitan-toml",
        checkout="torchtitan",
        commit="v0.2.2",
        part="torchtitan",
    ),
    Referee(
        framework=Framework.TORCHTITAN,
        release="era C",
        environment="torchtitan",
        reader="torchtitan",
        script="torchtitan_configs.py",
        checkout="torchtitan",
        commit="HEAD",
        part="torchtitan",
        models=REGISTERED,
    ),
)


def question(one: Launch) -> dict[str, Any]:
    """A launch as the scripts inside read it: files, and what a launch script runs its trainer with."""
    asked = {"files": one.job.files, "world": one.layout.gpus, "layout": one.derived()}
    scripted = {"argv": one.words, "env": one.environment} if "launch.sh" in one.job.files else {}
    return asked | scripted


def findings(
    referee: Referee, python: Path, tree: Path | None, launches: list[Launch]
) -> list[dict[str, Any]]:
    """What the framework says to each launch."""
    asked = [json.dumps(question(one)) for one in launches]
    command = [str(python), str(INSIDE / referee.script), referee.reader]
    command += [str(tree / referee.path)] if tree else []
    done = subprocess.run(command, input="\n".join(asked), capture_output=True, text=True)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"error"')]
    if done.returncode or len(lines) != len(launches):
        last = (done.stderr.strip().splitlines() or ["no word"])[-1]
        return [
            {"error": f"referee: {referee.reader} does not load: {last}", "derived": {}} for _ in launches
        ]
    return lines


def judged(referee: Referee, python: Path, tree: Path | None, number: int, seed: int) -> Tally:
    """Judge random launches and the built-in models."""
    cluster, trainer = load_cluster(CLUSTER), referee.trainer
    launches = [
        *([] if referee.models else random_launches(trainer, number, seed, cluster)),
        *builtin_launches(trainer, number, seed, cluster, referee.models or tuple(BUILTIN_MODELS)),
    ]
    return compare(str(trainer), launches, findings(referee, python, tree, launches))
