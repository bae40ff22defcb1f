"""What is given beside a launch file counts, or is refused by name: nothing of it is dropped without a word."""

from __future__ import annotations

import pytest

from layoutopt.optimizer.ask.job import load_job
from layoutopt.optimizer.ask.records import JobRequest
from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.interop.launch.complete import fill_open
from layoutopt.optimizer.interop.launch.export import export
from layoutopt.optimizer.interop.records import ImportedJob, JobTraining
from layoutopt.optimizer.interop.sources import import_text
from layoutopt.optimizer.solve.judge import judge_layout
from layoutopt.optimizer.specs.errors import InputError
from layoutopt.optimizer.specs.layout import Layout, Switches
from layoutopt.optimizer.specs.loading import load_cluster, load_workload, override_training
from layoutopt.optimizer.specs.partial_layout import PartialLayout
from layoutopt.optimizer.specs.stage_split import build_stages
from layoutopt.optimizer.specs.vocabulary import CpComm, Precision, Saver, Schedule, Verdict

WORKLOAD = override_training(load_workload("llama3-8b"), global_batch=64)


@pytest.fixture(scope="module")
def script() -> str:
    """Return a launch script of Megatron-LM with two pipeline ranks and context parallelism."""
    stages = build_stages(WORKLOAD.model, [16, 16], 2, Schedule.ONE_F_ONE_B, 0)
    layout = Layout(
        tp=2, sp=True, cp=2, pp=2, dp=2, zero=1, micro_batches=32, schedule=Schedule.ONE_F_ONE_B, stages=stages
    )  # fmt: skip
    return export(layout, WORKLOAD, load_cluster("h100x16"), "megatron", version="core 0.16").files[
        "launch.sh"
    ]


def read(script: str) -> ImportedJob:
    """Import the script."""
    job: ImportedJob = import_text(script, "", "megatron-args").value
    return job


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("precision=fp8", "precision=fp8 is not the bf16 of the launch file"),
        ("cp_kind=a2a", "cp_kind=a2a is not the p2p of the launch file"),
        ("dp_overlap=0", "dp_overlap=0 is not the 1 of the launch file"),
        ("recompute=full", "recompute=full is not the none of the launch file"),
        ("stages=17/15", "stages=17/15 is not the 16/16 of the launch file"),
        ("idle_gpus=8", "idle_gpus=8 beside a launch file"),
        ("tp=4", "tp=4 is not the 2 of the launch file"),
    ],
)
def test_what_contradicts_the_file_is_refused(
    script: str, words: str, told: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Formats, switches, stages and idle GPUs are compared with the file, as degrees are."""
    file = tmp_path_factory.mktemp("launch") / "launch.sh"
    file.write_text(script, encoding="utf-8")
    with pytest.raises(InputError) as refused:
        load_job(JobRequest(files=(str(file),), layout=words, cluster="h100x16"))
    assert told in str(refused.value)


def test_what_the_file_leaves_open_is_filled() -> None:
    """Precision, savers, a switch and a stage list that no file states reach the layout that is judged."""
    job = ImportedJob(
        framework=Framework.MEGATRON,
        layout=PartialLayout(tp=2, cp=2, pp=2, ep=1, zero=1, micro_batch=1),
        training=JobTraining(sequence_length=8192, global_batch=64),
    )
    stages = build_stages(WORKLOAD.model, [17, 15], 2, Schedule.ONE_F_ONE_B, 0)
    given = PartialLayout(
        precision=Precision.FP8,
        savers=(Saver.OFFLOAD_OPTIMIZER,),
        switches=Switches(cp_kind=CpComm.A2A),
        stages=stages,
    )
    from layoutopt.optimizer.interop.launch.complete import complete_layout, complete_workload

    filled = fill_open(job, given, "--layout")
    layout = complete_layout(filled, model=WORKLOAD.model, gpus=16)
    assert (layout.precision, layout.savers, layout.stages) == (given.precision, given.savers, stages)
    assert layout.switches.cp_kind is CpComm.A2A
    assert complete_workload(filled, model=WORKLOAD.model).training.precision is Precision.FP8


def test_a_precision_that_only_the_layout_states_counts() -> None:
    """An importer may state it with the layout or with the run: neither is taken for 16 bits."""
    job = ImportedJob(
        framework=Framework.MEGATRON,
        layout=PartialLayout(precision=Precision.FP8),
        training=JobTraining(sequence_length=8192, global_batch=64),
    )
    from layoutopt.optimizer.interop.launch.complete import assumptions, complete_workload

    assert complete_workload(job, model=WORKLOAD.model).training.precision is Precision.FP8
    assert not any("precision" in line for line in assumptions(job))


@pytest.mark.parametrize("framework", [one for one in Framework if one.record.exports is not None])
@pytest.mark.parametrize("pp", [1, 4])
def test_a_layout_without_stages_is_judged(framework: Framework, pp: int) -> None:
    """It has the trainer's own split, as one that leaves stages open has."""
    layout = Layout(tp=4, sp=True, pp=pp, dp=4 // pp, micro_batches=16 * pp, schedule=Schedule.ONE_F_ONE_B)
    judged = judge_layout(WORKLOAD, load_cluster("h100x16"), layout, framework=framework)
    assert judged.layout.stages or judged.verdict is Verdict.INVALID
    if judged.verdict is not Verdict.INVALID:
        assert judged.estimate is not None
