"""Launch files say everything that matters, and refuse what they cannot say."""

from __future__ import annotations

import ast
import json
import tomllib
from dataclasses import replace
from typing import Any

import pytest
import yaml
from checks.launches import nearest_layout, parse_script

from layoutopt.optimizer.interop.launch.export import NotExpressible, export
from layoutopt.optimizer.interop.records import CheckpointInterval, ExportedJob
from layoutopt.optimizer.interop.sources import import_text
from layoutopt.optimizer.specs.cluster import ClusterSpec, GpuSpec
from layoutopt.optimizer.specs.errors import InputError
from layoutopt.optimizer.specs.gpu_catalog import generations
from layoutopt.optimizer.specs.layout import Layout, Recompute, VirtualStage
from layoutopt.optimizer.specs.model import (
    LayerShape,
    MambaSpec,
    Mixer,
    MlaSpec,
    Mlp,
    ModelSpec,
    MoeSpec,
    Run,
    TrainingSpec,
)
from layoutopt.optimizer.specs.stage_split import build_stages
from layoutopt.optimizer.specs.vocabulary import Fp8Recipe, Granularity, Precision, Schedule
from layoutopt.optimizer.specs.workload import Workload

GPU = GpuSpec(
    name="made-up",
    architecture="hopper",
    generation=generations()["hopper"],
    dense_flops=dict.fromkeys(Precision, 1e15),
    memory_bytes=85e9,
    nominal_memory_bytes=80e9,
    hbm_bytes_per_s=3e12,
    nvlink_bytes_per_s=450e9,
    nvlink_domain=8,
    gpus_per_node=8,
    nic_bytes_per_s=50e9,
    sm_count=132,
    tdp_w=700,
    host_link_bytes_per_s=64e9,
    source="test",
)
CLUSTER = ClusterSpec(
    name="made-up",
    gpu=GPU,
    gpu_count=2048,
    gpus_per_node=8,
    nvlink_domain=8,
    nics_per_node=8,
    nic_bytes_per_s=50e9,
    levels=(),
)
LLAMA = ModelSpec(
    name="llama3-70b",
    hidden=8192,
    heads=64,
    kv_heads=8,
    head_dim=128,
    vocab=128256,
    runs=(Run(name="dense", block=(LayerShape(ffn=28672),), count=80),),
)
DEEPSEEK = ModelSpec(
    name="deepseek-v3",
    hidden=7168,
    heads=128,
    kv_heads=128,
    head_dim=192,
    vocab=129280,
    runs=(
        Run(name="dense", block=(LayerShape(ffn=18432),), count=3),
        Run(name="moe", block=(LayerShape(mlp=Mlp.MOE),), count=58),
    ),
    mtp_layers=1,
    mla=MlaSpec(
        q_lora_rank=1536, kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128
    ),
    moe=MoeSpec(
        experts=256,
        top_k=8,
        ffn=2048,
        shared_ffn=2048,
        router_groups=8,
        router_group_limit=4,
        router_bias=True,
    ),
)
INTERLEAVED = Layout(
    tp=8,
    sp=True,
    pp=4,
    vp=5,
    dp=32,
    zero=1,
    micro_batch=1,
    micro_batches=32,
    schedule=Schedule.INTERLEAVED,
    recompute=Recompute(granularity=Granularity.SELECTIVE, modules=("core_attn",)),
)
EXPERTS = Layout(
    pp=16,
    vp=2,
    ep=64,
    dp=128,
    zero=1,
    micro_batch=1,
    micro_batches=128,
    schedule=Schedule.INTERLEAVED,
    precision=Precision.FP8,
    recompute=Recompute(granularity=Granularity.SELECTIVE, modules=("mla_up_proj", "mlp", "moe_act")),
    stages=build_stages(DEEPSEEK, [3] + [2] * 29 + [0, 0], 16, Schedule.INTERLEAVED, 0, [0] * 30 + [1, 0]),
)
PLAN = CheckpointInterval(interval_steps=500)


def run(
    layout: Layout, model: ModelSpec, to: str, version: str | None = None, length: int = 8192, **training: Any
) -> ExportedJob:
    """Export with the batch that the layout produces and a checkpoint every 500 steps."""
    batch = layout.dp * layout.micro_batch * layout.micro_batches
    spec = TrainingSpec(sequence_length=length, global_batch=batch, precision=layout.precision, **training)
    return export(layout, Workload(model=model, training=spec), CLUSTER, to, version=version, plan=PLAN)


def nearest(layout: Layout, to: str) -> Layout:
    """The nearest layout of the 70B model that the framework can launch."""
    batch = layout.dp * layout.micro_batch * layout.micro_batches
    spec = TrainingSpec(sequence_length=8192, global_batch=batch, precision=layout.precision)
    return nearest_layout(layout, Workload(model=LLAMA, training=spec), CLUSTER, to)


def llama_stages(layers: list[int], limit: int = 0) -> tuple[VirtualStage, ...]:
    """Stages of the 70B model on four ranks, the first ``limit`` layers of each recomputed."""
    return build_stages(LLAMA, layers, 4, Schedule.INTERLEAVED, limit)


def flat(text: str) -> str:
    """A script with its continued lines joined."""
    return " ".join(text.replace("\\\n", " ").split())


def flags(script: str) -> list[str]:
    """Words of the training command."""
    return max((list(words) for words in parse_script(script).commands), key=len)


def test_megatron_interleaved_layout() -> None:
    """The worked 70B example: degrees, layers per chunk, recompute, optimizer, env line, async checkpoint."""
    job = run(INTERLEAVED, LLAMA, "megatron-lm")
    text = flat(job.files["launch.sh"])
    for part in (
        "--tensor-model-parallel-size 8 --sequence-parallel",
        "--context-parallel-size 1",
        "--pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 4",
        "--recompute-granularity selective",
        "--recompute-modules core_attn",
        "--use-distributed-optimizer",
        "--overlap-grad-reduce --overlap-param-gather",
        "--micro-batch-size 1 --global-batch-size 1024",
        "--save-interval 500 --async-save --use-persistent-ckpt-worker",
        "export CUDA_DEVICE_MAX_CONNECTIONS=1",
        "torchrun --nnodes 128 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint HEAD_NODE:29500 pretrain_gpt.py",
    ):
        assert part in text
    assert "core 0.19" in job.files["launch.sh"].splitlines()[1]
    assert "tp8 x cp1 x pp4 x dp32" in text


def test_megatron_single_gpu_memory_check() -> None:
    """The fake process group runs the same flags as one rank, without saving."""
    check = run(INTERLEAVED, LLAMA, "megatron-lm").memory_check
    words = flags(check)
    assert "WORLD_SIZE=1024 RANK=0" in check and "--fake-process-group" in words
    assert words[words.index("--train-iters") + 1] == "2"
    assert "--async-save" not in words
    assert run(INTERLEAVED, LLAMA, "megatron-lm", "core 0.14").memory_check.startswith("none")


def test_megatron_layout_string_and_experts() -> None:
    """The worked DeepSeek-V3 example: quoted layout string, etp written out, MTP, MLA, FP8 recipe."""
    job = run(EXPERTS, DEEPSEEK, "megatron-lm", length=4096, fp8_recipe=Fp8Recipe.BLOCKWISE, moment_bytes=2)
    text = job.files["launch.sh"]
    for part in (
        "--pipeline-model-parallel-layout 'Et*3|(tt|)*29m|L'",
        "--expert-model-parallel-size 64",
        "--expert-tensor-parallel-size 1",
        "--moe-layer-freq '([0]*3+[1]*58)'",
        "--mtp-num-layers 1",
        "--multi-latent-attention",
        "--fp8-format e4m3 --fp8-recipe blockwise",
        "--exp-avg-dtype bf16",
        "--moe-router-num-groups 8 --moe-router-group-topk 4",
        "expert-dp2",
    ):
        assert part in text


@pytest.mark.parametrize("model", [LLAMA, DEEPSEEK])
def test_megatron_model_survives(model: ModelSpec) -> None:
    """The architecture that comes back from the flags is the one that went in."""
    layout = replace(EXPERTS, precision=Precision.BF16) if model is DEEPSEEK else INTERLEAVED
    text = run(layout, model, "megatron-lm").files["launch.sh"]
    back = import_text(text, "", "megatron-args").value.model
    assert replace(back, name=model.name) == model


def test_megatron_windows_and_biases_survive() -> None:
    """A 5:1 window pattern, query-key-value biases and norms come back from the flags."""
    shapes = (LayerShape(ffn=256, window=64),) * 5 + (LayerShape(ffn=256),)
    model = replace(
        LLAMA,
        name="tiny",
        hidden=128,
        heads=4,
        kv_heads=2,
        head_dim=64,
        qkv_bias=True,
        qk_norm=True,
        tied_embeddings=True,
        runs=(Run(name="pattern", block=shapes, count=2),),
    )
    text = run(Layout(dp=8, micro_batches=2), model, "megatron-lm").files["launch.sh"]
    assert "--window-size 63,0" in text
    assert replace(import_text(text, "", "megatron-args").value.model, name="tiny") == model


@pytest.mark.parametrize(
    ("version", "present", "absent"),
    [
        ("core 0.9", "--tensor-model-parallel-size", "--recompute-modules"),
        ("core 0.12", "--recompute-modules", "--use-persistent-ckpt-worker"),
        ("core 0.19", "--use-persistent-ckpt-worker", "--use-custom-fsdp"),
    ],
)
def test_flags_follow_the_release(version: str, present: str, absent: str) -> None:
    """A flag that the target release does not have is not written."""
    words = flags(run(INTERLEAVED, LLAMA, "megatron-lm", version).files["launch.sh"])
    assert present in words and absent not in words


def test_sharding_inside_groups_and_fsdp() -> None:
    """Replicas are dp*cp over the shard group; ZeRO-3 is Megatron-FSDP and unsets the connection limit."""
    layout = replace(INTERLEAVED, vp=1, schedule=Schedule.ONE_F_ONE_B, hsdp_shard=8)
    assert "--num-distributed-optimizer-instances 4" in run(layout, LLAMA, "megatron-lm").files["launch.sh"]
    text = flat(run(replace(layout, zero=3, hsdp_shard=None), LLAMA, "megatron-lm").files["launch.sh"])
    assert "--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params" in text
    assert "unset CUDA_DEVICE_MAX_CONNECTIONS" in text and "--ckpt-format fsdp_dtensor" in text


def test_block_recomputation_counts_per_chunk() -> None:
    """The first N layers of every chunk are one number; all else names the axis and the nearest depth."""
    stages = llama_stages([4] * 20, 2)
    full = replace(INTERLEAVED, stages=stages, recompute=Recompute(granularity=Granularity.FULL))
    text = flat(run(full, LLAMA, "megatron-lm").files["launch.sh"])
    assert "--recompute-method block" in text and "--recompute-num-layers 2" in text
    plain = llama_stages([4] * 20)
    uneven = (replace(plain[0], recomputed=3), *plain[1:])
    with pytest.raises(NotExpressible, match="recompute: megatron") as caught:
        run(replace(full, stages=uneven), LLAMA, "megatron-lm")
    nearest = caught.value.nearest
    assert nearest is not None and [stage.recomputed for stage in nearest.stages] == [3] * 20


def test_uneven_ends_before_layout_strings() -> None:
    """Core 0.12 can shorten the ends but not a stage in the middle."""
    stages = llama_stages([18, 22, 22, 18])
    layout = replace(INTERLEAVED, vp=1, schedule=Schedule.ONE_F_ONE_B, stages=stages)
    text = flat(run(layout, LLAMA, "megatron-lm", "core 0.12").files["launch.sh"])
    assert "--decoder-first-pipeline-num-layers 18 --decoder-last-pipeline-num-layers 18" in text
    middle = llama_stages([20, 22, 18, 20])
    with pytest.raises(NotExpressible, match="stages: megatron"):
        run(replace(layout, stages=middle), LLAMA, "megatron-lm", "core 0.12")


def test_bridge_writes_every_field() -> None:
    """Short flags, both optimizer switches, a null layout for even stages, a named precision recipe."""
    text = flat(run(INTERLEAVED, LLAMA, "megatron-bridge").files["launch.sh"])
    for part in (
        "--recipe llama3_70b_pretrain_config",
        "-tp 8 -pp 4 -vp 5 -cp 1 -ep 1 -etp 1",
        "model.pipeline_model_parallel_layout=null",
        "ddp.use_distributed_optimizer=true optimizer.use_distributed_optimizer=true",
        "mixed_precision=bf16_mixed",
        "checkpoint.save_interval=500 checkpoint.async_save=true",
    ):
        assert part in text
    other = run(INTERLEAVED, replace(LLAMA, name="my-own"), "nemo")
    assert any("no recipe for my-own" in note for note in other.notes)


BY_OPERATOR = Recompute(granularity=Granularity.SELECTIVE, modules=("op",))
TITAN = replace(INTERLEAVED, zero=2, recompute=BY_OPERATOR, hsdp_shard=8)


def test_torchtitan_toml_parses() -> None:
    """Era A: valid TOML with the batch in sequences and one module list per stage."""
    job = run(TITAN, LLAMA, "torchtitan", "A")
    data = tomllib.loads(job.files["torchtitan.toml"])
    parallelism = data["parallelism"]
    assert (parallelism["data_parallel_shard_degree"], parallelism["data_parallel_replicate_degree"]) == (
        8,
        4,
    )
    assert parallelism["fsdp_reshard_after_forward"] == "never"
    assert parallelism["module_fqns_per_model_part"][-1] == [
        *(f"layers.{i}" for i in range(76, 80)),
        "norm",
        "output",
    ]
    assert (data["training"]["local_batch_size"], data["training"]["global_batch_size"]) == (32, 1024)
    assert data["model"] == {"name": "llama3", "flavor": "70B", "converters": []}
    assert "COMM_MODE=fake_backend" in job.memory_check


def test_torchtitan_python_parses() -> None:
    """Era C: valid Python with the batch in tokens, CUDA graphs off with a pipeline, lines that fit."""
    job = run(TITAN, LLAMA, "torchtitan")
    text = job.files["layoutopt_config.py"]
    ast.parse(text)
    assert "num_tokens_per_train_step = 1024 * 8192" in text
    assert "disable_cuda_graphs = True" in text
    assert "SelectiveAC.Config()" in text
    assert max(map(len, text.splitlines())) <= 120


def test_torchtitan_era_b_is_refused() -> None:
    """The short-lived second era is not written, and the message says which are."""
    with pytest.raises(InputError, match=r"era A \(TOML\) or era C"):
        run(TITAN, LLAMA, "torchtitan", "B")


def test_torchtitan_has_no_zero_1() -> None:
    """The error names the axis and proposes FSDP that never reshards, at the same GPUs and batch."""
    with pytest.raises(
        NotExpressible, match=r"zero: torchtitan.*ZeRO stage 1.*\(nearest: zero=2\)"
    ) as caught:
        run(replace(TITAN, zero=1, hsdp_shard=None), LLAMA, "torchtitan")
    assert caught.value.nearest == nearest(replace(TITAN, zero=2, hsdp_shard=None), "torchtitan")


def test_deepspeed_json_for_hugging_face() -> None:
    """Batch product, ZeRO stage, AutoTP and MiCS groups; recomputation is the trainer's flag."""
    layout = Layout(
        tp=2, dp=16, zero=3, hsdp_shard=8, micro_batches=4, recompute=Recompute(granularity=Granularity.FULL)
    )
    job = run(layout, LLAMA, "deepspeed")
    data = json.loads(job.files["ds_config.json"])
    assert data["train_batch_size"] == 64 == data["gradient_accumulation_steps"] * 16
    assert data["zero_optimization"]["stage"] == 3 and data["zero_optimization"]["mics_shard_size"] == 8
    assert data["tensor_parallel"] == {"autotp_size": 2}
    assert "--gradient_checkpointing" in job.command


def test_deepspeed_pipeline_goes_through_megatron_deepspeed() -> None:
    """A pipeline needs Megatron-DeepSpeed: script and JSON agree on the ZeRO stage."""
    layout = replace(INTERLEAVED, vp=1, schedule=Schedule.ONE_F_ONE_B)
    job = run(layout, LLAMA, "deepspeed")
    assert set(job.files) == {"launch.sh", "ds_config.json"}
    assert "--zero-stage 1" in job.files["launch.sh"]
    assert json.loads(job.files["ds_config.json"])["zero_optimization"]["stage"] == 1
    with pytest.raises(NotExpressible, match=r"zero: .*ZeRO-2 with pp 4"):
        run(replace(layout, zero=2), LLAMA, "deepspeed")
    with pytest.raises(InputError, match="no multi-head latent attention"):
        run(EXPERTS, DEEPSEEK, "deepspeed")


def test_nanotron_yaml_parses_with_numbers() -> None:
    """Floats keep a dot (PyYAML reads 1e-5 as a string); the split is nanotron's own."""
    layout = nearest(INTERLEAVED, "nanotron")
    stated = replace(LLAMA, norm_epsilon=1e-6)
    data = yaml.safe_load(run(layout, stated, "nanotron").files["config.yaml"])
    assert data["parallelism"]["tp_mode"] == "REDUCE_SCATTER"
    assert isinstance(data["model"]["model_config"]["rms_norm_eps"], float)
    assert isinstance(data["optimizer"]["optimizer_factory"]["adam_eps"], float)
    assert [stage.layers for stage in layout.stages] == [21, 20, 20, 19]


def test_accelerate_fills_every_size() -> None:
    """The product of the five sizes is num_processes; the batch is in the command."""
    layout = Layout(tp=8, dp=8, zero=3, hsdp_shard=4, micro_batches=2)
    job = run(layout, LLAMA, "accelerate")
    data = yaml.safe_load(job.files["accelerate.yaml"])
    sizes = [value for key, value in data["parallelism_config"].items() if key.endswith("_size")]
    product = 1
    for size in sizes:
        product *= size
    assert product == data["num_processes"] == 64
    assert "--gradient_accumulation_steps 2" in job.command


@pytest.mark.parametrize(
    ("framework", "axis"),
    [("nanotron", "vp"), ("accelerate", "pp"), ("megatron-deepspeed", "vp"), ("torchtitan", "zero")],
)
def test_errors_name_the_axis_and_the_nearest_layout(framework: str, axis: str) -> None:
    """One line per axis, the last one the nearest layout as a whole."""
    with pytest.raises(NotExpressible) as caught:
        run(INTERLEAVED, LLAMA, framework)
    assert axis in [problem.key for problem in caught.value.problems]
    assert caught.value.problems[-1].key == "nearest launchable layout"
    assert all("\n" not in str(problem) for problem in caught.value.problems)


def test_nearest_layout_can_be_exported() -> None:
    """What is offered as nearest is accepted by the same exporter."""
    for framework in ("torchtitan", "megatron-deepspeed", "deepspeed", "nanotron", "accelerate"):
        near = nearest(INTERLEAVED, framework)
        assert run(near, LLAMA, framework).layout == near


def test_hybrid_models_are_refused() -> None:
    """No exporter writes Mamba layers, and says so instead of writing something else."""
    model = replace(
        LLAMA,
        runs=(Run(name="mamba", block=(LayerShape(mixer=Mixer.MAMBA, mlp=Mlp.NONE),), count=4),),
        mamba=MambaSpec(heads=8, head_dim=64, state=64, groups=2),
    )
    with pytest.raises(InputError, match="Mamba or attention-free layers"):
        run(Layout(dp=8), model, "megatron-lm")


def test_batch_must_be_the_layouts() -> None:
    """A global batch that dp, micro-batch and micro-batches do not produce is an error, not a rounding."""
    spec = TrainingSpec(sequence_length=64, global_batch=100, precision=Precision.BF16)
    with pytest.raises(InputError, match="8 \\* 1 \\* 1 = 8 is not the global batch 100"):
        export(Layout(dp=8), Workload(model=LLAMA, training=spec), CLUSTER, "megatron-lm")


def test_unknown_framework() -> None:
    """The exporters there are are listed."""
    with pytest.raises(InputError, match="no exporter for 'colossal' \\(one of megatron, megatron-bridge"):
        run(Layout(dp=8), LLAMA, "colossal")


@pytest.mark.parametrize("precision", list(Precision))
def test_every_precision_has_flags(precision: Precision) -> None:
    """Each number format is written for Megatron-LM and Megatron-Bridge and read back."""
    layout = Layout(dp=8, micro_batches=2, precision=precision)
    for framework, kind in (("megatron-lm", "megatron-args"), ("megatron-bridge", "bridge-command")):
        text = run(layout, LLAMA, framework).files["launch.sh"]
        assert import_text(text, "", kind).value.training.precision is precision
