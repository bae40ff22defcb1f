"""Megatron-LM's own models on the meta device: do the ranks of exported launches hold the parameters that we count?

Needs checkouts of Megatron-LM and of Transformer Engine, whose classes the models are made of.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from checks.agreement import Trainer, workload_of
from checks.launches import BUILTIN_MODELS, builtin_launches, random_launches

from benchmarks.referees.environments import tree_of
from benchmarks.referees.megatron import CLUSTER, ENGINES
from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.specs.canonical import to_plain
from layoutopt.optimizer.specs.loading import load_cluster

if TYPE_CHECKING:
    from collections.abc import Iterator

    from checks.launches import Launch

INSIDE = Path(__file__).parent / "inside" / "megatron_models.py"
RECORDED = Path(__file__).parents[2] / "tests" / "data" / "referees" / "megatron_parameters.json"
RELEASES = {"0.16": 12, "0.19": 24}
"""Releases that build models by ``gpt_builders.py``, and how many random layouts each is asked."""


def plans(release: str, number: int, seed: int = 7) -> Iterator[Launch]:
    """Valid launches of random layouts, and of every built-in model."""
    trainer = Trainer(
        framework=Framework.MEGATRON, release=f"core {release}", kind="megatron-args", file="launch.sh"
    )
    cluster = load_cluster(CLUSTER)
    for one in (
        *random_launches(trainer, number, seed, cluster),
        *builtin_launches(trainer, len(BUILTIN_MODELS), seed, cluster),
    ):
        if not one.broken:
            yield one


def question(one: Launch) -> dict[str, Any]:
    """A launch as the script inside reads it."""
    return {
        "argv": one.words,
        "env": one.environment,
        "world": one.layout.gpus,
        "layout": {name: getattr(one.layout, name) for name in ("tp", "cp", "pp")},
    }


def referee(python: Path, megatron: Path, engine: Path, folder: Path, *, record: bool) -> int:
    """Print every release's count; return the number of plans whose ranks hold other numbers."""
    wrong, rows = 0, []
    for release, number in RELEASES.items():
        asked = list(plans(release, number))
        version = ENGINES[release]
        trees = (
            tree_of(megatron, f"core_v{release}.0", "megatron gpt_builders.py", folder),
            tree_of(engine, f"v{version}", "transformer_engine", folder),
        )
        done = subprocess.run(
            [str(python), str(INSIDE), *map(str, trees), version],
            input="\n".join(json.dumps(question(one)) for one in asked),
            capture_output=True,
            text=True,
        )
        found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"error"')]
        if len(found) != len(asked):
            raise RuntimeError((done.stderr.strip().splitlines() or ["no word"])[-1])
        same = 0
        for one, said in zip(asked, found, strict=True):
            ours, theirs = one.derived()["parameters"], said["derived"].get("parameters")
            same += ours == theirs
            if theirs is None:
                print(f"  not built: {said['error']}")
                continue
            if ours != theirs:
                print(f"  {one.model.name} {one.layout}: theirs {theirs}, ours {ours}")
            plain = {"workload": to_plain(workload_of(one.model, one.layout)), "layout": to_plain(one.layout)}
            rows.append({"release": release, "parameters": theirs, **plain})
        built = sum(said["error"] is None for said in found)
        wrong += built - same
        print(
            f"models of Megatron-LM {release}: {same} of {built} plans hold our parameters, {len(found) - built} not built"
        )
    if record:
        RECORDED.write_text("[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n")
    return wrong
