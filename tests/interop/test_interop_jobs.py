"""Launch files of every framework to model, layout, batch and switches."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.interop.launch.complete import complete_layout, complete_workload, named_model
from layoutopt.optimizer.interop.sources import import_path, import_text
from layoutopt.optimizer.specs.errors import InputError
from layoutopt.optimizer.specs.layout import Recompute
from layoutopt.optimizer.specs.vocabulary import CpComm, Fp8Recipe, Granularity, Precision, Schedule

if TYPE_CHECKING:
    from layoutopt.optimizer.interop.records import ImportedJob
    from layoutopt.optimizer.specs.layout import VirtualStage

SAMPLES = Path(__file__).parent / "samples"


def job(name: str) -> ImportedJob:
    """Import a sample file whose kind it tells itself."""
    value: ImportedJob = import_path(SAMPLES / name).value
    return value


def layer_counts(got: ImportedJob) -> tuple[int, ...]:
    """Layers of every virtual stage that the file states or its framework makes."""
    return tuple(stage.layers for stage in got.layout.split or ())


def stages(got: ImportedJob) -> tuple[VirtualStage, ...]:
    """Stages of the completed layout."""
    return complete_layout(got, gpus=16, global_batch=16).stages


def megatron(flags: str) -> ImportedJob:
    """Import a bare Megatron-LM argument list on 16 GPUs."""
    text = f"torchrun --nnodes 2 --nproc-per-node 8 pretrain_gpt.py {flags}"
    value: ImportedJob = import_text(text, "", "megatron-args").value
    return value


def test_shell_script_with_variables_arrays_and_sbatch_lines() -> None:
    """Everything the script sets is expanded, nothing is run, and SBATCH lines give the GPUs."""
    got = job("megatron_train.sh")
    layout = got.layout
    assert (got.gpus, layout.tp, layout.sp, layout.pp, layout.dp, layout.vp) == (32, 2, True, 4, 4, 1)
    assert (layout.micro_batch, layout.micro_batches, got.training.global_batch) == (2, 8, 64)
    assert [(stage.layers, stage.recomputed) for stage in stages(got)] == [(5, 2), (6, 2), (6, 2), (7, 2)]
    assert got.model is not None and (got.model.layers, got.model.kv_heads, got.model.vocab) == (24, 4, 32000)
    assert got.training.sequence_length == 4096
    assert (got.options.dp_overlap, got.options.param_overlap) == (True, False)
    assert got.missing == ()


def test_mixture_of_experts_with_latent_attention_and_mtp() -> None:
    """Unset etp is tp, MTP sits where the string says, replicas shrink the shard group."""
    got = job("megatron_moe.sh")
    layout = got.layout
    assert (layout.ep, layout.etp, layout.tp) == (8, 2, 2)
    assert any("etp=2" in note for note in got.notes)
    assert [(s.layers, s.mtp, s.embedding, s.head) for s in stages(got)] == [
        (4, 0, True, False),
        (3, 0, False, False),
        (2, 0, False, False),
        (0, 1, False, True),
    ]
    assert [stage.kinds for stage in stages(got)] == [{"dense": 1, "moe": 3}, {"moe": 3}, {"moe": 2}, {}]
    assert (layout.zero, layout.hsdp_shard, layout.dp) == (1, 8, 16)
    assert (layout.mesh_order, layout.schedule) == ("tp-cp-ep-pp-dp", Schedule.INTERLEAVED)
    assert (got.training.precision, got.training.fp8_recipe) == (Precision.FP8, Fp8Recipe.CURRENT)
    assert (got.training.grad_bytes, got.training.moment_bytes) == (4, 2)
    assert (got.options.ep_overlap, got.options.moe_dispatcher) == ("batch", "deepep")
    assert got.model is not None and got.model.moe is not None
    assert got.model.moe.binding_groups == (8, 4)


def test_argument_dump() -> None:
    """The dotted block, the header and the padded-vocabulary line make a complete job."""
    got = job("megatron_dump.txt")
    assert got.model is not None
    assert (got.gpus, got.model.vocab, got.model.kv_heads, got.layout.dp) == (8, 31000, 16, 2)
    assert (got.layout.vp, layer_counts(got)) == (3, (2,) * 6)
    assert (got.training.precision, got.options.cp_comm) == (Precision.MXFP8, CpComm.A2A)


SIZES = "--num-layers 12 --hidden-size 64 --num-attention-heads 4 --vocab-size 99 --bf16 "


def test_group_query_attention_is_a_switch() -> None:
    """Without the switch the number of query groups is ignored, with it alone it is 1."""
    for flags, kv_heads in (("--num-query-groups 2", 4), ("--group-query-attention", 1)):
        model = megatron(SIZES + flags).model
        assert model is not None and model.kv_heads == kv_heads


def test_defaults_that_bite() -> None:
    """ffn 4h or two thirds of it, learned positions, LayerNorm, biases and tied embeddings by default."""
    plain = megatron(SIZES + "--max-position-embeddings 128").model
    gated = megatron(SIZES + "--swiglu --position-embedding-type rope").model
    assert plain is not None and gated is not None
    assert plain.runs[0].block[0].ffn == 256 and gated.runs[0].block[0].ffn == 128
    assert plain.tied_embeddings and plain.attention_bias and plain.learned_positions == 128
    assert gated.learned_positions == 0


@pytest.mark.parametrize(
    ("flags", "layers"),
    [
        ("--pipeline-model-parallel-size 4", [3, 3, 3, 3]),
        ("--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 2", [2] * 6),
        ("--pipeline-model-parallel-size 2 --num-virtual-stages-per-pipeline-rank 3", [2] * 6),
        ("--pipeline-model-parallel-size 4 --decoder-first-pipeline-num-layers 2 "
         "--decoder-last-pipeline-num-layers 4", [2, 3, 3, 4]),
        ("--pipeline-model-parallel-size 2 --account-for-embedding-in-pipeline-split "
         "--account-for-loss-in-pipeline-split", [6, 6]),
        ("--pipeline-model-parallel-size 5", []),
    ],
)  # fmt: skip
def test_stage_splits(flags: str, layers: list[int]) -> None:
    """Every way of splitting layers; what Megatron would refuse leaves the stages open with a note."""
    got = megatron(SIZES + flags)
    assert list(layer_counts(got)) == layers
    assert any("left open" in note for note in got.notes) == (not layers)


def test_counted_ends_shorten_the_end_stages() -> None:
    """14 slots over 2 ranks are 7 each; embedding and loss take one of them on the ends."""
    flags = "--account-for-embedding-in-pipeline-split --pipeline-model-parallel-size 13"
    got = megatron(SIZES + flags)
    assert layer_counts(got) == (0, *(1,) * 12)


@pytest.mark.parametrize(
    ("flags", "zero"),
    [
        ("", 0),
        ("--use-distributed-optimizer", 1),
        ("--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads", 2),
        ("--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params", 3),
        ("--use-torch-fsdp2", 3),
        ("--use-torch-fsdp2 --torch-fsdp2-no-reshard-after-forward", 2),
    ],
)
def test_zero_stages(flags: str, zero: int) -> None:
    """The classic optimizer, Megatron-FSDP and FSDP2."""
    assert megatron(SIZES + flags).layout.zero == zero


def test_sequence_parallelism_needs_tensor_parallelism() -> None:
    """Megatron switches it off silently at tp=1, so does the import."""
    assert megatron(SIZES + "--sequence-parallel").layout.sp is False


def test_full_recomputation_block_and_uniform() -> None:
    """Block N counts per chunk and is clamped, uniform recomputes every layer."""
    flags = SIZES + "--micro-batch-size 1 --pipeline-model-parallel-size 4 --recompute-granularity full "
    flags += "--recompute-method "
    block, uniform = (megatron(flags + f"{m} --recompute-num-layers 2") for m in ("block", "uniform"))
    assert [stage.recomputed for stage in stages(block)] == [2] * 4
    assert [stage.recomputed for stage in stages(uniform)] == [3] * 4


def test_last_flag_wins_and_equals_signs_work() -> None:
    """argparse keeps the last mention; --flag=value is the same as --flag value."""
    got = megatron(SIZES + "--tensor-model-parallel-size 4 --tensor-model-parallel-size=2")
    assert got.layout.tp == 2


def test_missing_values_are_listed() -> None:
    """A partial argument list says what a price needs."""
    text = "python pretrain_gpt.py --num-layers 4 --tensor-model-parallel-size 2"
    got: ImportedJob = import_text(text, "", "megatron-args").value
    assert {"number of GPUs", "--hidden-size", "--vocab-size", "--micro-batch-size"} <= set(got.missing)
    with pytest.raises(InputError, match="micro-batch: missing"):
        complete_layout(got, gpus=8)


def test_megatron_deepspeed() -> None:
    """Ulysses is the context axis, experts have no tensor parallelism, the optimizer is on the host."""
    got = job("megatron_deepspeed.sh")
    layout = got.layout
    assert got.framework is Framework.MEGATRON_DEEPSPEED
    assert (layout.tp, layout.cp, layout.pp, layout.dp, layout.ep, layout.etp, layout.zero) == (
        2,
        2,
        1,
        4,
        4,
        1,
        2,
    )
    assert (got.options.cp_comm, got.options.optimizer_offload) == (CpComm.A2A, 1.0)
    assert got.model is not None and got.model.kv_heads == 4
    assert [run.name for run in got.model.runs] == ["pattern"]
    assert layout.recompute is not None and layout.recompute.granularity is Granularity.FULL


EMBEDDED = """cat <<EOT > ds.json
{"train_batch_size": 8, "zero_optimization": {"stage": 3}}
EOT
deepspeed --num_gpus 8 --num_nodes 1 pretrain_gpt.py --num-layers 2 --deepspeed --deepspeed_config ds.json """


def test_json_written_by_the_script_itself() -> None:
    """A here-document gives the ZeRO stage, and must agree with the flag if both state it."""
    alone: ImportedJob = import_text(EMBEDDED, "", "megatron-deepspeed").value
    assert (alone.layout.zero, alone.gpus) == (3, 8)
    with pytest.raises(InputError, match="--zero-stage 1 and stage 3 of the JSON differ"):
        import_text(EMBEDDED + "--zero-stage 1", "", "megatron-deepspeed")


def test_complete_workload() -> None:
    """Model and run of a job; a built-in model stands in where the file only names one; lacks are listed."""
    got = job("megatron_moe.sh")
    run = complete_workload(got)
    assert run.model is got.model
    assert (run.training.global_batch, run.training.moment_bytes, run.training.total_tokens) == (128, 2, None)
    recipe = job("bridge_recipe.sh")
    model = named_model(recipe)
    assert model is not None and model.layers == 48
    assert complete_workload(recipe, model=model).training.sequence_length == 4096
    assert [stage.layers for stage in complete_layout(recipe, model=model).stages] == [4] * 12
    with pytest.raises(
        InputError, match=r"model: missing in the launch file \(a built-in .*\nsequence length: missing"
    ):
        complete_workload(job("deepspeed_zero2.json"), global_batch=8)


def test_bridge_recipe_command() -> None:
    """Short flags and overrides; the recipe's name gives the model."""
    got = job("bridge_recipe.sh")
    layout = got.layout
    assert (got.model_name, got.gpus) == ("qwen3-30b-a3b", 32)
    assert (layout.tp, layout.sp, layout.pp, layout.vp, layout.ep, layout.etp, layout.dp) == (
        2,
        True,
        4,
        3,
        4,
        1,
        4,
    )
    assert layout.recompute is not None and layout.recompute.modules == ("layernorm", "moe_act")
    assert (got.training.precision, got.training.fp8_recipe) == (Precision.FP8, Fp8Recipe.BLOCKWISE)
    assert (got.training.grad_bytes, got.training.global_batch) == (None, 96)
    assert got.missing == ()


def test_bridge_run_config_builder_style_and_lists() -> None:
    """Fields one level deeper, a list-of-lists layout, untied by builder default, FSDP by ddp."""
    got = job("bridge_run_config.yaml")
    assert got.model is not None and not got.model.tied_embeddings
    assert layer_counts(got) == (2, 3, 3, 2)
    assert (got.layout.zero, got.training.grad_bytes, got.training.train_steps) == (2, 2, 10)
    assert complete_layout(got, gpus=4).micro_batches == 8


def test_torchtitan_toml() -> None:
    """Era A: HSDP, sequence parallelism always on, the automatic split, FP8 by converter."""
    got = job("torchtitan_era_a.toml")
    layout = got.layout
    assert (got.version, got.model_name, got.gpus) == ("era A", "llama3-8b", 32)
    assert (layout.dp, layout.hsdp_shard, layout.zero, layout.sp) == (8, 4, 2, True)
    assert (layout.micro_batch, layout.micro_batches, layer_counts(got)) == (2, 4, (16, 16))
    assert (got.training.precision, got.options.tp_overlap) == (Precision.FP8, True)
    assert layout.recompute is not None and layout.recompute.granularity is Granularity.FULL


def test_torchtitan_python_in_sequences() -> None:
    """Era B: one returned call, module constants and arithmetic, ZeRO-3 by default without a pipeline."""
    got = job("torchtitan_era_b.py.txt")
    assert (got.version, got.model_name, got.gpus) == ("era B", "llama3-70b", 16)
    assert (got.layout.zero, got.layout.micro_batch, got.layout.micro_batches) == (3, 8, 1)
    assert got.training.sequence_length == 4096


def test_torchtitan_python_in_tokens() -> None:
    """Era C: assignments, ZBV, an explicit module list of a shorter model, HSDP with resharding."""
    got = job("torchtitan_era_c.py.txt")
    layout = got.layout
    assert (got.version, layout.schedule, layout.vp) == ("era C", Schedule.ZB_V, 2)
    assert (layout.dp, layout.hsdp_shard, layout.zero) == (8, 4, 3)
    assert (layout.micro_batch, layout.micro_batches, got.training.global_batch) == (2, 8, 128)
    assert layer_counts(got) == (2, 2, 1, 2)


TITAN = """
def first():
    cfg = llama3_8b()
    cfg.parallelism = ParallelismConfig(data_parallel_shard_degree=4)
    cfg.training.seq_len = 64
    return cfg


def second():
    cfg = llama3_70b()
    cfg.parallelism = ParallelismConfig(data_parallel_shard_degree=8)
    cfg.training.seq_len = 64
    return cfg
"""


def test_torchtitan_file_with_several_functions() -> None:
    """Which one is meant must be said."""
    with pytest.raises(InputError, match="several configuration functions: first, second"):
        import_text(TITAN, "", "torchtitan-python")
    got: ImportedJob = import_text(TITAN, "", "torchtitan-python", function="second").value
    assert got.gpus == 8


def titan(body: str, kind: str = "torchtitan-python") -> ImportedJob:
    """Import a configuration function with the given body."""
    text = "def run():\n" + "".join(f"    {line}\n" for line in body.splitlines()) + "    return cfg\n"
    value: ImportedJob = import_text(text, "", kind).value
    return value


def test_torchtitan_inherits_from_its_base() -> None:
    """What a function does not set is its base's: checkpointing is known, the batch is listed as missing."""
    degrees = "cfg.parallelism = ParallelismConfig(data_parallel_shard_degree=8)"
    got = titan(f"cfg = llama3_70b()\n{degrees}")
    assert got.layout.recompute is not None and got.layout.recompute.granularity is Granularity.FULL
    assert (got.layout.micro_batch, got.training.sequence_length) == (None, None)
    assert any("micro-batch" in item for item in got.missing)
    other = titan(f"cfg = somebody_elses()\n{degrees}\ncfg.training.seq_len = 64")
    assert other.layout.recompute is None and other.training.sequence_length == 64
    assert any("activation checkpointing" in item for item in other.missing)
    off = titan(f"cfg = llama3_70b()\n{degrees}\ncfg.activation_checkpoint = None")
    assert off.layout.recompute is not None and off.layout.recompute.granularity is Granularity.NONE


def test_torchtitan_class_defaults_without_a_base() -> None:
    """A TOML file that says little has the class's batch, length and selective checkpointing."""
    text = "[parallelism]\ndata_parallel_shard_degree = 4\n"
    got: ImportedJob = import_text(text, "", "torchtitan-toml").value
    assert (got.layout.micro_batch, got.training.sequence_length, got.training.global_batch) == (8, 2048, 32)
    assert got.layout.recompute == Recompute(granularity=Granularity.SELECTIVE, modules=("op",))
    every_second = text + '[activation_checkpoint]\nmode = "selective"\nselective_ac_option = "2"\n'
    got = import_text(every_second, "", "torchtitan-toml").value
    assert got.layout.recompute == Recompute(granularity=Granularity.SELECTIVE)
    assert any("every 2. layer" in note for note in got.notes)


def test_axes_that_are_not_modelled() -> None:
    """Weight shards beyond tp are refused, a batch ramp is noted, the older MoE recompute switch is read."""
    with pytest.raises(InputError, match="weight shards beyond tp"):
        megatron(SIZES + "--tensor-parallel-num-weight-shards 2")
    assert any("rampup" in note for note in megatron(SIZES + "--rampup-batch-size 8 8 100").notes)
    old = megatron(SIZES + "--moe-layer-recompute").layout.recompute
    assert old is not None and old.modules == ("moe",)


def test_bridge_notes_an_unset_expert_tensor_degree() -> None:
    """NVIDIA-NeMo/Megatron-Bridge#546: without -etp the default is said, since it changed in 0.6."""
    text = "torchrun --nnodes 1 --nproc-per-node 4 run_recipe.py -tp 4 -ep 4 "
    text += "--recipe qwen3_30b_a3b_pretrain_config"
    got: ImportedJob = import_text(text, "", "bridge-command").value
    assert (got.layout.tp, got.layout.ep, got.layout.etp) == (4, 4, 1)
    assert any("etp=1" in note for note in got.notes)


@pytest.mark.parametrize(
    ("keys", "counts"),
    [
        ("pipeline_parallel_layers_per_stage = 12", (11, 11, 10)),
        ("", (16, 16)),
        ("pipeline_parallel_first_stage_less_layers = 0", (17, 15)),
    ],
)
def test_torchtitan_automatic_split(keys: str, counts: tuple[int, ...]) -> None:
    """stages = ceil((L + weights) / K); the first stages get the extra layers, the ends lose their weight."""
    pp = len(counts)
    text = f'[model]\nname="llama3"\nflavor="8B"\n[parallelism]\npipeline_parallel_degree={pp}\n{keys}\n'
    got: ImportedJob = import_text(text + "[training]\nseq_len=64\n", "", "torchtitan-toml").value
    assert layer_counts(got) == counts


def test_deepspeed_json() -> None:
    """auto counts as absent, offload has its ratio, what the JSON cannot say is listed."""
    got = job("deepspeed_zero2.json")
    assert (got.layout.zero, got.layout.tp, got.training.precision) == (2, 2, Precision.FP16)
    assert (got.options.optimizer_offload, got.options.dp_overlap) == (0.5, False)
    assert "sequence length" in got.missing
    sized: ImportedJob = import_path(SAMPLES / "deepspeed_zero2.json", gpus=8).value
    assert (sized.layout.dp, sized.training.global_batch) == (4, 32)


def test_nanotron_yaml() -> None:
    """All-forward-all-backward, whole-layer recomputation, and nanotron's own split over two stages."""
    got = job("nanotron.yaml")
    layout = got.layout
    assert (got.gpus, layout.schedule, layout.sp, layout.zero) == (16, Schedule.GPIPE, False, 0)
    assert layer_counts(got) == (9, 5)
    assert all(stage.recomputed == stage.layers for stage in stages(got))
    assert (got.training.global_batch, got.training.grad_bytes) == (128, 4)
    assert complete_layout(got).dp == 4


def test_accelerate_yaml() -> None:
    """Replicas, shards, tp and cp multiply to the processes; shard groups span the context ranks."""
    got = job("accelerate.yaml")
    layout = got.layout
    assert (layout.dp, layout.tp, layout.cp, layout.zero, layout.hsdp_shard) == (4, 2, 2, 2, 4)
    assert got.options.cp_comm is CpComm.P2P
    assert any("micro-batch" in item for item in got.missing)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "# Copyright\nfrom megatron.bridge import AutoBridge\n\n\ndef recipe():\n    pass\n",
            "a program in Python",
        ),
        (
            "# Llama\n\nLlama runs on megatron.bridge.\n\n```python\nimport torch\n```\n",
            "a page of text",
        ),
    ],
)
def test_what_names_bridge_without_being_a_run(text: str, said: str) -> None:
    """Recipes in Python and model cards are refused as what they are, with what would be read."""
    with pytest.raises(InputError, match=f"{said} names Megatron-Bridge.*run_config.yaml"):
        import_text(text, "recipe")
