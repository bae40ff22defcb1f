"""Megatron-DeepSpeed launch scripts: Megatron's flags with DeepSpeed's own axes on top."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.interop.launch.command import read_launch
from layoutopt.optimizer.interop.launch.flags import ArgFields
from layoutopt.optimizer.interop.megatron.entries import require_gpt_entry
from layoutopt.optimizer.interop.megatron.read import left_open, missing_values, stated_options
from layoutopt.optimizer.interop.megatron.read_layout import megatron_layout, megatron_training
from layoutopt.optimizer.interop.megatron.read_model import megatron_model
from layoutopt.optimizer.interop.reading import Fields, importer, parse_json, shorten
from layoutopt.optimizer.interop.records import ImportedJob
from layoutopt.optimizer.interop.shell.values import has_hole, show, without_holes
from layoutopt.optimizer.specs.errors import input_error
from layoutopt.optimizer.specs.layout import Recompute
from layoutopt.optimizer.specs.vocabulary import CpComm, Granularity, Schedule

if TYPE_CHECKING:
    from layoutopt.optimizer.interop.launch.command import LaunchCommand
    from layoutopt.optimizer.interop.shell.record import Outside
    from layoutopt.optimizer.specs.partial_layout import PartialLayout

MARKS = (
    "--deepspeed", "--deepspeed_config", "--zero-stage", "--no-pipeline-parallel", "--ds-sequence-parallel-size",
)  # fmt: skip

FLASH = (
    "use_flash_attn", "use_flash_attn_v1", "use_flash_attn_v2", "use_flash_attn_triton", "use_flash_attn_builder",
)  # fmt: skip
"""Switches without any of which the attention scores are kept (deepspeedai/Megatron-DeepSpeed megatron/arguments.py)."""


@importer
def import_megatron_deepspeed(text: str, file: str = "", outside: Outside | None = None) -> ImportedJob:
    """Read a script that starts Megatron-DeepSpeed's ``pretrain_gpt.py``.

    The ZeRO stage is ``--zero-stage``; a JSON that the script itself writes must agree, or states it alone.
    """
    flags = (*MARKS, "--tensor-model-parallel-size", "--num-layers")
    return read_launch(text, flags, lambda command: _job(command, file), file, outside)


def _job(command: LaunchCommand, file: str) -> ImportedJob:
    require_gpt_entry(command.words, file)
    data = command.flags
    zero_open = _read_json(data, command, file)
    notes: list[str] = []
    fields = command.fields(file=file, data=_as_megatron(data, notes, file))
    gpus = command.gpus
    model = megatron_model(fields, notes, command_line=True)
    layout = megatron_layout(fields, model, gpus, notes, etp_default="1")
    layout = left_open(_with_deepspeed_axes(layout, fields, model is not None and model.is_moe), fields)
    if zero_open and fields.on("deepspeed"):
        layout = replace(layout, zero=None)
    training = replace(
        megatron_training(
            fields, layout, notes, fp8_key="fp8_format", fp4_key="fp4_format", command_line=True
        ),
        # the JSON's data_types decide, not Megatron's flag
        grad_bytes=None,
        pad_vocab=True,
        flash=any(fields.on(name) for name in FLASH),
    )
    options = stated_options(fields, layout, notes, command_line=True)
    ulysses = fields.count("ds_sequence_parallel_size") > 1
    offloaded = fields.on("cpu_optimizer")
    missing = missing_values(fields, model, layout, training, gpus)
    fields.name_unread(notes)
    return ImportedJob(
        framework=Framework.MEGATRON_DEEPSPEED,
        layout=layout,
        training=training,
        options=replace(
            options, cp_comm=CpComm.A2A if ulysses else None, optimizer_offload=1.0 if offloaded else None
        ),
        model=model,
        gpus=gpus,
        notes=tuple(notes),
        missing=(*missing, *([f"zero: {zero_open}"] if layout.zero is None and zero_open else ())),
    )


def _read_json(data: dict[str, Any], command: LaunchCommand, file: str) -> str:
    """Take the ZeRO stage from the JSON that a script writes or names; return why it is open, empty where it is not."""
    name = data.get("deepspeed_config")
    if not isinstance(name, str):
        return ""
    text = command.text_of(name)
    if text is None:
        return "" if "zero_stage" in data else f"is in {shorten(show(name))}, which was not found"
    settings = Fields(parse_json(without_holes(text, "null"), file), file=file)
    section = settings.section("zero_optimization")
    inside = section.integer("stage", most=3)
    if inside is None and "stage" in section:
        return f"is open in {shorten(show(name))}"
    inside = inside or 0
    stated = data.setdefault("zero_stage", inside)
    if not (isinstance(stated, str) and has_hole(stated)) and stated != inside:
        what = f"--zero-stage {shorten(stated)} and stage {inside} of the JSON differ"
        raise input_error(what, "the same stage in both", key="--zero-stage", file=file)
    return ""


def _as_megatron(data: dict[str, Any], notes: list[str], file: str) -> dict[str, Any]:
    """Rename DeepSpeed's flags to the Megatron-LM names that the shared readers know."""
    fields = ArgFields(data, file=file)
    renamed = dict(data)
    if str(data.get("normalization", "")).lower() == "rmsnorm":
        renamed["normalization"] = "RMSNorm"
    if fields.on("no_pipeline_parallel") and fields.count("pipeline_model_parallel_size") > 1:
        raise fields.fail("no_pipeline_parallel", "excludes a pipeline of more than one stage", "pp=1")
    if renamed.pop("num_layers_per_virtual_pipeline_stage", None) is not None:
        notes.append("virtual stages are parsed, but DeepSpeed's pipeline engine does not interleave: vp=1")
    # The flag of before --recompute-granularity: all layers, one by one.
    if "checkpoint_activations" in data and "recompute_granularity" not in data:
        renamed |= {"recompute_granularity": "full", "recompute_method": "uniform"}
    experts = data.get("num_experts")
    if isinstance(experts, list):
        if len(set(map(str, experts))) != 1:
            what = "experts differ from layer to layer"
            raise input_error(what, "one number", key="--num-experts", file=file)
        renamed["num_experts"] = experts[0]
    if renamed.get("num_experts") in (None, 1):
        renamed.pop("num_experts", None)
    elif fields.integer("expert_interval", least=1) != 1:
        # arguments.py: every second layer has experts unless --expert-interval says otherwise, from the first on
        interval = fields.integer("expert_interval", least=1) or 2
        layers = fields.integer("num_layers", least=1, most=10_000) or 0
        renamed["moe_layer_freq"] = [int((index + 1) % interval == 0) for index in range(layers)]
    ulysses = fields.count("ds_sequence_parallel_size")
    if ulysses > 1 and fields.on("sequence_parallel"):
        raise fields.fail("ds_sequence_parallel_size", "excludes --sequence-parallel")
    # To the shared reader Ulysses is context parallelism; that it communicates by all-to-all is said in the options.
    renamed["context_parallel_size"] = ulysses
    renamed.pop("cp_comm_type", None)
    return renamed


def _with_deepspeed_axes(layout: PartialLayout, fields: ArgFields, sparse: bool) -> PartialLayout:
    stage = fields.number("zero_stage")
    zero = 0 if not fields.on("deepspeed") else 1 if stage is None else int(stage)
    if not 0 <= zero <= 3:
        raise fields.fail("zero_stage", f"{zero} is not a ZeRO stage", "0 to 3")
    schedule = Schedule.ZB_H1 if fields.on("enable_zbh1_pipeline") and layout.pp != 1 else layout.schedule
    recompute = layout.recompute
    if recompute is not None and recompute.granularity is Granularity.SELECTIVE:
        recompute = Recompute(granularity=Granularity.SELECTIVE, modules=("core_attn",))
    tensor_experts = fields.on("enable_expert_tensor_parallelism") and sparse
    return replace(
        layout,
        zero=zero,
        hsdp_shard=None,
        schedule=schedule,
        recompute=recompute,
        etp=layout.tp if tensor_experts else 1,
    )
