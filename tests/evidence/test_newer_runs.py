"""Runs of 2024 to 2026 that nothing was fitted to: growth with the job, long sequences, FSDP between nodes, full graphs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from checks.published import NEWER, read_runs

from layoutopt.optimizer.evidence.cases import build_cases
from layoutopt.optimizer.evidence.predict import predict

if TYPE_CHECKING:
    from collections.abc import Callable

    from layoutopt.optimizer.evidence.case import Case


@pytest.fixture(scope="module")
def newer() -> dict[str, tuple[Case, float]]:
    """Timed rows by id with their predicted seconds."""
    timed = [case for case in build_cases(read_runs([NEWER]))[0] if case.measured_s is not None]
    return {case.run.id: (case, predict(case).step_time_s) for case in timed}


@pytest.fixture(scope="module")
def errors(newer: dict[str, tuple[Case, float]]) -> Callable[[str], list[float]]:
    """Relative errors of the rows whose id starts with some words."""

    def of(start: str) -> list[float]:
        rows = [row for name, row in newer.items() if name.startswith(start)]
        assert rows, start
        return [seconds / (case.measured_s or 1.0) - 1 for case, seconds in rows]

    return of


def test_zero_1_from_one_node_to_128(newer: dict[str, tuple[Case, float]]) -> None:
    """InternEvo's 7B table: constant batch per GPU, longer on more GPUs; each size within 12%."""
    rows = [row for name, row in newer.items() if name.startswith("internevo-7b")]
    by_size = sorted((case.run.n_gpus or 0, seconds, case.measured_s or 1.0) for case, seconds in rows)
    assert [size for size, _, _ in by_size] == [8, 16, 32, 64, 128, 256, 512, 1024]
    predicted = [seconds for _, seconds, _ in by_size]
    assert predicted == sorted(predicted)
    for size, seconds, measured in by_size:
        assert abs(seconds / measured - 1) <= 0.12, size


def test_attention_at_a_million_tokens(errors: Callable[[str], list[float]]) -> None:
    """TRL's ring of 8 to 32 GPUs at 1 to 4 million tokens: within 13% each."""
    assert np.abs(errors("trl-")).max() <= 0.13


def test_a_graph_of_the_whole_step_leaves_no_host_time(errors: Callable[[str], list[float]]) -> None:
    """MLPerf's 8B steps of 0.19 s, shorter than what the host takes without graphs: within 10% in the mean."""
    assert np.abs(errors("mlp51-l8-b200")).mean() <= 0.1


def test_fsdp_between_nodes(newer: dict[str, tuple[Case, float]]) -> None:
    """Of one batch per GPU on two nodes of 4, FSDP alone is faster per token than with tensor parallelism."""
    per_sequence = []
    for name in ("kempner-mfu08-14.84b-h200-8-tp1fsdp8", "kempner-mfu09-14.84b-h200-8-tp4fsdp2"):
        case, seconds = newer[name]
        per_sequence.append(
            (seconds / case.training.global_batch, (case.measured_s or 0.0) / case.training.global_batch)
        )
    (alone, alone_measured), (tensor, tensor_measured) = per_sequence
    assert alone < tensor and alone_measured < tensor_measured


@pytest.mark.parametrize(
    ("start", "most"), [("kempner-weak", 0.1), ("kempner-mfu", 0.1), ("fms-", 0.1), ("sailor-", 0.15)]
)
def test_sharded_weights_without_a_fit(errors: Callable[[str], list[float]], start: str, most: float) -> None:
    """FSDP and tensor parallelism x FSDP between nodes, and GH200's, repositories that no constant was fitted to."""
    assert np.abs(errors(start)).mean() <= most


def test_memory_of_whole_gradients_and_gathered_logits(newer: dict[str, tuple[Case, float]]) -> None:
    """KempnerForge holds whole gradients, and with tensor parallelism every logit: within 5%, 2 GPUs to 160."""
    rows = [
        case
        for name, (case, _) in newer.items()
        if name.startswith("kempner") and case.layout.pp == 1 and case.layout.dp > 1
    ]
    assert len(rows) >= 19
    for case in rows:
        assert predict(case).allocated_bytes == pytest.approx(1e9 * (case.memory_gb or 0.0), rel=0.05), (
            case.run.id
        )
