"""What is exported and read back is the same plan: model, layout, switches, precision, validity and price."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pytest
from checks.launches import nearest_layout

from layoutopt.optimizer.ask.job import load_job
from layoutopt.optimizer.ask.load import load_cluster
from layoutopt.optimizer.ask.records import JobRequest, RunChoices
from layoutopt.optimizer.cost.estimate import estimate
from layoutopt.optimizer.cost.factory import build_cost_model
from layoutopt.optimizer.frameworks.registry import find_framework
from layoutopt.optimizer.interop.files import model_file
from layoutopt.optimizer.interop.launch.export import NotExpressible, export
from layoutopt.optimizer.interop.launch.text import yaml_text
from layoutopt.optimizer.space.check import find_faults
from layoutopt.optimizer.space.context import make_context
from layoutopt.optimizer.specs.errors import InputError
from layoutopt.optimizer.specs.layer_runs import runs_of
from layoutopt.optimizer.specs.layout import Layout, VirtualStage
from layoutopt.optimizer.specs.loading import load_workload, model_names
from layoutopt.optimizer.specs.model import (
    LayerShape,
    Mixer,
    MlaSpec,
    Mlp,
    ModelSpec,
    MoeSpec,
    Norm,
    Run,
    TrainingSpec,
)
from layoutopt.optimizer.specs.stage_split import build_stages
from layoutopt.optimizer.specs.vocabulary import Precision, Schedule
from layoutopt.optimizer.specs.workload import Workload

if TYPE_CHECKING:
    from pathlib import Path

    from layoutopt.optimizer.interop.records import ExportedJob

GPUS, BATCH = 64, 64
CLUSTER = f"h100x{GPUS}"
TARGETS = (
    ("megatron-lm", None, "launch.sh"),
    ("megatron-bridge", None, "launch.sh"),
    ("torchtitan", "A", "torchtitan.toml"),
    ("torchtitan", "C", "layoutopt_config.py"),
    ("megatron-deepspeed", None, "launch.sh"),
    ("deepspeed", None, "ds_config.json"),
    ("nanotron", None, "config.yaml"),
    ("accelerate", None, "accelerate.yaml"),
)
HOLDS_MODEL = ("megatron-lm", "megatron-bridge", "megatron-deepspeed", "nanotron")
HOLDS_BATCH = (*HOLDS_MODEL, "torchtitan", "deepspeed")


def small(name: str, runs: tuple[Run, ...], **changes: Any) -> ModelSpec:
    """A small model of the added set."""
    sizes: dict[str, Any] = {"hidden": 1024, "heads": 16, "kv_heads": 8, "head_dim": 64, "vocab": 32000}
    return ModelSpec(name=name, runs=runs, **(sizes | changes))


def alike(count: int, *shapes: LayerShape) -> tuple[Run, ...]:
    """One shape, or several in turn, ``count`` times."""
    return runs_of(list(shapes) * count)


WIDE = LayerShape(ffn=2816)
SPARSE = LayerShape(mlp=Mlp.MOE)
EXPERTS = MoeSpec(experts=16, top_k=2, ffn=512, shared_ffn=512, shared_gate=True)
ADDED = {
    model.name: model
    for model in (
        small("windows", alike(8, replace(WIDE, window=4096))),
        small("windows-between", alike(4, replace(WIDE, window=128), WIDE)),
        small("windows-moe", alike(4, replace(SPARSE, window=1024), SPARSE), moe=EXPERTS),
        small("sinks", alike(8, WIDE), attention_sinks=True),
        small("tied", alike(8, WIDE), tied_embeddings=True, qk_norm=True),
        small("qkv-biases", alike(8, WIDE), qkv_bias=True),
        small(
            "all-biases", alike(8, WIDE), gated=False, norm=Norm.LAYER, attention_bias=True, mlp_bias=True,
            learned_positions=4096, kv_heads=16,
        ),
        small("shared-expert", alike(8, SPARSE), moe=EXPERTS),
        small(
            "latent", runs_of([WIDE, *[SPARSE] * 7]), moe=replace(EXPERTS, router_bias=True, shared_gate=False),
            mla=MlaSpec(q_lora_rank=256, kv_lora_rank=128, qk_nope_head_dim=64, qk_rope_head_dim=32, v_head_dim=64),
            head_dim=96, kv_heads=16, mtp_layers=1,
        ),
    )
}  # fmt: skip


def workload(name: str) -> Workload:
    """A built-in or added model with the batch of these tests."""
    if name in ADDED:
        length = 4096
        training = TrainingSpec(sequence_length=length, global_batch=BATCH, precision=Precision.BF16)
        return Workload(model=ADDED[name], training=training)
    found = load_workload(name)
    return replace(found, training=replace(found.training, global_batch=BATCH))


@dataclass(frozen=True, slots=True)
class Trip:
    """A plan, what was written of it, and where."""

    asked: Workload
    layout: Layout
    job: ExportedJob
    file: Path


def staged(model: ModelSpec, pp: int, vp: int) -> tuple[VirtualStage, ...]:
    """Virtual stages of which no neighbours are alike: the first holds least, the last one as well where there are many."""
    slots = pp * vp
    if slots == 1:
        return ()
    counts = [model.layers // slots] * slots
    for place in range(model.layers % slots):
        counts[1 + place % (slots - 1)] += 1
    if counts[0] > 1:
        counts[0], counts[1] = counts[0] - 1, counts[1] + 1
    schedule = Schedule.INTERLEAVED if vp > 1 else Schedule.ONE_F_ONE_B
    return build_stages(model, counts, pp, schedule, 0)


def exported(
    name: str, to: str, version: str | None, cp: int, folder: Path, file: str, pp: int = 1, vp: int = 1
) -> Trip | None:
    """Write a model's launch; None where the trainer can't run it."""
    asked, cluster = workload(name), load_cluster(CLUSTER)
    model = asked.model
    if model.layers < 2 * pp * vp:
        return None
    schedule = Schedule.NONE if pp == 1 else Schedule.INTERLEAVED if vp > 1 else Schedule.ONE_F_ONE_B
    layout = Layout(
        tp=2, sp=True, cp=cp, pp=pp, vp=vp, dp=GPUS // (2 * cp * pp), zero=1, ep=2 if model.is_moe else 1, micro_batch=1,
        micro_batches=2 * cp * pp, precision=asked.training.precision, schedule=schedule, stages=staged(model, pp, vp),
    )  # fmt: skip
    try:
        near = nearest_layout(layout, asked, cluster, to, version=version)
        job = export(near, asked, cluster, to, version=version)
    except InputError as error:
        assert isinstance(error, NotExpressible) or "model" in str(error)
        return None
    path = folder / (file if file in job.files and "launch.sh" not in job.files else "launch.sh")
    for own, text in job.files.items():
        (folder / own).write_text(text)
    (folder / "model.yaml").write_text(
        yaml_text(
            model_file(
                model,
                {
                    "sequence_length": asked.training.sequence_length,
                    "global_batch": BATCH,
                    "precision": "bf16",
                },
            )
        )
    )
    training = replace(asked.training, precision=job.layout.precision)
    return Trip(replace(asked, training=training), job.layout, job, path)


def same_model(mine: ModelSpec, theirs: ModelSpec) -> bool:
    """Equal but for the name, and for what an export's notes say that it leaves out."""
    other = replace(
        theirs,
        name=mine.name,
        embedding_norm=mine.embedding_norm,
        published_parameters=mine.published_parameters,
    )
    return [shape for run in mine.runs for shape in run.block * run.count] == [
        shape for run in theirs.runs for shape in run.block * run.count
    ] and replace(other, runs=mine.runs) == mine


def assert_same_plan(trip: Trip, to: str, version: str | None) -> None:
    """Read a launch back as ``evaluate --from`` does, and compare."""
    asked, want = trip.asked, trip.layout
    given = RunChoices(global_batch=BATCH, sequence_length=asked.training.sequence_length, gpus=GPUS)
    batch = f"micro_batch={want.micro_batch},micro_batches={want.micro_batches}"
    request = JobRequest(
        cluster=CLUSTER,
        files=(str(trip.file),),
        layout=None if to in HOLDS_BATCH else batch,
        model=None if to in HOLDS_MODEL else str(trip.file.parent / "model.yaml"),
    )
    back = load_job(request, given)
    assert isinstance(back.layout, Layout)
    assert same_model(asked.model, back.workload.model)
    assert written(back.layout, asked, back.layout, to) == written(want, asked, back.layout, to)
    assert faults(back.workload, back.layout, to, version, back.run) == []
    mine = replace(asked, training=replace(asked.training, **unsaid(trip, back.workload.training)))
    assert step_time(back.workload, back.layout, to, back.software, back.preset) == pytest.approx(
        step_time(mine, want, to, trip.job.version, None), rel=TOLERANCE.get(asked.model.name, 1e-6)
    )


def written(layout: Layout, asked: Workload, back: Layout, to: str) -> Layout:
    """Return a layout without what is said another way: moments by the model's training, recomputation by its code."""
    runs = len(asked.model.runs) > 1 or len(asked.model.runs[0].block) > 1
    kept = replace(layout, recompute=back.recompute) if to == "deepspeed" else layout
    # kinds are called after their place in the stack, which a reader names anew
    plain = replace(
        kept, stages=tuple(replace(stage, kinds={}) for stage in kept.stages) if runs else kept.stages
    )
    return replace(plain, savers=()) if asked.training.moment_bytes == 2 else plain


def unsaid(trip: Trip, back: TrainingSpec) -> dict[str, Any]:
    """Return the training numbers that the file does not hold; the export's notes name each."""
    if to_framework(trip.job) in HOLDS_TRAINING:
        return {}
    said = " ".join(trip.job.notes)
    mine, lost = trip.asked.training, {}
    for field, words in (
        ("flash", "keeps its scores"),
        ("dropout", "dropout"),
        ("moment_bytes", "moments of 2"),
        ("fp8_recipe", "fp8 scales"),
    ):
        if getattr(mine, field) != getattr(back, field) and words in said:
            lost[field] = getattr(back, field)
    return lost


def to_framework(job: ExportedJob) -> str:
    """Return the name that a job's trainer is exported under."""
    return {"megatron": "megatron-lm"}.get(job.framework.value, job.framework.value)


def without_words(name: str) -> bool:
    """Whether a model mixes tokens by linear or sparse attention, for which no writer has words."""
    model = workload(name).model
    shapes = [shape for run in model.runs for shape in run.block]
    return model.indexer is not None or any(shape.mixer is not Mixer.ATTENTION for shape in shapes)


BUILD_ALL = ("megatron-lm", "megatron-bridge", "deepspeed", "accelerate")
HOLDS_TRAINING = ("megatron-lm", "megatron-bridge", "megatron-deepspeed")
TOLERANCE = {"bloom-176b": 0.01}
"""The norm behind the embedding of BLOOM is in no trainer's words."""


def faults(asked: Workload, layout: Layout, to: str, version: str | None, run: Any) -> list[str]:
    """Return the rules that a launch breaks."""
    framework = find_framework(to)
    assert framework is not None
    ctx = make_context(asked.model, asked.training, load_cluster(CLUSTER), framework, version, run)
    return [str(fault) for fault in find_faults(layout, ctx)]


def step_time(asked: Workload, layout: Layout, to: str, software: str | None, preset: Any) -> float:
    """Price a layout in seconds a step."""
    framework = find_framework(to)
    assert framework is not None
    cost = build_cost_model(
        asked.model,
        asked.training,
        load_cluster(CLUSTER),
        framework=framework,
        software=software,
        preset=preset,
    )
    return estimate(cost, layout).step_time_s


@pytest.mark.parametrize(("to", "version", "file"), TARGETS)
@pytest.mark.parametrize("name", [*model_names(), *ADDED])
def test_what_comes_back_is_the_plan(
    name: str, to: str, version: str | None, file: str, tmp_path: Path
) -> None:
    """With and without context parallelism; what a trainer can't run it refuses."""
    for cp in (1, 2):
        trip = exported(name, to, version, cp, tmp_path, file)
        assert trip is not None or to not in BUILD_ALL or without_words(name)
        if trip is not None:
            assert_same_plan(trip, to, version)


STAGED = ("llama3-8b", "qwen3-30b-a3b", "windows-between", "latent")
"""Models of the plain run; ``--long`` takes all."""


def of_sizes_alone(model: ModelSpec) -> bool:
    """Whether nothing but sizes tells a model from Llama's first."""
    run, *others = model.runs
    names = ("hidden", "heads", "kv_heads", "head_dim", "vocab", "rope_base", "norm_epsilon")
    sizes = {name: getattr(model, name) for name in names}
    block = (LayerShape(ffn=run.block[0].ffn),)
    plain = ModelSpec(name=model.name, runs=(replace(run, block=block),), **sizes)
    return not others and plain == replace(model, published_parameters=None)


def has_stages(name: str, to: str, version: str | None, file: str, folder: Path, pp: int, vp: int) -> None:
    """Write and read back one pipeline of unequal stages."""
    trip = exported(name, to, version, 1, folder, file, pp, vp)
    model = workload(name).model
    # a model of sizes alone has words with every trainer
    assert trip is not None or model.layers < 2 * pp * vp or not of_sizes_alone(model)
    if trip is not None:
        # DeepSpeed's stages are made by a model's code: Megatron-DeepSpeed's is written
        assert_same_plan(
            trip, "megatron-deepspeed" if to == "deepspeed" and trip.layout.pp > 1 else to, version
        )


@pytest.mark.parametrize(("pp", "vp"), [(4, 1), (4, 2)])
@pytest.mark.parametrize(("to", "version", "file"), TARGETS)
@pytest.mark.parametrize("name", STAGED)
def test_unequal_stages_come_back(
    name: str, to: str, version: str | None, file: str, pp: int, vp: int, tmp_path: Path
) -> None:
    """Stages, chunks and price of a pipeline whose stages differ, through every trainer's words for them."""
    has_stages(name, to, version, file, tmp_path, pp, vp)


@pytest.mark.parametrize(("pp", "vp"), [(4, 1), (4, 2), (8, 1), (2, 3)])
@pytest.mark.parametrize(("to", "version", "file"), TARGETS)
@pytest.mark.parametrize("name", [*model_names(), *ADDED])
def test_unequal_stages_of_every_model_come_back(
    name: str, to: str, version: str | None, file: str, pp: int, vp: int, tmp_path: Path
) -> None:
    """All models, four shapes of pipelines."""
    has_stages(name, to, version, file, tmp_path, pp, vp)


def test_pipelines_are_not_left_out(tmp_path: Path) -> None:
    """The trainers with pipelines write the unequal stages that are asked for, chunks where they have them."""
    for to, version, file in TARGETS[:4]:
        trip = exported("llama3-8b", to, version, 1, tmp_path, file, 4, 2)
        assert trip is not None
        assert (trip.layout.pp, trip.layout.vp) == (4, 2)
        assert len({stage.layers for stage in trip.layout.stages}) > 1, to
