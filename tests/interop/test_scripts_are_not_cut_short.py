"""What a script does beyond what is read of it is named: long loops, further launches, jobs of other kinds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from layoutopt.optimizer.interop.megatron.entries import OTHER_ENTRIES
from layoutopt.optimizer.interop.sources import import_text
from layoutopt.optimizer.specs.errors import InputError

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


@pytest.mark.parametrize("name", sorted(OTHER_ENTRIES))
@pytest.mark.parametrize("trainer", ["", "--deepspeed --zero-stage 1"])
def test_jobs_of_other_kinds_are_refused_by_name(name: str, trainer: str) -> None:
    """Megatron's other entry scripts share GPT's flags and train something else."""
    with pytest.raises(InputError, match=name):
        job_of(f"torchrun --nproc-per-node 8 examples/{name} {FLAGS} --global-batch-size 8 {trainer}\n")


def test_a_word_of_a_flag_is_no_other_entry() -> None:
    """Only the script's own name counts."""
    assert job_of(f"{LAUNCH} --global-batch-size 8 --wandb-exp-name pretrain_bert\n").model is not None


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (
            "--decoder-last-pipeline-num-layers 6",
            "decoder-last-pipeline-num-layers: leaves 26 of 32 layers to the 3",
        ),
        ("--decoder-first-pipeline-num-layers 33", "leaves -1 of 32"),
        (
            "--decoder-last-pipeline-num-layers 8 --num-layers-per-virtual-pipeline-stage 4",
            "num-layers-per-virtual-pipeline-stage: is given with --decoder-last-pipeline-num-layers",
        ),
    ],
)
def test_uneven_ends_that_megatron_refuses(flags: str, words: str) -> None:
    """Its arguments' own checks say so in one line; no equal stages are made up instead."""
    with pytest.raises(InputError, match=words):
        job_of(f"{LAUNCH} --global-batch-size 8 --pipeline-model-parallel-size 4 {flags}\n")


def test_uneven_ends_that_megatron_takes() -> None:
    """What the stated end leaves is shared by the others."""
    ends = "--decoder-last-pipeline-num-layers 5 --pipeline-model-parallel-size 4"
    split = job_of(f"{LAUNCH} --global-batch-size 8 {ends}\n").layout.split
    assert split is not None
    assert [stage.layers for stage in split] == [9, 9, 9, 5]


def test_arguments_of_a_checkpoint_are_named() -> None:
    """With --use-checkpoint-args the flags need not be the model."""
    notes = job_of(f"{LAUNCH} --global-batch-size 8 --use-checkpoint-args --load checkpoints\n").notes
    assert any(note.startswith("--use-checkpoint-args: flags of the model may come") for note in notes)


def other_jobs(script: str) -> list[str]:
    """Return what is said of other jobs than the one that is read."""
    return [note for note in job_of(script).notes if "other jobs" in note]


def test_further_launches_of_a_script_are_named() -> None:
    """Two launches, or one in a loop, are not passed off as one job."""
    job = f"{LAUNCH} --global-batch-size 64 --tensor-model-parallel-size"
    said = "the launch of line 1 is read; the script starts other jobs too: line 2 (--tensor-model-parallel-size 4)"
    assert other_jobs(f"{job} 2\n{job} 4\n") == [said]
    (loop,) = other_jobs(f"for tp in 1 2 4 8 16; do\n{job} $tp\ndone\n")
    assert loop.endswith("line 2 (--tensor-model-parallel-size 8) and 1 more")


def test_the_same_job_on_every_node_is_one() -> None:
    """Ranks of nodes, a job that is started again and programs beside it make no other job."""
    rest = f"pretrain_gpt.py {FLAGS} --global-batch-size 64"
    start = f"torchrun --nnodes 2 --nproc-per-node 8 --node_rank $i {rest}"
    assert not other_jobs(f"for i in 0 1; do ssh node$i {start} --master_port 600$i; done\n")
    assert not other_jobs(f"python preprocess.py --workers 8\n{LAUNCH}\n{LAUNCH}\n")


def test_the_script_in_a_word_of_sbatch_is_read() -> None:
    """``sbatch --wrap`` holds the command, whatever values stand before it."""
    batch = "sbatch -N 4 --gpus-per-node 8 --ntasks-per-node 8 --wrap"
    job = job_of(f'{batch} "srun python pretrain_gpt.py {FLAGS} --tensor-model-parallel-size 2"\n')
    assert (job.gpus, job.layout.tp) == (32, 2)


def test_the_name_of_the_scripts_folder_is_open() -> None:
    """The folder is no "."; what follows from its name is asked for."""
    lines = 'D=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)\nN=$(basename "$D"); TP=${N#tp}\n'
    job = job_of(f"{lines}{LAUNCH} --global-batch-size 8 --tensor-model-parallel-size $TP\n")
    assert job.layout.tp is None
    assert any(text.startswith("--tensor-model-parallel-size: comes from") for text in job.missing)


def test_no_word_is_a_pattern_under_noglob() -> None:
    """``set -f`` leaves words as they are written, ``set +f`` makes patterns of them again."""
    lines = "touch 24\nP='2*'\nset -f\nA=$(echo $P)\nset +f\nB=$(echo $P)\n"
    flags = "--global-batch-size $((${A%\\*} * 4)) --tensor-model-parallel-size $((B / 12))"
    job = job_of(f"{lines}{LAUNCH} {flags}\n")
    assert (job.training.global_batch, job.layout.tp) == (8, 2)
