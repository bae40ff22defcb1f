"""What a launch of Megatron-Bridge names: its recipe, options of ``run_recipe.py``, and keys of its configuration."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

from checks.agreement import Trainer
from checks.launches import BUILTIN_MODELS, builtin_launches, random_launches
from layoutopt.optimizer.ask.load import load_cluster
from layoutopt.optimizer.frameworks.registry import Framework

if TYPE_CHECKING:
    from checks.launches import Launch


def keys_of(launch: Launch) -> set[str]:
    """Options, keys and the recipe's name."""
    lines = launch.job.files["launch.sh"].splitlines()
    words = shlex.split("\n".join(lines).replace("\\\n", " "), comments=True)
    words = words[words.index("scripts/training/run_recipe.py") + 1 :]
    keys = {word.split("=", 1)[0] for word in words if re.match(r"[a-z_]+(\.[a-z_0-9]+)*=", word)}
    options = {word for word in words if word.startswith("-") and not re.fullmatch(r"-\d+", word)}
    return {f"recipe {words[words.index('--recipe') + 1]}", *keys, *options}


def launches(release: str, number: int, seed: int) -> list[Launch]:
    """Valid launches of random layouts and of every built-in model."""
    trainer = Trainer(
        framework=Framework.MEGATRON_BRIDGE, release=release, kind="bridge-command", file="launch.sh"
    )
    cluster = load_cluster("h100x256")
    made = [
        *random_launches(trainer, number, seed, cluster),
        *builtin_launches(trainer, len(BUILTIN_MODELS), seed, cluster),
    ]
    return [launch for launch in made if not launch.broken]
