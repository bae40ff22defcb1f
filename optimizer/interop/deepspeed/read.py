"""DeepSpeed JSON configurations (with Hugging Face models, or beside a Megatron-DeepSpeed script)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.interop.launch.optimizers import named_optimizer
from layoutopt.optimizer.interop.reading import MAX_DEGREE, Fields, importer, parse_json
from layoutopt.optimizer.interop.records import ImportedJob, JobOptions, JobTraining
from layoutopt.optimizer.specs.errors import input_error
from layoutopt.optimizer.specs.partial_layout import PartialLayout
from layoutopt.optimizer.specs.vocabulary import DEFAULT_MESH_ORDER, CpComm, Precision

if TYPE_CHECKING:
    from typing import Any

TOP_KEYS = (
    "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "zero_optimization",
)  # fmt: skip


class _DeepSpeedFields(Fields):
    """DeepSpeed's fields: ``auto`` leaves the value to the trainer and counts as absent."""

    def find(self, *keys: str) -> tuple[str, Any]:
        """Find a value; DeepSpeed writes "auto" for what it leaves open."""
        key, value = super().find(*keys)
        return key, None if value == "auto" else value

    def section(self, *keys: str) -> _DeepSpeedFields:
        """Return a section read in the same way."""
        inner = super().section(*keys)
        own = _DeepSpeedFields(inner.data, file=inner.file, prefix=inner.prefix)
        self.sections.append(own)
        return own


@importer
def import_deepspeed(text: str, file: str = "", gpus: int | None = None) -> ImportedJob:
    """Read a DeepSpeed JSON; the model, and the number of GPUs unless given, are not in it.

    Raises ``InputError`` where no key is DeepSpeed's.
    """
    fields = _DeepSpeedFields(parse_json(text, file), file=file)
    if not any(key in fields for key in TOP_KEYS):
        raise input_error("no DeepSpeed settings", "any of " + ", ".join(TOP_KEYS), file=file)
    notes: list[str] = []
    micro_batch, accumulation, batch, dp = _batch(fields)
    tp = fields.section("tensor_parallel").count("autotp_size")
    cp = fields.count("sequence_parallel_size")
    zero, shard = _zero(fields, notes)
    stages = _stages(fields, zero, notes)
    if dp is None and gpus is not None and stages is not None and gpus % (tp * cp * stages) == 0:
        dp = gpus // (tp * cp * stages)
    device = fields.section("zero_optimization").section("offload_param").text("device")
    if device in {"cpu", "nvme"}:
        said = "parameters in host memory are not modelled; memory is overestimated"
        notes.append(f"offload_param {device}: {said}")
    layout = PartialLayout(
        tp=tp,
        sp=False,
        cp=cp,
        pp=stages,
        vp=1,
        ep=_experts(fields),
        etp=1,
        dp=dp,
        zero=zero,
        hsdp_shard=shard,
        micro_batch=micro_batch,
        micro_batches=accumulation,
        mesh_order=DEFAULT_MESH_ORDER,
    )
    world = gpus if gpus is not None else dp * tp * cp * stages if dp is not None and stages else None
    whole_batch = batch
    if batch is None and dp is not None and micro_batch and accumulation:
        whole_batch = dp * micro_batch * accumulation
    job = ImportedJob(
        framework=Framework.DEEPSPEED,
        layout=layout,
        training=JobTraining(
            global_batch=whole_batch,
            precision=_precision(fields),
            grad_bytes=_grad_bytes(fields),
            optimizer=named_optimizer(Framework.DEEPSPEED, fields.section("optimizer").text("type"), notes),
            pad_vocab=False,
        ),
        options=_options(fields, zero, cp),
        gpus=world,
        notes=tuple(notes),
        missing=_missing(layout, batch, world),
    )
    fields.name_unread(notes)
    return replace(job, notes=tuple(notes))


def _batch(fields: Fields) -> tuple[int | None, int | None, int | None, int | None]:
    """Micro-batch, accumulation steps, global batch and dp: train_batch = micro * accumulation * dp."""
    batch = fields.integer("train_batch_size", least=1)
    micro_batch = fields.integer("train_micro_batch_size_per_gpu", least=1, most=MAX_DEGREE)
    accumulation = fields.integer("gradient_accumulation_steps", least=1, most=MAX_DEGREE)
    # Any two of three leave dp open: DeepSpeed derives the third from the number of processes (runtime/config.py).
    if batch is None or micro_batch is None or accumulation is None:
        return micro_batch, accumulation, batch, None
    if batch % (micro_batch * accumulation):
        what = f"{batch} is not a multiple of micro-batch {micro_batch} * accumulation {accumulation}"
        raise fields.fail("train_batch_size", what)
    return micro_batch, accumulation, batch, batch // (micro_batch * accumulation)


def _zero(fields: Fields, notes: list[str]) -> tuple[int, int | None]:
    section = fields.section("zero_optimization")
    stage = section.integer("stage", most=3) or 0
    shard = section.integer("mics_shard_size", least=-1)
    secondary = section.integer("zero_hpz_partition_size", least=1) or 1
    if secondary > 1:
        notes.append(f"zero_hpz_partition_size {secondary}: the second weight shard is not modelled")
    # MiCS shards parameters, which stage 3 alone does (deepspeed/runtime/zero/mics.py).
    return stage, shard if stage == 3 and shard is not None and shard > 0 else None


def _stages(fields: Fields, zero: int, notes: list[str]) -> int | None:
    """Return the pipeline's stages: in the model's code unless the file says how many; ZeRO-2 and 3 exclude them."""
    if zero >= 2:  # refused by the engine (deepspeed/runtime/pipe/engine.py)
        return 1
    if "pipeline" not in fields:
        notes.append("assumed: one stage, the file has no pipeline section; stages are in the model's code")
        return 1
    stated = fields.section("pipeline").raw("stages")
    return stated if isinstance(stated, int) and not isinstance(stated, bool) and stated > 0 else None


def _experts(fields: Fields) -> int:
    section = fields.section("expert_parallel")
    return section.count("autoep_size") if section.on("enabled") else 1


def _precision(fields: Fields) -> Precision | None:
    bf16, fp16 = (fields.section(name).data.get("enabled") for name in ("bf16", "fp16"))
    if bf16 is True and fp16 is True:
        raise fields.fail("fp16.enabled", "bf16 and fp16 exclude each other")
    if fp16 is True:
        return Precision.FP16
    return Precision.BF16 if bf16 is True else None


def _grad_bytes(fields: Fields) -> int | None:
    kind = fields.section("data_types").text("grad_accum_dtype")
    return {"fp32": 4, "bf16": 2, "fp16": 2}.get(kind or "")


def _options(fields: Fields, zero: int, cp: int) -> JobOptions:
    section = fields.section("zero_optimization")
    overlap = section.flag("overlap_comm")
    offload = section.section("offload_optimizer")
    ratio = offload.number("ratio")
    on_host = offload.text("device") in {"cpu", "nvme"}
    return JobOptions(
        dp_overlap=zero == 3 if overlap is None else overlap,  # null means on for stage 3 only
        cp_comm=CpComm.A2A if cp > 1 else None,
        optimizer_offload=(1.0 if ratio is None else ratio) if on_host else None,
        activation_offload=fields.section("activation_checkpointing").flag("cpu_checkpointing"),
    )


def _missing(layout: PartialLayout, batch: int | None, world: int | None) -> tuple[str, ...]:
    known = {
        "the model (a DeepSpeed JSON has none)": None,
        "sequence length": None,
        "activation checkpointing (the model's code turns it on)": None,
        "train_micro_batch_size_per_gpu": layout.micro_batch,
        "pipeline stages (in the model's code)": layout.pp,
        "number of GPUs": world,
        "train_batch_size or gradient_accumulation_steps": batch or layout.micro_batches,
    }
    return tuple(name for name, value in known.items() if value is None)
