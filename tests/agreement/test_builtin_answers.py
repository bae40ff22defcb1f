"""Every exporter and built-in model: what solve answers, export writes, import reads, evaluate accepts at the same price."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from checks.agreement import TRAINERS, Question, answer
from checks.launches import BUILTIN_MODELS

from layoutopt.optimizer.specs.loading import load_cluster, load_workload

if TYPE_CHECKING:
    from checks.agreement import Trainer

EXPORTERS = tuple({(trainer.framework, trainer.kind): trainer for trainer in TRAINERS}.values())
"""The newest release of each file that is written."""
SIZES = (128, 512, 2048)
CASES = [(trainer, model) for trainer in EXPORTERS for model in BUILTIN_MODELS]


def faults(trainer: Trainer, name: str, sizes: tuple[int, ...]) -> list[str]:
    """Faults on each size where something fits."""
    workload = load_workload(name)
    asked = [
        Question(trainer=trainer, workload=workload, cluster=load_cluster(f"h100x{gpus}"), idle=False)
        for gpus in sizes
    ]
    return [found.fault for found in map(answer, asked) if found.fault]


@pytest.mark.parametrize(("place", "trainer"), list(enumerate(EXPORTERS)), ids=str)
def test_answers_hold_for_every_exporter(place: int, trainer: Trainer) -> None:
    """One model for each; all of them below."""
    assert faults(trainer, BUILTIN_MODELS[5 * place % len(BUILTIN_MODELS)], SIZES[1:2]) == []


@pytest.mark.parametrize(("trainer", "name"), CASES, ids=str)
def test_answers_hold_for_every_model(trainer: Trainer, name: str) -> None:
    """All of them on three cluster sizes."""
    assert faults(trainer, name, SIZES) == []
