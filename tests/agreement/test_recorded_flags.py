"""What the exporter writes for a release of Megatron-LM, that release's parser knows (benchmarks/referees records it)."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from checks import bridge
from checks.agreement import TRAINERS, Trainer, dense_model, workload_of
from checks.launches import BUILTIN_MODELS, Launch, builtin_launches, random_launches

from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.interop.launch.export import export
from layoutopt.optimizer.specs.layout import Layout
from layoutopt.optimizer.specs.loading import load_cluster

FOLDER = Path(__file__).parents[1] / "data" / "referees"
RECORD = json.loads((FOLDER / "megatron_flags.json").read_text())
BRIDGE = json.loads((FOLDER / "bridge_keys.json").read_text())
CLUSTER = "h100x256"


def trainer(release: str) -> Trainer:
    """Megatron-LM at a release."""
    known = next(one for one in TRAINERS if one.framework is Framework.MEGATRON)
    return replace(known, release=f"core {release}")


def unknown(launch: Launch, release: str) -> list[str]:
    """Flags of a launch that the release's parser refuses."""
    flags = [word for word in launch.words if word.startswith("--")]
    return [flag for flag in flags if release not in RECORD["flags"][flag]]


@pytest.mark.parametrize("release", RECORD["releases"])
def test_flags_of_valid_launches_are_known(release: str) -> None:
    """Random layouts and built-in models that the rules call valid."""
    cluster, asked = load_cluster(CLUSTER), trainer(release)
    launches = [
        *random_launches(asked, 12, 3, cluster),
        *builtin_launches(asked, len(BUILTIN_MODELS), 3, cluster),
    ]
    valid = [launch for launch in launches if not launch.broken]
    assert len(valid) >= 15
    assert [found for launch in valid if (found := unknown(launch, release))] == []


@pytest.mark.parametrize("release", RECORD["releases"])
def test_flags_of_unusual_runs_are_known(release: str) -> None:
    """Scores that are kept, dropout, 16-bit gradients and moments."""
    layout, model = Layout(dp=4, micro_batches=4, zero=1), dense_model(8)
    workload = workload_of(model, layout, flash=False, dropout=True, grad_bytes=2, moment_bytes=2)
    cluster = load_cluster(CLUSTER)
    job = export(layout, workload, cluster, "megatron-lm", version=f"core {release}")
    launch = Launch(layout=layout, model=model, job=job, broken=(), parameters=())
    assert unknown(launch, release) == []
    assert ("--attention-backend" in launch.words) == (release != "0.10")


@pytest.mark.parametrize("release", BRIDGE)
def test_megatron_bridge_knows_what_is_written_for_it(release: str) -> None:
    """Recipes, options of its script and keys of its configuration, of random layouts and every built-in model."""
    launches = bridge.launches(release, 8, 7)  # of those that were recorded
    assert len(launches) >= 20
    assert [keys for one in launches if (keys := bridge.keys_of(one) - set(BRIDGE[release]))] == []
