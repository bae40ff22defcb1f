"""A flag whose value only the caller knows leaves its own axes open, and what follows from them, and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from layoutopt.optimizer.interop.sources import import_text
from layoutopt.optimizer.specs.errors import InputError

if TYPE_CHECKING:
    from layoutopt.optimizer.interop.records import ImportedJob

STATED = {
    "num-layers": "32", "hidden-size": "4096", "num-attention-heads": "32", "seq-length": "4096", "micro-batch-size": "1",
    "global-batch-size": "64", "tensor-model-parallel-size": "2", "pipeline-model-parallel-size": "2",
    "context-parallel-size": "2", "use-distributed-optimizer": "",
}  # fmt: skip
CHUNKS = {"num-layers-per-virtual-pipeline-stage": "4"}
AXES = (
    "tp", "cp", "pp", "vp", "ep", "etp", "dp", "zero", "micro_batch", "micro_batches", "recompute", "split", "schedule",
)  # fmt: skip


def open_axes(**changes: str) -> set[str]:
    """Axes without a value of a launch with changed flags."""
    flags = STATED | {name.replace("_", "-"): value for name, value in changes.items()}
    words = " ".join(f"--{name} {value}".strip() for name, value in flags.items())
    layout = import_text(
        f"torchrun --nproc-per-node 8 pretrain_gpt.py {words}", "run.sh", "megatron-args"
    ).value.layout
    return {axis for axis in AXES if getattr(layout, axis) is None}


@pytest.mark.parametrize("chunks", [{}, CHUNKS])
@pytest.mark.parametrize(
    ("flag", "axes"),
    [
        ("num_layers", {"vp", "split", "schedule"}),
        ("global_batch_size", {"micro_batches"}),
        ("micro_batch_size", {"micro_batch", "micro_batches"}),
        ("tensor_model_parallel_size", {"tp", "dp", "etp", "micro_batches"}),
        ("pipeline_model_parallel_size", {"pp", "dp", "micro_batches", "split", "schedule"}),
        ("expert_model_parallel_size", {"ep", "etp"}),
        ("context_parallel_size", {"cp", "dp", "micro_batches"}),
    ],
)
def test_an_open_flag_opens_its_axes_alone(flag: str, axes: set[str], chunks: dict[str, str]) -> None:
    """With chunks and without; everything else has the value that is stated or the trainer's own."""
    assert open_axes(**chunks) == set()
    assert open_axes(**{flag: "$VALUE"}, **chunks) == axes


HIERARCHICAL = (
    "torchrun --nproc-per-node 8 --nnodes 2 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 "
    "--seq-length 8192 --bf16 --vocab-size 128256 --micro-batch-size 1 --global-batch-size 128 --context-parallel-size 8 "
)


def launched(words: str) -> ImportedJob:
    """Read a launch over 16 GPUs with context parallelism 8."""
    job: ImportedJob = import_text(HIERARCHICAL + words, "run.sh", "megatron-args").value
    return job


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            "--cp-comm-type a2a+p2p --hierarchical-context-parallel-sizes 2 4",
            "2 ranks exchange heads and 4 pass keys on",
        ),
        ("--cp-comm-type a2a+p2p", "missing, which a2a+p2p needs"),
        ("--cp-comm-type p2p --hierarchical-context-parallel-sizes 4 2", ""),
    ],
)
def test_sizes_of_hierarchical_groups_are_read(words: str, said: str) -> None:
    """What they are and how such groups are priced; nothing where the kind has no groups."""
    notes = [note for note in launched(words).notes if "hierarchical" in note]
    assert (said in notes[0]) if said else not notes


@pytest.mark.parametrize("sizes", ["2 2", "8 2", "x 4", "0 8"])
def test_sizes_that_are_not_those_of_the_degree_are_refused(sizes: str) -> None:
    """One line that says what would be valid, as the trainer stops too."""
    with pytest.raises(InputError, match="do not multiply to context parallelism 8"):
        launched(f"--cp-comm-type a2a+p2p --hierarchical-context-parallel-sizes {sizes}")
