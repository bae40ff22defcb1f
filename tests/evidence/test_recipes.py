"""Cells that the recipe of a publication decides."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from layoutopt.optimizer.evidence.notes import NoteFacts
from layoutopt.optimizer.evidence.recipes import with_recipe
from layoutopt.optimizer.specs.vocabulary import Dispatcher

if TYPE_CHECKING:
    from collections.abc import Callable

    from layoutopt.optimizer.evidence.run import MeasuredRun

SKILLS = "NVIDIA-NeMo/Megatron-Bridge skills/some/card.yaml @067f987df"
CARD = "NVIDIA-NeMo/Megatron-Bridge examples/model_verification_cards/qwen3-30b-a3b/card.yaml"


def filled(run: MeasuredRun) -> MeasuredRun:
    """The row with what its recipe decides."""
    return with_recipe(run, NoteFacts())[0]


@pytest.mark.parametrize(
    ("source", "model", "precision", "expected"),
    [
        (SKILLS, "Moonlight-16B-A3B", "bf16", ("bf16", "bf16")),
        (SKILLS, "Qwen3-30B-A3B", "bf16", ("fp32", "fp32")),
        (CARD, "Qwen3-30B-A3B", "bf16", ("fp32", "fp32")),
        (CARD, "Qwen3-30B-A3B", "mxfp8", (None, None)),  # another recipe
        (SKILLS, "Llama 3 8B", "bf16", (None, None)),
        ("my own runs", "Moonlight-16B-A3B", "bf16", (None, None)),  # nobody says which recipe
    ],
)
def test_formats_of_a_recipe(
    make_run: Callable[..., MeasuredRun],
    source: str,
    model: str,
    precision: str,
    expected: tuple[str | None, str | None],
) -> None:
    """Gradient and moment formats come from the recipe of the same publication and model only."""
    run = filled(make_run(source=source, model=model, precision=precision))
    assert (run.grad_dtype, run.moment_dtype) == expected


def test_what_a_row_states_stays(make_run: Callable[..., MeasuredRun]) -> None:
    """A recipe fills empty cells and replaces none."""
    run = filled(make_run(source=SKILLS, model="Moonlight-16B-A3B", moment_dtype="fp32"))
    assert (run.grad_dtype, run.moment_dtype) == ("bf16", "fp32")


SUMMARY = (
    "NVIDIA-NeMo/Megatron-Bridge docs/performance-summary*.md @067f987df (25.09 container; recipes tag {})"
)


@pytest.mark.parametrize(
    ("model", "gpu", "precision", "tag", "graphs"),
    [
        ("Qwen3-30B-A3B", "B200-180G", "fp8", "v0.1.0rc4", "partial"),
        ("Qwen3-30B-A3B", "H100-80G-SXM", "fp8", "v0.1.0rc4", "none"),
        ("Qwen3-235B-A22B", "GB200-NVL72", "mxfp8", "v0.1.0rc4", "partial"),
        ("Qwen3-235B-A22B", "B200-180G", "mxfp8", "v0.1.0rc4", "none"),
        ("Llama 3 8B", "GB200-NVL72", "mxfp8", "v0.1.0rc4", "partial"),
        ("Llama 3 8B", "GB200-NVL72", "fp8", "v0.1.0rc4", "none"),
        ("Qwen3-30B-A3B", "GB300-NVL72", "mxfp8", "v0.2.0", "partial"),
        ("Llama 3 8B", "GB300-NVL72", "fp8", "v0.2.0", "full_iteration"),
        ("Qwen3-30B-A3B", "B200-180G", "fp8", "v0.2.0", None),
    ],
)
def test_graphs_of_a_container(
    make_run: Callable[..., MeasuredRun], model: str, gpu: str, precision: str, tag: str, graphs: str | None
) -> None:
    """CUDA graphs by model, GPU and precision, of the tag that a row names alone; what a row states stays."""
    cells = {"source": SUMMARY.format(tag), "model": model, "gpu": gpu, "precision": precision}
    assert filled(make_run(**cells)).cuda_graph == graphs
    assert filled(make_run(**cells, cuda_graph="full_iteration")).cuda_graph == "full_iteration"


def test_the_dispatcher_of_a_recipe(make_run: Callable[..., MeasuredRun]) -> None:
    """It is the recipe's where the notes name none."""
    run = make_run(source=SUMMARY.format("v0.2.0"), model="Qwen3-235B-A22B", gpu="GB200-NVL72")
    for noted, expected in ((None, Dispatcher.HYBRIDEP), (Dispatcher.DEEPEP, Dispatcher.DEEPEP)):
        assert with_recipe(run, NoteFacts(dispatcher=noted))[1].dispatcher is expected
