"""What a script does beyond what is read of it is named: long loops, further launches, jobs of other kinds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from layoutopt.optimizer.interop.sources import import_text

if TYPE_CHECKING:
    from layoutopt.optimizer.interop.records import ImportedJob

FLAGS = (
    "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 4096 --max-position-embeddings 4096 --bf16 "
    "--vocab-size 32000 --micro-batch-size 1 "
)
LAUNCH = f"torchrun --nproc-per-node 8 pretrain_gpt.py {FLAGS}"


def job_of(script: str, file: str = "run.sh") -> ImportedJob:
    """Return what a script launches."""
    job: ImportedJob = import_text(script, file).value
    return job


LONG_LOOPS = {
    "while": ("G=0; i=0\nwhile (( i < 2048 )); do ((i++)); G=$((G+1)); done", 2048),
    "until": ("G=1\nuntil [ $G -ge 4096 ]; do G=$((G+1)); done", 4096),
    "counted": ("for ((i=0;i<3000;i+=1)); do G=$i; done\nG=$((G+1))", 3000),
    "braces": ("for i in {1..3000}; do G=$i; done", 3000),
    "seq": ("for i in $(seq 1 3000); do G=$i; done", 3000),
    "left": ("G=0\nwhile true; do G=$((G+1)); [ $G -ge 2000 ] && break; done", 2000),
}


@pytest.mark.parametrize("name", LONG_LOOPS)
def test_long_loops_run_to_their_end(name: str) -> None:
    """Thousands of rounds are read like one."""
    loop, value = LONG_LOOPS[name]
    assert job_of(f"{loop}\n{LAUNCH} --global-batch-size $G\n").training.global_batch == value


@pytest.mark.parametrize("loop", ["for ((i=0;i<30000;i++)); do", "while true; do"])
def test_loops_that_go_on_leave_open_what_they_set(loop: str) -> None:
    """A loop that is read no further says so, and no value of one of its rounds is taken for the last."""
    job = job_of(f"G=1\n{loop} G=$((G+1)); done\n{LAUNCH} --global-batch-size $G\n")
    assert job.training.global_batch is None
    assert any("the loop of line 2 is read for" in note and "G" in note for note in job.notes)
    assert any("G after the loop of line 2" in text for text in job.missing)
