"""Inputs that people had and that were misread: each is right now, or refused by a line that says what to give."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from click.testing import CliRunner

from layoutopt.cli import main
from layoutopt.optimizer.ask.job import load_job
from layoutopt.optimizer.ask.records import JobRequest, RunChoices
from layoutopt.optimizer.frameworks.preset import NarrowWeights
from layoutopt.optimizer.interop.machines.nccl_calibration import suggest_calibration
from layoutopt.optimizer.interop.sources import import_path
from layoutopt.optimizer.specs.errors import InputError
from layoutopt.optimizer.specs.loading import load_cluster
from layoutopt.optimizer.specs.vocabulary import OP_MODULE

if TYPE_CHECKING:
    from layoutopt.optimizer.interop.records import ImportedJob

FAULTS = Path(__file__).parents[1] / "data" / "faults"
EXPECTED: dict[str, dict[str, Any]] = yaml.safe_load((FAULTS / "expected.yaml").read_text())
STATED = {
    name: facts
    for name, facts in EXPECTED["launch"].items()
    if "must" not in facts and name != "bridge_recipe.sh"
}


def _read(job: ImportedJob, fact: str) -> Any:
    """Return what a job says of a fact of the table."""
    layout, training = job.layout, job.training
    assert layout is not None
    if fact == "dp_shard":
        return layout.hsdp_shard or layout.dp
    if fact == "recompute":
        recompute = layout.recompute
        assert recompute is not None
        return "op" if recompute.modules == (OP_MODULE,) else recompute.granularity.value
    places = {
        "gpus": job.gpus,
        "model": job.model_name,
        "vocab": job.model.vocab if job.model else None,
        "layers": job.model.layers if job.model else None,
        "seq": training.sequence_length,
        "global_batch": training.global_batch,
        "precision": training.precision,
        "fp8_recipe": training.fp8_recipe,
    }
    return places[fact] if fact in places else getattr(layout, fact)


@pytest.mark.parametrize("name", sorted(STATED))
def test_launch_files_are_read_as_they_run(name: str) -> None:
    """Degrees, batch, precision and GPUs of every launch file whose right values are known."""
    job = import_path(FAULTS / "launch" / name).value
    assert {fact: _read(job, fact) for fact in STATED[name]} == STATED[name]


def test_flags_of_a_file_that_is_not_there_are_open() -> None:
    """No degree is filled in: the missing array and file are named, and evaluate refuses until they are given."""
    file = str(FAULTS / "launch" / "unset_array.sh")
    job = import_path(file).value
    for axis in ("tp", "cp", "pp", "ep", "zero", "dp", "micro_batches", "recompute"):
        assert getattr(job.layout, axis) is None, axis
    said = " ".join(job.missing)
    assert "PARALLEL_ARGS" in said
    assert "parallel.env" in said
    with pytest.raises(InputError, match=r"tp: not stated by the launch file.*PARALLEL_ARGS"):
        load_job(JobRequest(cluster="h100x8", files=(file,)))


def test_flags_from_outside_or_a_layout_fill_what_is_open() -> None:
    """Both ways lead to the same layout; a value that the file states can't be replaced by another."""
    file = str(FAULTS / "launch" / "unset_array.sh")
    flags = "--tensor-model-parallel-size 4 --use-distributed-optimizer"
    given = load_job(
        JobRequest(cluster="h100x8", files=(file,)), RunChoices(settings=(("PARALLEL_ARGS", flags),))
    )
    filled = load_job(
        JobRequest(cluster="h100x8", files=(file,), layout="tp=4,cp=1,pp=1,vp=1,ep=1,etp=1,zero=1,sp=false")
    )
    assert filled.layout == given.layout
    assert (filled.layout.tp, filled.layout.dp, filled.layout.zero) == (4, 2, 1)
    with pytest.raises(InputError, match="micro_batch=2 is not the 1 of the launch file"):
        load_job(
            JobRequest(cluster="h100x8", files=(file,), layout="tp=4,cp=1,pp=1,ep=1,zero=1,micro_batch=2")
        )


def test_sizes_of_several_branches_are_offered() -> None:
    """The variable, its branches and the option that decides are in the line; deciding gives the model."""
    file = FAULTS / "launch" / "case_by_size.sh"
    with pytest.raises(InputError, match=r"NUM_LAYERS.*8B.*70B.*--arg 1=.*--set MODEL_SIZE="):
        import_path(file)
    found = load_job(JobRequest(cluster="h100x32", files=(str(file),)), RunChoices(arguments=((1, "70B"),)))
    assert found.workload.model.layers == 80


def test_weights_in_eight_bits_fit() -> None:
    """A published run with --fp8-param-gather fits the memory that it ran in."""
    file = str(FAULTS / "launch" / "fp8_param_gather.sh")
    job = load_job(JobRequest(cluster="h100x8", files=(file,)))
    kept = job.preset.narrow_weights if job.preset else None
    assert kept is NarrowWeights.ALONE
    found = CliRunner().invoke(main, ["evaluate", "--from", file, "--cluster", "h100x8", "--json"])
    assert json.loads(found.stdout)["verdict"] in ("fits", "borderline")


def test_layout_of_a_recipe_is_open() -> None:
    """A Bridge recipe that is not at hand leaves degrees, batch and precision open."""
    job = import_path(FAULTS / "launch" / "bridge_recipe.sh").value
    for axis in ("tp", "cp", "pp", "vp", "ep", "etp", "zero", "micro_batch", "dp"):
        assert getattr(job.layout, axis) is None, axis
    assert job.training.precision is None
    assert job.gpus == 256
    assert "qwen3_235b_a22b_pretrain_256gpu_gb300_fp8mx_config" in " ".join(job.missing)


def test_out_of_memory_of_torch_2_1() -> None:
    """The misspelt capacity is read."""
    (found,) = import_path(FAULTS / "logs" / "oom_torch21_capacty.txt").value
    expected = EXPECTED["logs"]["oom_torch21_capacty.txt"]
    read = {name: getattr(found, name.replace("_gib", "_bytes")) / 2**30 for name in expected}
    assert read == pytest.approx(expected, abs=0.01)


def test_logs() -> None:
    """Rates, step times, memory and the header of three trainers' logs."""
    expected = EXPECTED["logs"]
    timer = import_path(FAULTS / "logs" / "deepspeed_timer.txt").value
    assert timer.samples_per_s == expected["deepspeed_timer.txt"]["samples_per_s"]
    assert timer.columns["mem_gb"] == pytest.approx(expected["deepspeed_timer.txt"]["mem_gib"] * 2**30 / 1e9)
    nemo = import_path(FAULTS / "logs" / "nemo2.txt").value.columns
    assert nemo["step_time_s"] == pytest.approx(expected["nemo2.txt"]["step_time_s"], rel=2e-3)
    assert nemo["global_batch"] == expected["nemo2.txt"]["global_batch"]
    header = import_path(FAULTS / "logs" / "megatron_header.txt").value.columns
    assert {name: header[name] for name in expected["megatron_header.txt"]} == pytest.approx(
        expected["megatron_header.txt"], rel=1e-3
    )


def test_glued_columns_of_a_topology() -> None:
    """Five NICs, and GPU3 is next to NIC11."""
    found = import_path(FAULTS / "machines" / "topo_glued_header.txt").value
    assert len({nic for near in found.gpu_nics for nic in near} | set(found.other_nics)) == 5
    assert found.gpu_nics[3] == ("NIC11",)


def test_one_nvlink_domain_of_72_calibrates_nvlink() -> None:
    """Eighteen hosts in one domain say nothing of the network."""
    tables = import_path(FAULTS / "machines" / "nccl_all_reduce_72_one_domain.txt").value
    found = suggest_calibration(tables, load_cluster("gb200-nvl72-576"))
    assert list(found.values) == ["nvlink_fraction.blackwell"]
    assert 0.6 < found.values["nvlink_fraction.blackwell"].value < 1
    assert not found.skipped


def test_one_of_several_topologies_is_named() -> None:
    """Which was read, why, and which others there are."""
    (note,) = import_path(FAULTS / "machines" / "slurm_two_topologies.yaml").value.notes
    assert note == "topology tree1 was read, the cluster's default of 3; others: block1, flat1"
    chosen = import_path(FAULTS / "machines" / "slurm_two_topologies.yaml", name="block1").value
    assert (chosen.kind, chosen.notes) == ("block", ())
