"""NeMo, the Hugging Face trainer and accelerate: what their files mean, and what they leave to others."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from layoutopt.optimizer.ask.load import load_cluster
from layoutopt.optimizer.interop.launch.export import export
from layoutopt.optimizer.interop.sources import Around, import_path, import_text
from layoutopt.optimizer.specs.errors import InputError
from layoutopt.optimizer.specs.loading import load_workload, parse_layout

if TYPE_CHECKING:
    from pathlib import Path

    from layoutopt.optimizer.interop.records import ImportedJob

NEMO = """
name: megatron_llama
trainer:
  devices: 8
  num_nodes: 16
  precision: bf16-mixed
model:
  micro_batch_size: 1
  global_batch_size: 256
  tensor_model_parallel_size: 4
  pipeline_model_parallel_size: 4
  virtual_pipeline_model_parallel_size: 5
  encoder_seq_length: 4096
  max_position_embeddings: ${.encoder_seq_length}
  num_layers: 80
  hidden_size: 8192
  ffn_hidden_size: 28672
  num_attention_heads: 64
  num_query_groups: 8
  normalization: rmsnorm
  bias: false
  activation: fast-swiglu
  position_embedding_type: rope
  share_embeddings_and_output_weights: false
  sequence_parallel: true
  vocab_size: 128256
  activations_checkpoint_granularity: selective
  activations_checkpoint_layers_per_pipeline: 1
  fp8: false
  optim:
    name: mcore_distributed_optim
"""


def read(text: str, kind: str, file: str = "x", **options: Any) -> ImportedJob:
    """Import a text that gives itself away as ``kind``."""
    found = import_text(text, file, **options)
    assert found.kind == kind
    job: ImportedJob = found.value
    return job


def axes(job: ImportedJob, *names: str) -> tuple[Any, ...]:
    """Return some axes of a job's layout."""
    return tuple(getattr(job.layout, name) for name in names)


def test_nemo_1_configuration() -> None:
    """Llama-3-70B by its sizes; a key that may change the layout and is not read is named."""
    job = read(NEMO, "nemo")
    assert axes(job, "tp", "sp", "pp", "vp", "dp", "zero", "micro_batches") == (4, True, 4, 5, 8, 1, 32)
    assert (job.gpus, job.training.sequence_length, job.training.precision) == (128, 4096, "bf16")
    assert job.layout.recompute is not None
    assert job.layout.recompute.modules == ("core_attn",)
    assert job.model is not None
    assert replace(job.model, name="x") == replace(
        load_workload("llama3-70b").model, name="x", published_parameters=None
    )
    assert any("activations_checkpoint_layers_per_pipeline" in note for note in job.notes)
    assert job.missing == ()


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("fp8: false", "fp8: true\n  fp8_hybrid: true", ("fp8", "hybrid")),
        ("name: mcore_distributed_optim", "name: fused_adam", ("zero", 0)),
        ("precision: bf16-mixed", "precision: 16", ("precision", "fp16")),
    ],
)
def test_nemo_1_has_words_of_its_own(old: str, new: str, says: tuple[str, Any]) -> None:
    """FP8, the sharded optimizer, and Lightning's names of precisions."""
    job = read(NEMO.replace(old, new), "nemo")
    found = {
        "fp8": job.training.fp8_recipe and "hybrid",
        "zero": job.layout.zero,
        "precision": job.training.precision,
    }
    assert found[says[0]] == says[1]


def test_nemo_1_overrides_leave_the_rest_open() -> None:
    """What a command does not override is in a configuration that is not here."""
    text = "srun -N 4 --ntasks-per-node=8 python megatron_gpt_pretraining.py --config-path=conf trainer.devices=8 "
    text += "trainer.num_nodes=4 model.micro_batch_size=2 ++model.tensor_model_parallel_size=2 "
    job = read(
        text + "model.optim.name=distributed_fused_adam model.encoder_seq_length=2048", "nemo", "run.sh"
    )
    assert axes(job, "tp", "zero", "micro_batch", "pp", "cp", "dp", "recompute") == (
        2,
        1,
        2,
        None,
        None,
        None,
        None,
    )
    assert job.gpus == 32
    assert any("configuration that the script reads" in said for said in job.missing)


RECIPE = """
from nemo.collections import llm
NODES = 8
def main():
    recipe = llm.llama3_70b.pretrain_recipe(dir="/x", num_nodes=NODES, num_gpus_per_node=8)
    recipe.trainer.strategy.tensor_model_parallel_size = 4
    recipe.trainer.strategy.pipeline_model_parallel_size = 4
    recipe.data.micro_batch_size = 1
    recipe.data.global_batch_size = 128
"""


def test_nemo_2_recipe_in_a_script() -> None:
    """What the script sets is known, the recipe's own is open, and its name is said."""
    job = read(RECIPE, "nemo", "x.py")
    assert axes(job, "tp", "pp", "micro_batch", "cp", "vp", "zero") == (4, 4, 1, None, None, None)
    assert (job.gpus, job.model_name, job.training.global_batch) == (64, "llama3-70b", 128)
    assert any("recipe llama3_70b, which this file does not hold" in said for said in job.missing)
    command = "nemo llm pretrain --factory llama3_8b trainer.num_nodes=2 trainer.devices=8 data.global_batch_size=64"
    other = read(command, "nemo", "x.sh")
    assert (other.gpus, other.model_name, other.layout.tp) == (16, "llama3-8b", None)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (RECIPE + "    other = llm.mixtral_8x7b.finetune_recipe(num_nodes=1)\n", "several recipes"),
        (RECIPE + "    if NODES > 4:\n        recipe.data.micro_batch_size = 2\n", "set in a branch"),
        ("from nemo.collections import llm\nx = y.pretrain_recipe\n", "no recipe of NeMo 2 found"),
    ],
)
def test_nemo_2_scripts_that_are_not_read(text: str, says: str) -> None:
    """Two recipes, a branch, or none: said with the line."""
    with pytest.raises(InputError, match=says):
        import_text(text, "x.py", "nemo")


CLM = (
    "run_clm.py --model_name_or_path meta-llama/Llama-3.1-8B --per_device_train_batch_size 2 "
    "--gradient_accumulation_steps 4 --bf16 --block_size 4096 {more}"
)


def test_trainer_on_deepspeed() -> None:
    """The stage of a file that is not there is its name's, and said; one beside is read."""
    text = "deepspeed --num_nodes=2 --num_gpus=8 " + CLM.format(more="--deepspeed ds_zero3.json")
    job = read(text, "hf-trainer", "x.sh")
    assert (job.framework, job.model_name, job.gpus) == ("deepspeed", "llama3-8b", 16)
    assert axes(job, "zero", "dp", "micro_batch", "micro_batches") == (3, 16, 2, 4)
    assert (job.training.global_batch, job.training.sequence_length) == (128, 4096)
    assert job.layout.recompute is not None and job.layout.recompute.granularity == "none"
    assert any("zero=3: so ds_zero3.json is called" in note for note in job.notes)
    unknown = read(text.replace("ds_zero3", "mine"), "hf-trainer", "x.sh")
    assert unknown.layout.zero is None
    assert any("the ZeRO stage of mine.json, which was not found" in said for said in unknown.missing)


def test_trainer_on_accelerate(tmp_path: Path) -> None:
    """FSDP 1's hybrid shards lie in a machine; a file that is missing leaves the stage open."""
    script = "accelerate launch --config_file fsdp.yaml --num_processes 16 " + CLM.format(
        more="--gradient_checkpointing"
    )
    (tmp_path / "run.sh").write_text(script)
    absent = import_path(tmp_path / "run.sh").value
    assert absent.layout.zero is None
    assert any("fsdp.yaml was not found" in said for said in absent.missing)
    (tmp_path / "fsdp.yaml").write_text(
        "distributed_type: FSDP\nmixed_precision: bf16\nnum_machines: 2\nnum_processes: 16\n"
        "fsdp_config:\n  fsdp_sharding_strategy: HYBRID_SHARD\n"
    )
    job = import_path(tmp_path / "run.sh").value
    assert axes(job, "zero", "dp", "hsdp_shard") == (3, 16, 8)
    assert job.layout.recompute.granularity == "full"


def test_trainer_in_yaml() -> None:
    """TRL's and the handbook's recipes: the GPUs are the launcher's, and open."""
    text = "model_name_or_path: meta-llama/Llama-2-7b-hf\nper_device_train_batch_size: 4\nbf16: true\n"
    job = read(text + "max_seq_length: 2048\nfsdp: shard_grad_op auto_wrap\n", "hf-trainer")
    assert axes(job, "zero", "micro_batch", "dp") == (2, 4, None)
    assert {"number of GPUs", "global batch"} <= set(job.missing)


@pytest.mark.parametrize(
    ("more", "zero", "said"),
    [
        ("--deepspeed $CONFIG", None, "--set CONFIG="),
        ('--fsdp "full_shard auto_wrap offload"', 3, "parameters in host memory"),
        ("", 0, "assumed: no sharding"),
        (
            "--tensor_parallel_degree 4",
            0,
            "not read, though it may change the layout: tensor_parallel_degree",
        ),
        ("--use_deepspeed --zero_stage 2", 2, ""),
    ],
)
def test_trainer_words_for_sharding(more: str, zero: int | None, said: str) -> None:
    """Each way, one from outside, none at all, and a key that it does not know."""
    job = read("torchrun --nproc_per_node 8 " + CLM.format(more=more), "hf-trainer", "x.sh")
    assert job.layout.zero == zero
    assert said in " ".join((*job.notes, *job.missing))


ACCELERATE = "distributed_type: {kind}\nmixed_precision: bf16\nnum_processes: 16\n{more}"


@pytest.mark.parametrize(
    ("kind", "more", "zero", "shard"),
    [
        ("FSDP", "num_machines: 2\nfsdp_config: {fsdp_sharding_strategy: HYBRID_SHARD}", 3, 8),
        ("FSDP", "num_machines: 4\nfsdp_config: {fsdp_sharding_strategy: 5}", 2, 4),
        ("FSDP", "num_machines: 1\nfsdp_config: {fsdp_sharding_strategy: HYBRID_SHARD}", 3, None),
        ("FSDP", "num_machines: 2\nfsdp_config: {fsdp_sharding_strategy: FULL_SHARD}", 3, None),
        ("DEEPSPEED", "deepspeed_config: {zero_stage: 1}", 1, None),
        ("DEEPSPEED", "deepspeed_config: {gradient_clipping: 1.0}", 2, None),
        ("DEEPSPEED", "deepspeed_config: {deepspeed_config_file: x.json}", None, None),
    ],
)
def test_accelerate_strategies(kind: str, more: str, zero: int | None, shard: int | None) -> None:
    """Hybrid shards, the default stage, and a stage that another file states; checkpointing is open where no key is."""
    job = read(ACCELERATE.format(kind=kind, more=more), "accelerate-yaml")
    assert axes(job, "zero", "hsdp_shard", "dp") == (zero, shard, 16)
    assert job.layout.recompute is None
    said = " ".join((*job.missing, *job.notes))
    assert "activation checkpointing (fsdp_activation_checkpointing, or in the training script)" in said
    assert zero is not None or "the ZeRO stage (in x.json)" in said


@pytest.mark.parametrize(("written", "on"), [("1", True), ("true", True), ("0", False)])
def test_primus_switches_may_be_numbers(written: str, on: bool) -> None:
    """Python takes 1 for true."""
    text = "modules:\n  pre_trainer:\n    framework: megatron\n    model: llama3_8B.yaml\n    overrides:\n"
    text += f"      tensor_model_parallel_size: 2\n      sequence_parallel: {written}\n"
    assert axes(read(text, "primus"), "tp", "sp") == (2, on)


@pytest.mark.parametrize(("hidden", "flavor"), [(4096, "8B"), (4608, "mine")])
def test_torchtitan_flavors_are_known_by_their_sizes(hidden: int, flavor: str) -> None:
    """Llama-3-8B under another name is a flavor; of another model the sizes to add are written out."""
    known = load_workload("llama3-8b")
    model = replace(known.model, name="mine", hidden=hidden, heads=hidden // 128)
    workload = replace(known, model=model)
    layout = parse_layout("tp=1,pp=1,dp=8,zero=3,micro_batch=1,sp=false").complete(
        workload, load_cluster("h100x8")
    )
    job = export(layout, workload, load_cluster("h100x8"), "torchtitan", version="A")
    assert f'flavor = "{flavor}"' in job.files["torchtitan.toml"]
    said = [note for note in job.notes if "no flavor" in note]
    assert len(said) == (flavor == "mine")
    assert not said or "dim 4608, n_layers 32, n_heads 36, n_kv_heads 8, head_dim 128" in said[0]


def test_files_beside_are_found_by_the_folder(tmp_path: Path) -> None:
    """A DeepSpeed JSON beside the script states the stage."""
    (tmp_path / "ds.json").write_text('{"zero_optimization": {"stage": 1}, "bf16": {"enabled": true}}')
    text = "deepspeed --num_gpus=8 " + CLM.format(more="--deepspeed ds.json")
    job = import_text(text, "x.sh", around=Around(folder=tmp_path)).value
    assert job.layout.zero == 1


def test_nemo_1_values_from_outside_are_asked_for() -> None:
    """Nodes that the environment states: open, with the option that gives them, and no private character shows."""
    text = "python megatron_gpt_pretraining.py trainer.devices=8 trainer.num_nodes=$NODES model.micro_batch_size=1"
    job = read(text, "nemo", "x.sh")
    assert job.gpus is None
    said = " ".join((*job.missing, *job.notes))
    assert "trainer.num_nodes: comes from $NODES" in said and "--set NODES=" in said
    assert "\ue000" not in said


def test_nemo_2_arguments_of_a_dictionary_are_refused() -> None:
    """They may set any degree."""
    text = (
        "from nemo.collections import llm\nimport nemo_run as run\n"
        "recipe = llm.llama3_8b.pretrain_recipe(num_nodes=2, **overrides)\nrun.run(recipe)\n"
    )
    with pytest.raises(InputError, match=r"\*\*overrides may hold any argument of the recipe"):
        import_text(text, "train.py")


def test_accelerate_in_32_bits_is_no_missing_precision() -> None:
    """``mixed_precision: 'no'`` states a precision, which is not modelled."""
    text = "distributed_type: MULTI_GPU\nnum_processes: 8\nmixed_precision: 'no'\n"
    assert any("trains in 32 bits" in text for text in read(text, "accelerate-yaml").missing)
