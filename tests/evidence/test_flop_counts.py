"""Seconds of rows that were derived from TFLOP/s by another count than their trainer's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from checks.healthy import STARTING, steady
from checks.published import read_runs

from layoutopt.optimizer.cost.flops import model_flops_per_token
from layoutopt.optimizer.evidence.case import Case
from layoutopt.optimizer.evidence.cases import build_case, build_cases

if TYPE_CHECKING:
    from collections.abc import Callable

    from layoutopt.optimizer.evidence.run import MeasuredRun

ZOO = "yanring/Megatron-MoE-ModelZoo best_practice/qwen3/readme.md"


@pytest.mark.parametrize(
    ("source", "derived", "recounted"),
    [
        (ZOO, "tflops_gpu", True),
        (ZOO, "step_time_s", False),  # seconds as the source states them
        ("NVIDIA/Megatron-LM dev examples/moe_recipes/README.md", "tflops_gpu", True),
        ("mosaicml/llm-foundry", "tflops_gpu", False),  # counts the whole square
    ],
)
def test_rows_of_publications_that_count_half(
    make_run: Callable[..., MeasuredRun], source: str, derived: str, recounted: bool
) -> None:
    """Seconds fall from those of the whole square to those of its half; by hand for the model of the row."""
    case = build_case(make_run(source=source, measured_step_s=10.0, measured_from=derived))
    assert isinstance(case, Case)
    half, whole = (
        model_flops_per_token(case.model, case.training.sequence_length, causal=causal)
        for causal in (True, False)
    )
    assert case.measured_s == pytest.approx(10.0 * half / whole if recounted else 10.0)


def test_one_count_for_all_rows_of_a_publication() -> None:
    """TFLOP/s times seconds over tokens is one count for every row of the zoo, whichever figure its seconds came from."""
    cases = [case for case in build_cases(read_runs())[0] if "MoE-ModelZoo" in (case.run.source or "")]
    assert {case.run.measured_from for case in cases} == {"step_time_s", "tflops_gpu"}
    for case in cases:
        run, seconds = case.run, case.measured_s
        assert seconds and run.tflops_gpu and run.n_gpus and run.global_batch and run.seq
        counted = run.tflops_gpu * 1e12 * run.n_gpus * seconds / (run.global_batch * run.seq)
        half = model_flops_per_token(case.model, run.seq, causal=True)
        assert counted == pytest.approx(half, rel=0.01), run.id


def test_times_of_first_iterations_are_told_by_their_notes() -> None:
    """All are BigScience's; its production runs, timed in steady state, stay."""
    cases = [case for case in build_cases(read_runs())[0] if case.measured_s is not None]
    starting = [case for case in cases if STARTING.search(case.run.notes or "")]
    assert len(steady(cases)) == len(cases) - len(starting) and len(starting) == 69
    assert all(case.run.id.startswith("bigscience-") for case in starting)
