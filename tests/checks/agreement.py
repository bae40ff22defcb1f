"""Random layouts and questions for every trainer that can be exported to, and what must agree about them.

Shared by tests (some hundred layouts, some tens of questions) and ``benchmarks/agreement.py`` (thousands and hundreds).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.frameworks.switches import SWITCHES
from layoutopt.optimizer.interop.launch.complete import complete_layout, named_model
from layoutopt.optimizer.interop.launch.export import NotExpressible, export
from layoutopt.optimizer.interop.launch.target import context_of
from layoutopt.optimizer.interop.sources import import_text
from layoutopt.optimizer.solve.api import solve_layout
from layoutopt.optimizer.solve.judge import judge_layout
from layoutopt.optimizer.solve.plan import SolveOptions
from layoutopt.optimizer.space.check import check_layout
from layoutopt.optimizer.space.context import RunOptions
from layoutopt.optimizer.space.effective import effective
from layoutopt.optimizer.space.options import SpaceOptions
from layoutopt.optimizer.specs.canonical import to_plain
from layoutopt.optimizer.specs.document import Document
from layoutopt.optimizer.specs.errors import InputError
from layoutopt.optimizer.specs.layout import Layout, Recompute, Switches
from layoutopt.optimizer.specs.layout_file import read_layout
from layoutopt.optimizer.specs.loading import load_cluster
from layoutopt.optimizer.specs.model import LayerShape, Mlp, ModelSpec, MoeSpec, Run, TrainingSpec
from layoutopt.optimizer.specs.stage_split import build_stages, model_order
from layoutopt.optimizer.specs.vocabulary import (
    DEFAULT_MESH_ORDER,
    OP_MODULE,
    RECOMPUTE_MODULES,
    Granularity,
    Precision,
    Saver,
    Schedule,
    Verdict,
)
from layoutopt.optimizer.specs.workload import Workload

if TYPE_CHECKING:
    from layoutopt.optimizer.interop.records import ExportedJob, ImportedJob
    from layoutopt.optimizer.space.context import Context
    from layoutopt.optimizer.specs.cluster import ClusterSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Trainer:
    """A framework's release, the file that its exporter writes, and how that is read."""

    framework: Framework
    release: str
    kind: str
    file: str
    reads_model: bool = False

    def __str__(self) -> str:
        return f"{self.framework.value} {self.release}"


_MEGATRON = [
    Trainer(
        framework=Framework.MEGATRON,
        release=f"core {release}",
        kind="megatron-args",
        file="launch.sh",
        reads_model=True,
    )
    for release in (
        "0.5",
        "0.7",
        "0.8",
        "0.9",
        "0.10",
        "0.11",
        "0.12",
        "0.13",
        "0.14",
        "0.15",
        "0.16",
        "0.19",
    )
]
_BRIDGE = [
    Trainer(framework=Framework.MEGATRON_BRIDGE, release=release, kind="bridge-command", file="launch.sh")
    for release in ("0.3", "0.6")
]
_OTHERS = [
    Trainer(framework=framework, release=release, kind=kind, file=file, reads_model=reads_model)
    for framework, release, kind, file, reads_model in (
        (Framework.TORCHTITAN, "era A", "torchtitan-toml", "torchtitan.toml", False),
        (Framework.TORCHTITAN, "era C", "torchtitan-python", "layoutopt_config.py", False),
        (Framework.MEGATRON_DEEPSPEED, "2025-07", "megatron-deepspeed", "launch.sh", True),
        (Framework.DEEPSPEED, "0.19.6", "deepspeed-json", "ds_config.json", False),
        (Framework.DEEPSPEED, "0.19.8", "deepspeed-json", "ds_config.json", False),
        (Framework.NANOTRON, "2026-04", "nanotron-yaml", "config.yaml", True),
        (Framework.ACCELERATE, "1.15", "accelerate-yaml", "accelerate.yaml", False),
    )
]
TRAINERS = (*_MEGATRON, *_BRIDGE, *_OTHERS)


def pick(rng: np.random.Generator, options: Any) -> Any:
    """Choose one of a sequence as it is, not as numpy's type."""
    return options[int(rng.integers(len(options)))]


def dense_model(layers: int, kv_heads: int = 8, **changes: Any) -> ModelSpec:
    """A small Llama-like model."""
    model = ModelSpec(
        name="tiny",
        hidden=1024,
        heads=16,
        kv_heads=kv_heads,
        head_dim=64,
        vocab=32_000,
        runs=(Run(name="dense", block=(LayerShape(ffn=2816),), count=layers),),
    )
    return replace(model, **changes)


def dense_then_moe(layers: int, mtp_layers: int = 1) -> ModelSpec:
    """A dense layer first, then experts, and a prediction layer."""
    runs = (
        Run(name="dense", block=(LayerShape(ffn=2816),), count=1),
        Run(name="moe", block=(LayerShape(mlp=Mlp.MOE),), count=layers - 1),
    )
    moe = MoeSpec(experts=16, top_k=2, ffn=512, shared_ffn=512)
    return replace(dense_model(layers), runs=runs, moe=moe, mtp_layers=mtp_layers)


def windowed(layers: int) -> ModelSpec:
    """A period of a windowed and a full layer, and a last layer of its own where the number is odd."""
    local, whole = LayerShape(ffn=2816, window=512), LayerShape(ffn=2816)
    runs = [Run(name="pattern", block=(local, whole), count=layers // 2)]
    runs += [Run(name="dense", block=(whole,), count=1)] * (layers % 2)
    return replace(dense_model(layers), runs=tuple(runs))


def random_model(rng: np.random.Generator, layers: int) -> ModelSpec:
    """Dense, dense then experts, experts alone, a periodic pattern."""
    sparse = Run(name="moe", block=(LayerShape(mlp=Mlp.MOE),), count=layers)
    alone = replace(dense_model(layers), runs=(sparse,), moe=MoeSpec(experts=8, top_k=2, ffn=1408))
    models = [
        dense_model(layers),
        dense_model(layers, 2),
        dense_model(layers, qkv_bias=True),
        dense_model(layers, tied_embeddings=True),
        dense_then_moe(max(layers, 2)),
        dense_then_moe(max(layers, 2), mtp_layers=0),
        alone,
        windowed(layers),
    ]
    return models[int(rng.integers(len(models)))]


def random_layout(rng: np.random.Generator) -> tuple[Layout, ModelSpec]:
    """Any layout, launchable somewhere or not."""
    pp, vp = pick(rng, [1, 2, 3, 4]), pick(rng, [1, 1, 2, 3])
    slots = pp * vp
    layers = int(rng.integers(max(slots, 2), max(slots, 2) + 12))
    if rng.random() < 0.5:
        layers = slots * max(int(rng.integers(1, 4)), 2)
    model = random_model(rng, layers)
    cuts = sorted(rng.choice(np.arange(1, layers), slots - 1, replace=False).tolist())
    counts = np.diff([0, *cuts, layers]).tolist()
    if rng.random() < 0.7:
        counts = [layers // slots + (place < layers % slots) for place in range(slots)]
    named = [schedule for schedule in Schedule if schedule is not Schedule.NONE]
    usual = Schedule.INTERLEAVED if vp > 1 else Schedule.ONE_F_ONE_B
    schedule = Schedule.NONE if pp == 1 else usual if rng.random() < 0.6 else pick(rng, named)
    recompute, redone = _random_recompute(rng, counts)
    order = model_order(pp, vp, schedule)
    listed, again = [0] * slots, [0] * slots
    for position, entry in enumerate(order):
        listed[entry], again[entry] = counts[position], redone[position]
    stages = build_stages(model, listed, pp, schedule, 0)
    tp, cp, dp = pick(rng, [1, 1, 2, 4]), pick(rng, [1, 1, 2]), pick(rng, [1, 2, 4, 8])
    sharded = [None, None, *(n for n in (2, 4) if dp * cp % n == 0)]
    layout = Layout(
        tp=tp,
        sp=bool(rng.random() < 0.5),
        cp=cp,
        pp=pp,
        vp=vp,
        ep=pick(rng, [1, 2, 4]) if model.is_moe else 1,
        etp=pick(rng, [1, tp]) if model.is_moe else 1,
        dp=dp,
        zero=pick(rng, [0, 1, 1, 2, 3]),
        hsdp_shard=pick(rng, sharded),
        micro_batch=pick(rng, [1, 2]),
        micro_batches=pick(rng, [4, 8, 12]),
        recompute=recompute,
        schedule=schedule,
        mesh_order=pick(rng, [DEFAULT_MESH_ORDER, DEFAULT_MESH_ORDER, "tp-cp-ep-pp-dp", "pp-tp-cp-ep-dp"]),
        precision=pick(rng, [Precision.BF16, Precision.BF16, Precision.BF16, *Precision]),
        savers=tuple(sorted(saver for saver in Saver if rng.random() < 0.1)),
        switches=_random_switches(rng),
        stages=tuple(replace(stage, recomputed=again[entry]) for entry, stage in enumerate(stages)),
    )
    return layout, model


def _random_switches(rng: np.random.Generator) -> Switches:
    """Launch switches, in most layouts none or one; those that change numbers are left alone."""
    stated: dict[str, Any] = {
        switch.name: pick(rng, switch.values)
        for switch in SWITCHES
        if not switch.changes_numbers and rng.random() < 0.1
    }
    return Switches(**stated)


def _random_recompute(rng: np.random.Generator, counts: list[int]) -> tuple[Recompute, list[int]]:
    """A recomputation and the layers that each stage repeats in whole, in model order."""
    granularity = pick(rng, [Granularity.NONE, *Granularity])
    if granularity is Granularity.SELECTIVE:
        modules = [m for m in (*RECOMPUTE_MODULES, OP_MODULE) if rng.random() < 0.25] or ["core_attn"]
        return Recompute(granularity=granularity, modules=tuple(sorted(modules))), [0] * len(counts)
    if granularity is Granularity.NONE:
        return Recompute(), [0] * len(counts)
    depth = int(rng.integers(0, 4))
    kind = rng.random()
    redone = [min(count, depth) if kind < 0.4 else count for count in counts]
    if kind > 0.8:
        redone = [int(rng.integers(0, count + 1)) for count in counts]
    return Recompute(granularity=granularity, group=pick(rng, [0, 0, 1, 2, 3])), redone


def workload_of(model: ModelSpec, layout: Layout, **changes: Any) -> Workload:
    """The run that the layout's batch belongs to."""
    batch = layout.dp * layout.micro_batch * layout.micro_batches
    training = TrainingSpec(sequence_length=2048, global_batch=batch, precision=layout.precision)
    return Workload(model=model, training=replace(training, **changes))


def read_back(trainer: Trainer, job: ExportedJob) -> ImportedJob:
    """Import an exported file; what only the command line or the trainer's script knows is given along."""
    layout = job.layout
    if trainer.framework is Framework.DEEPSPEED and layout.pp > 1:  # launched by Megatron-DeepSpeed
        trainer = replace(trainer, kind="megatron-deepspeed", file="launch.sh")
    options: dict[str, Any] = {"gpus": layout.gpus} if trainer.kind == "deepspeed-json" else {}
    read: ImportedJob = import_text(job.files[trainer.file], "", trainer.kind, **options).value
    if trainer.kind == "accelerate-yaml":
        batch: dict[str, Any] = {"micro_batch": layout.micro_batch, "micro_batches": layout.micro_batches}
        read = replace(read, layout=replace(read.layout, **batch))
    if trainer.kind == "deepspeed-json":
        read = replace(read, layout=replace(read.layout, recompute=layout.recompute))
    return read


def disagreement_on_layout(trainer: Trainer, layout: Layout, model: ModelSpec, cluster: ClusterSpec) -> str:
    """Say how rules, exporter and importer disagree about a layout; an empty string where they don't."""
    workload = workload_of(model, layout)
    options = RunOptions(processes=layout.gpus)
    asked = (model, workload.training, cluster, trainer.framework, trainer.release, options)
    ctx = context_of(layout, workload, cluster, trainer.framework, trainer.release)
    stated, broken = (check_layout(one, *asked) for one in (layout, effective(layout, ctx)))
    if broken and not stated:
        return f"valid as stated, but without settings of no effect it breaks {broken[0]}"
    try:
        job = export(layout, workload, cluster, trainer.framework.value, version=trainer.release)
    except NotExpressible as error:
        if not broken:
            return f"valid by the rules, export refuses: {error}"
        fault = _nearest_fault(error.nearest, layout, asked)
        if fault or error.nearest is None:
            return fault
        job = export(error.nearest, workload, cluster, trainer.framework.value, version=trainer.release)
        broken = ()
    if broken:
        return f"export writes what breaks {broken[0]}"
    return _round_trip_fault(trainer, job, model, ctx)


def _nearest_fault(nearest: Layout | None, layout: Layout, asked: tuple[Any, ...]) -> str:
    """A layout that is offered is valid, on the same GPUs, with the same batch."""
    if nearest is None:
        return ""
    broken = check_layout(nearest, *asked)
    if broken:
        return f"the nearest layout breaks {broken[0]}"
    same = nearest.gpus == layout.gpus and _batch(nearest) == _batch(layout)
    return "" if same else f"the nearest layout has {nearest.gpus} GPUs and a batch of {_batch(nearest)}"


def _batch(layout: Layout) -> int:
    return layout.dp * layout.micro_batch * layout.micro_batches


def _round_trip_fault(trainer: Trainer, job: ExportedJob, model: ModelSpec, ctx: Context) -> str:
    """What was written reads back as the same layout and model."""
    read = read_back(trainer, job)
    back = effective(
        complete_layout(replace(read, model=None), model=model), ctx
    )  # stages in the model's own words
    if ctx.training.moment_bytes == 2:  # a launch has one word for the model file's moments and for the saver
        kept = (saver for saver in back.savers if saver is not Saver.BF16_MOMENTS)
        back = replace(back, savers=tuple(kept))
    if back != job.layout:
        return f"export wrote {job.layout}, import reads {back}"
    if trainer.reads_model and (found := _model_fault(named_model(read), model)):
        return found
    return ""


def _model_fault(found: ModelSpec | None, model: ModelSpec) -> str:
    """Compare all that decides a price; names are not written."""
    if found is None:
        return "import reads no model"
    if (found.qkv_bias or found.attention_bias) != (
        model.qkv_bias or model.attention_bias
    ):  # all biases include these
        return f"import reads qkv_bias {found.qkv_bias}, not {model.qkv_bias}"
    for name in ("layers", "hidden", "heads", "kv_heads", "head_dim", "gated", "tied_embeddings", "moe", "mla",
                 "linear", "indexer", "attention_gate", "mtp_layers", "rope_base", "norm_epsilon"):  # fmt: skip
        if getattr(found, name) != getattr(model, name):
            return f"import reads {name} {getattr(found, name)}, not {getattr(model, name)}"
    shapes, wanted = ([s for run in m.runs for s in run.block * run.count] for m in (found, model))
    return "" if shapes == wanted else "import reads other layers"


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A model on a cluster for a trainer; ``idle`` allows GPUs to be left out."""

    trainer: Trainer
    workload: Workload
    cluster: ClusterSpec
    idle: bool

    def __str__(self) -> str:
        kinds = "+".join(run.name for run in self.workload.model.runs)
        return f"{self.trainer}: {self.workload.model.layers} layers ({kinds}) on {self.cluster.name}, idle {self.idle}"


def random_question(rng: np.random.Generator, trainer: Trainer) -> Question:
    """A small model on 4 to 24 GPUs, memory between plenty and little."""
    gpus = pick(rng, [4, 6, 7, 8, 12, 16, 24])
    model = random_model(rng, int(rng.integers(3, 14)))
    precision = pick(rng, [Precision.BF16, Precision.BF16, Precision.FP8, Precision.FP16])
    training = TrainingSpec(
        sequence_length=pick(rng, [2048, 8192]),
        global_batch=pick(rng, [24, 32, 48]) * pick(rng, [1, 4]),
        precision=precision,
    )
    cluster = load_cluster(f"h100x{gpus}")
    gpu = replace(cluster.gpu, memory_bytes=cluster.gpu.memory_bytes * float(rng.choice([1.0, 0.12])))
    return Question(
        trainer=trainer,
        workload=Workload(model=model, training=training),
        cluster=replace(cluster, gpu=gpu),
        idle=bool(rng.random() < 0.3),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """What came of a question: ``fault`` is empty where everything agrees; ``solved`` is False where nothing fits."""

    solved: bool
    fault: str = ""


def answer(question: Question) -> Answered:
    """Solve, evaluate, export and import a question and compare."""
    trainer, workload, cluster = question.trainer, question.workload, question.cluster
    space = SpaceOptions(software=trainer.release, allow_idle=0.4 if question.idle else None)
    plan = solve_layout(workload, cluster, SolveOptions(framework=trainer.framework, space=space))
    if plan.layout is None or plan.estimate is None:
        return Answered(solved=False)
    stated = read_layout(Document({"layout": to_plain(plan.layout), "idle_gpus": plan.idle_gpus}, ""))
    judged = judge_layout(workload, cluster, stated, framework=trainer.framework, software=trainer.release)
    if judged.verdict in (Verdict.INVALID, Verdict.DOES_NOT_FIT) or judged.estimate is None:
        return Answered(solved=True, fault=f"evaluate says {judged.verdict}: {judged.reasons}")
    if judged.estimate.step_time_s != plan.estimate.step_time_s:
        prices = f"{judged.estimate.step_time_s!r} s, solved {plan.estimate.step_time_s!r} s"
        return Answered(solved=True, fault=f"evaluate prices {prices}")
    return Answered(solved=True, fault=_export_fault(question, plan.layout, plan.estimate.step_time_s))


def _export_fault(question: Question, layout: Layout, step_time_s: float) -> str:
    """The exported plan is the solved layout, reads back as it, and has its price."""
    trainer, workload, cluster = question.trainer, question.workload, question.cluster
    try:
        job = export(layout, workload, cluster, trainer.framework.value, version=trainer.release)
    except InputError as error:
        return f"export refuses: {error}"
    ctx = context_of(layout, workload, cluster, trainer.framework, trainer.release)
    if replace(job.layout, stages=()) != replace(effective(layout, ctx), stages=()):
        return f"export writes {job.layout} for {layout}"
    fault = _round_trip_fault(trainer, job, workload.model, ctx)
    if fault:
        return fault
    back = complete_layout(read_back(trainer, job), model=workload.model)
    judged = judge_layout(
        workload,
        cluster,
        replace(back, savers=layout.savers),
        framework=trainer.framework,
        software=trainer.release,
        run_options=RunOptions(processes=layout.gpus),
    )
    if judged.estimate is None or judged.estimate.step_time_s != step_time_s:
        price = judged.estimate.step_time_s if judged.estimate else None
        return f"read back it costs {price!r} s, solved {step_time_s!r} s"
    return f"read back it breaks {judged.broken[0]}" if judged.broken else ""
