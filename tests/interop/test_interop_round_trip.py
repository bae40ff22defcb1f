"""Export, then import: the layout that comes back is the layout that went out."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from checks.launches import nearest_layout
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from layoutopt.optimizer.interop.launch.complete import complete_layout
from layoutopt.optimizer.interop.launch.export import NotExpressible, export
from layoutopt.optimizer.interop.launch.target import context_of, framework_named, version_text
from layoutopt.optimizer.interop.records import CheckpointInterval
from layoutopt.optimizer.interop.sources import import_text
from layoutopt.optimizer.space.effective import effective
from layoutopt.optimizer.specs.cluster import ClusterSpec, GpuSpec
from layoutopt.optimizer.specs.gpu_catalog import generations
from layoutopt.optimizer.specs.layout import Layout, Recompute
from layoutopt.optimizer.specs.model import LayerShape, Mlp, ModelSpec, MoeSpec, Run, TrainingSpec
from layoutopt.optimizer.specs.stage_split import build_stages, model_order
from layoutopt.optimizer.specs.vocabulary import (
    DEFAULT_MESH_ORDER,
    RECOMPUTE_MODULES,
    Granularity,
    Precision,
    Saver,
    Schedule,
)
from layoutopt.optimizer.specs.workload import Workload

if TYPE_CHECKING:
    from layoutopt.optimizer.interop.records import ImportedJob

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
    gpu_count=4096,
    gpus_per_node=8,
    nvlink_domain=8,
    nics_per_node=8,
    nic_bytes_per_s=50e9,
    levels=(),
)
SEQUENCE = 4096
TARGETS = [
    ("megatron-lm", None, "megatron-args", "launch.sh"),
    ("megatron-lm", "core 0.12", "megatron-args", "launch.sh"),
    ("megatron-lm", "core 0.9", "megatron-args", "launch.sh"),
    ("megatron-bridge", None, "bridge-command", "launch.sh"),
    ("torchtitan", "A", "torchtitan-toml", "torchtitan.toml"),
    ("torchtitan", "C", "torchtitan-python", "layoutopt_config.py"),
    ("megatron-deepspeed", None, "megatron-deepspeed", "launch.sh"),
    ("deepspeed", None, "deepspeed-json", "ds_config.json"),
    ("nanotron", None, "nanotron-yaml", "config.yaml"),
    ("accelerate", None, "accelerate-yaml", "accelerate.yaml"),
]


def dense_model(layers: int, kv_heads: int = 8, **changes: Any) -> ModelSpec:
    """A small Llama-like model."""
    model = ModelSpec(
        name="tiny",
        hidden=512,
        heads=8,
        kv_heads=kv_heads,
        head_dim=64,
        vocab=1000,
        runs=(Run(name="dense", block=(LayerShape(ffn=1408),), count=layers),),
    )
    return replace(model, **changes)


def sparse_model(layers: int) -> ModelSpec:
    """A small model with dense layers first, then experts, and an MTP layer."""
    runs = (
        Run(name="dense", block=(LayerShape(ffn=1024),), count=1),
        Run(name="moe", block=(LayerShape(mlp=Mlp.MOE),), count=layers - 1),
    )
    moe = MoeSpec(experts=16, top_k=2, ffn=256, shared_ffn=256)
    return replace(dense_model(layers), runs=runs, moe=moe, mtp_layers=1)


@st.composite
def layouts(draw: st.DrawFn) -> tuple[Layout, ModelSpec]:
    """Any layout, expressible or not, of a dense or sparse model."""
    pp, vp = draw(st.sampled_from([1, 2, 3, 4])), draw(st.sampled_from([1, 1, 2, 3]))
    slots = pp * vp
    layers = draw(st.integers(max(slots, 2), max(slots, 2) + 12))
    model = draw(st.sampled_from([dense_model(layers), dense_model(layers, 2), sparse_model(layers)]))
    cuts = sorted(draw(st.lists(st.integers(1, layers - 1), min_size=slots - 1, max_size=slots - 1)))
    counts = [b - a for a, b in zip([0, *cuts], [*cuts, layers], strict=True)]
    if draw(st.booleans()) and layers % slots == 0:
        counts = [layers // slots] * slots
    schedule = (
        draw(st.sampled_from([s for s in Schedule if s is not Schedule.NONE])) if pp > 1 else Schedule.NONE
    )
    granularity = draw(st.sampled_from(list(Granularity)))
    depth = draw(st.integers(0, 3)) if granularity is Granularity.FULL else 0
    wild = granularity is Granularity.FULL and draw(st.booleans())
    redone = [draw(st.integers(0, count)) if wild else min(count, depth) for count in counts]
    order = model_order(pp, vp, schedule)
    mtp = [0] * slots
    mtp[order[-1 if slots == 1 else draw(st.sampled_from([-1, -1, -2]))]] = model.mtp_layers
    listed = [0] * slots
    for position, entry in enumerate(order):
        listed[entry] = counts[position]
    plain = build_stages(model, listed, pp, schedule, 0, mtp)
    stages = tuple(replace(stage, recomputed=redone[order.index(entry)]) for entry, stage in enumerate(plain))
    modules = tuple(sorted(draw(st.sets(st.sampled_from(RECOMPUTE_MODULES)))))
    tp, cp, dp = (draw(st.sampled_from(sizes)) for sizes in ([1, 2, 4], [1, 2], [1, 2, 4, 8]))
    ranks = dp * cp
    mixed = Recompute(
        granularity=granularity, modules=modules if granularity is Granularity.SELECTIVE else ()
    )
    layout = Layout(
        tp=tp,
        sp=draw(st.booleans()),
        cp=cp,
        pp=pp,
        vp=vp,
        ep=draw(st.sampled_from([1, 2, 4])) if model.is_moe else 1,
        etp=draw(st.sampled_from([1, tp])) if model.is_moe else 1,
        dp=dp,
        zero=draw(st.integers(0, 3)),
        hsdp_shard=draw(st.sampled_from([None, None, *(n for n in (2, 4) if ranks % n == 0)])),
        micro_batch=draw(st.sampled_from([1, 2])),
        micro_batches=draw(st.sampled_from([4, 8, 12])),
        recompute=mixed,
        schedule=schedule,
        mesh_order=draw(st.sampled_from([DEFAULT_MESH_ORDER, "tp-cp-ep-pp-dp", "pp-tp-cp-ep-dp"])),
        precision=draw(st.sampled_from(list(Precision))),
        savers=tuple(sorted(draw(st.sets(st.sampled_from(Saver), max_size=2)))),
        stages=stages,
    )
    return layout, model


def workload(model: ModelSpec, layout: Layout) -> Workload:
    """The run that the layout's batch belongs to."""
    batch = layout.dp * layout.micro_batch * layout.micro_batches
    return Workload(
        model=model,
        training=TrainingSpec(sequence_length=SEQUENCE, global_batch=batch, precision=layout.precision),
    )


def nearest(layout: Layout, framework: str, model: ModelSpec, *, version: str | None) -> Layout:
    """The nearest layout that the framework can launch."""
    return nearest_layout(layout, workload(model, layout), CLUSTER, framework, version=version)


def resolved(layout: Layout, framework: str, model: ModelSpec, version: str | None) -> Layout:
    """The layout as it takes effect."""
    target = framework_named(framework)
    ctx = context_of(layout, workload(model, layout), CLUSTER, target, version_text(target, version))
    return effective(layout, ctx)


def read_back(kind: str, text: str, layout: Layout) -> ImportedJob:
    """Import one exported file; what only the command line or the trainer knows is given along."""
    options: dict[str, Any] = {"gpus": layout.gpus} if kind == "deepspeed-json" else {}
    job: ImportedJob = import_text(text, "", kind, **options).value
    if kind == "accelerate-yaml":
        batch: dict[str, Any] = {"micro_batch": layout.micro_batch, "micro_batches": layout.micro_batches}
        job = replace(job, layout=replace(job.layout, **batch))
    if kind == "deepspeed-json":
        job = replace(job, layout=replace(job.layout, recompute=layout.recompute))
    return job


@pytest.mark.parametrize(("framework", "version", "kind", "file"), TARGETS)
@settings(max_examples=25, suppress_health_check=[HealthCheck.filter_too_much])
@given(case=layouts())
def test_export_then_import_gives_the_same_layout(
    framework: str, version: str | None, kind: str, file: str, case: tuple[Layout, ModelSpec]
) -> None:
    """Every axis, every stage and every recomputed layer survives the launch file."""
    layout, model = case
    if framework in ("nanotron", "megatron-deepspeed"):
        assume(not model.is_moe)
    try:
        wanted = nearest(layout, framework, model, version=version)
    except NotExpressible:
        assume(False)
    # A 16-bit or offloaded optimizer is written as a sharded one on a single replica too, where that is the same.
    assume(wanted.zero or wanted.dp * wanted.cp > 1 or not wanted.savers)
    assume(framework != "deepspeed" or (wanted.pp == 1 and not wanted.sp))
    job = export(wanted, workload(model, wanted), CLUSTER, framework, version=version)
    assert job.layout == resolved(wanted, framework, model, version)
    back = complete_layout(read_back(kind, job.files[file], wanted), model=model)
    assert back == job.layout


@pytest.mark.parametrize(("framework", "version", "kind", "file"), TARGETS)
@settings(max_examples=25)
@given(case=layouts())
def test_nearest_layout_keeps_gpus_and_batch(
    framework: str, version: str | None, kind: str, file: str, case: tuple[Layout, ModelSpec]
) -> None:
    """The nearest layout runs on the same GPUs with the same batch, and is its own nearest."""
    layout, model = case
    try:
        near = nearest(layout, framework, model, version=version)
    except NotExpressible as error:
        assert error.nearest is None and all("\n" not in str(problem) for problem in error.problems)
        return
    batch = layout.dp * layout.micro_batch * layout.micro_batches
    assert near.gpus == layout.gpus and near.dp * near.micro_batch * near.micro_batches == batch
    assert sum(stage.layers for stage in near.stages) == model.layers
    assert nearest(near, framework, model, version=version) == near


def test_checkpoint_schedule_survives() -> None:
    """The asynchronous checkpoint interval of the plan is in the launch file and comes back."""
    model = dense_model(4)
    layout = Layout(dp=4, micro_batch=1, micro_batches=2, zero=1)
    plan = CheckpointInterval(interval_steps=123)
    for framework, version, kind, file in TARGETS[:6]:
        near = nearest(layout, framework, model, version=version)
        job = export(near, workload(model, near), CLUSTER, framework, version=version, plan=plan)
        options = import_text(job.files[file], "", kind).value.options
        assert (options.checkpoint_interval, options.checkpoint_async) == (123, True)
