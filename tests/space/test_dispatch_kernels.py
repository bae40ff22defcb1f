"""Dispatchers with kernels of their own are searched on GPUs that those run on."""

from __future__ import annotations

import pytest

from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.solve.inputs import Question
from layoutopt.optimizer.solve.plan import SolveOptions
from layoutopt.optimizer.space.options import SpaceOptions
from layoutopt.optimizer.specs.loading import load_cluster, load_workload

KERNELS = {"deepep", "hybridep"}


def searched(gpu: str, *, named: bool = False) -> set[str]:
    """The dispatchers of all rows that a question about experts declares."""
    fix: dict[str, tuple[int | str, ...]] = {"tp": (1,), "pp": (1, 2), "ep": (8,), "zero": (1,)}
    if named:
        fix["dispatcher"] = ("alltoall", "deepep", "hybridep")
    options = SolveOptions(space=SpaceOptions(fix=fix), framework=Framework.MEGATRON)
    source = Question(
        workload=load_workload("qwen3-30b-a3b"), cluster=load_cluster(f"{gpu}x16"), options=options
    ).costed_space()
    batch, _ = source.expand(source.degrees)
    book = batch.codebook
    return {str(book.switches_of(code).dispatcher) for code in set(batch.precision.tolist())}


@pytest.mark.parametrize(
    ("gpu", "there"),
    [
        *((gpu, set()) for gpu in ("mi250x", "mi300x", "mi325x", "mi350x", "mi355x", "l40s")),
        *((gpu, {"deepep"}) for gpu in ("a100",)),
        *((gpu, KERNELS) for gpu in ("h100", "h200", "b200")),
    ],
)
def test_dispatchers_run_on_the_gpus(gpu: str, there: set[str]) -> None:
    """DeepEP on NVIDIA's GPUs with NVLink from Ampere on, HybridEP from Hopper on; alltoall everywhere."""
    found = searched(gpu)
    assert found & KERNELS == there
    assert "alltoall" in found


def test_named_dispatchers_are_searched_as_named() -> None:
    """Who names the dispatchers gets them, on any GPU."""
    assert searched("mi300x", named=True) >= KERNELS
