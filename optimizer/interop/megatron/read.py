"""Megatron-LM argument lists, launch scripts and argument dumps to a job."""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.interop.launch.command import read_launch
from layoutopt.optimizer.interop.launch.flags import ArgFields, split_flags
from layoutopt.optimizer.interop.megatron.entries import require_gpt_entry
from layoutopt.optimizer.interop.megatron.read_layout import (
    FIRST_LAYERS,
    LAST_LAYERS,
    LAYOUT_KEY,
    cp_groups,
    megatron_layout,
    megatron_options,
    megatron_training,
)
from layoutopt.optimizer.interop.megatron.read_model import megatron_model
from layoutopt.optimizer.interop.reading import Fields, importer, parse_yaml
from layoutopt.optimizer.interop.records import ImportedJob
from layoutopt.optimizer.specs.errors import input_error

if TYPE_CHECKING:
    from layoutopt.optimizer.interop.launch.command import LaunchCommand
    from layoutopt.optimizer.interop.records import JobOptions, JobTraining
    from layoutopt.optimizer.interop.shell.record import Outside
    from layoutopt.optimizer.specs.model import ModelSpec
    from layoutopt.optimizer.specs.partial_layout import PartialLayout

OWN_FLAGS = (
    "--tensor-model-parallel-size", "--pipeline-model-parallel-size", "--num-layers", "--micro-batch-size",
)  # fmt: skip
TEST_GPUS = 8
"""Default of tests/test_utils/recipes: one node of eight GPUs."""

AXIS_FLAGS = {
    "tp": ("tensor_model_parallel_size",),
    "sp": ("sequence_parallel",),
    "cp": ("context_parallel_size", "ds_sequence_parallel_size"),
    "pp": ("pipeline_model_parallel_size",),
    "vp": (
        "num_layers_per_virtual_pipeline_stage", "num_virtual_stages_per_pipeline_rank",
        "virtual_pipeline_model_parallel_size", LAYOUT_KEY,
    ),
    "ep": ("expert_model_parallel_size", "moe_expert_parallel_size"),
    "zero": (
        "use_distributed_optimizer", "use_megatron_fsdp", "use_custom_fsdp", "use_torch_fsdp2", "zero_stage",
    ),
    "micro_batch": ("micro_batch_size",),
    "recompute": ("recompute_granularity", "recompute_activations", "checkpoint_activations"),
}  # fmt: skip
"""Layout fields that mean something when no flag states them, and the flags that do."""

BESIDE_AXIS = {
    "vp": ("num_layers",),
    "zero": ("data_parallel_sharding_strategy",),
    "etp": ("expert_tensor_parallel_size",),
    "hsdp_shard": ("num_distributed_optimizer_instances",),
    "recompute": ("recompute_modules", "recompute_method"),
    "recompute_layers": ("recompute_num_layers",),
    "micro_batches": ("global_batch_size",),
    "split": (*FIRST_LAYERS, *LAST_LAYERS),
}
"""Flags that say more of an axis: where one is open, so is the axis."""

_DUMP_LINE = re.compile(r"^(?:\S+:\s*)?\s*([A-Za-z_]\w*) \.{2,} (.*)$")
_HEADER = re.compile(r"([a-z -]+) size: (\[[^\]]*\]|\w+)")
_PADDED = re.compile(r"> padded vocab \(size: (\d{1,12})\)")


@importer
def import_arguments(text: str, file: str = "", outside: Outside | None = None) -> ImportedJob:
    """Read a shell script or a bare argument list that starts Megatron-LM's ``pretrain_gpt.py``."""

    def build(command: LaunchCommand) -> ImportedJob:
        """Read the flags of one command."""
        require_gpt_entry(command.words, file)
        return job_from_arguments(command.fields(file=file), command.gpus, command_line=True)

    return read_launch(text, OWN_FLAGS, build, file, outside)


def job_from_arguments(
    fields: Fields, gpus: int | None, *, command_line: bool, layers: int | None = None
) -> ImportedJob:
    """Build the job from a namespace of Megatron-LM arguments; ``layers`` of a model that is named beside them."""
    notes: list[str] = []
    model = megatron_model(fields, notes, command_line=command_line)
    layout = left_open(megatron_layout(fields, model, gpus, notes, layers=layers), fields)
    # argparse keeps --fp8-format under fp8 (``dest``): flags have one name, a printed or configured namespace the other.
    fp8_key, fp4_key = ("fp8_format", "fp4_format") if command_line else ("fp8", "fp4")
    training = megatron_training(
        fields, layout, notes, fp8_key=fp8_key, fp4_key=fp4_key, command_line=command_line
    )
    options = stated_options(fields, layout, notes, command_line=command_line)
    if fields.on("use_checkpoint_args"):
        key = fields.path("use_checkpoint_args")
        notes.append(f"{key}: flags of the model may come from the checkpoint, which is not read")
    missing = missing_values(fields, model, layout, training, gpus)
    if not fields.printed:
        fields.name_unread(notes)
    return ImportedJob(
        framework=Framework.MEGATRON,
        layout=layout,
        training=training,
        options=options,
        model=model,
        gpus=gpus,
        replicas=1 if fields.on("use_torch_fsdp2") else fields.count("num_distributed_optimizer_instances"),
        notes=tuple(notes),
        missing=missing,
    )


def missing_values(
    fields: Fields, model: ModelSpec | None, layout: PartialLayout, training: JobTraining, gpus: int | None
) -> tuple[str, ...]:
    """Name what a price needs and the arguments do not state, and what would close it."""
    needed: dict[str, Any] = {
        "number of GPUs": gpus,
        "micro_batch_size": layout.micro_batch,
        "global_batch_size": training.global_batch,
        "seq_length": training.sequence_length,
        "precision (bf16 or fp16)": training.precision,
    }
    if model is None:
        sizes = ("num_layers", "hidden_size", "num_attention_heads", "vocab_size")
        needed |= {key: fields.data.get(key) for key in sizes}
    names = [name for name, value in needed.items() if value is None and name not in fields.left_open]
    missing = [name if " " in name else fields.path(name) for name in names]
    missing += [f"{fields.path(key)}: {why}" for key, why in fields.left_open.items()]
    axes = [axis for axis, flags in AXIS_FLAGS.items() if fields.unsaid and fields.unstated(*flags)]
    if axes:
        missing.append(f"{', '.join(axes)}: {fields.unsaid}")
    return tuple(missing)


def left_open(layout: PartialLayout, fields: Fields) -> PartialLayout:
    """Leave axes open whose flag has no value in the script, or where flags may come from outside of it."""
    unsaid: dict[str, None] = {axis: None for axis, flags in AXIS_FLAGS.items() if fields.is_open(*flags)}
    # The number of layers counts for virtual stages only where those are stated in layers, of which none could be counted.
    unsaid |= {
        axis: None
        for axis, flags in BESIDE_AXIS.items()
        if set(flags) & fields.left_open.keys() and (axis != "vp" or layout.vp == 1)
    }
    # What follows from an open axis was computed with 1 in its place.
    derived: set[str] = set()
    if unsaid.keys() & {"tp", "cp", "pp"}:
        derived |= {"dp", "micro_batches", "hsdp_shard"}
    if unsaid.keys() & {"tp", "ep"} and fields.data.get("expert_tensor_parallel_size") is None:
        derived.add("etp")
    if unsaid.keys() & {"pp", "vp"}:
        derived |= {"split", "schedule"}
    return replace(layout, **(unsaid | dict.fromkeys(derived)))


def stated_options(
    fields: Fields, layout: PartialLayout, notes: list[str], *, command_line: bool
) -> JobOptions:
    """Read the switches; of one whose value is open the default is taken, and said."""
    # A switch decides less than a degree: it is not worth asking for, but its default is not silent either.
    before = set(fields.left_open)
    options = megatron_options(fields, layout, command_line=command_line)
    notes += cp_groups(fields, options.cp_comm)
    for key in [key for key in fields.left_open if key not in before]:
        notes.append(f"assumed: the default of {fields.path(key)}; it {fields.left_open.pop(key)}")
    return options


@importer
def import_test(text: str, file: str = "") -> ImportedJob:
    """Read ``MODEL_ARGS`` of a ``model_config.yaml`` of Megatron-LM's functional tests: flags as keys.

    True is a bare flag, an empty value none; GPUs are the tests' default, one node of eight, where no world is
    stated. Raises ``InputError`` without them.
    """
    data = Fields(parse_yaml(text, file), file=file).section("MODEL_ARGS").data
    words = [word for key, value in data.items() for word in _flag_words(str(key), value)]
    if not words:
        raise input_error("no MODEL_ARGS", "flags of Megatron-LM as keys", key="MODEL_ARGS", file=file)
    job = job_from_arguments(ArgFields(split_flags(words), file=file), TEST_GPUS, command_line=True)
    return replace(job, notes=(f"assumed: {TEST_GPUS} GPUs, what the tests run on", *job.notes))


def _flag_words(flag: str, value: Any) -> list[str]:
    """Write one key as the words of a command line (shell_test_utils/_run_training.sh)."""
    if value is None or value is False:
        return []
    if value is True:
        return [flag]
    values = value if isinstance(value, list) else str(value).strip("[]").split()
    return [flag, *map(str, values)]


@importer
def import_dump(text: str, file: str = "") -> ImportedJob:
    """Read the argument block that Megatron-LM prints at start (``name .... value`` lines).

    Raises ``InputError`` where the block is not found.
    """
    data = printed_arguments(text)
    if "tensor_model_parallel_size" not in data:
        raise input_error("no argument dump found", "lines like 'num_layers ........ 32'", file=file)
    # The tokenizer's vocabulary is no argument: the dump says it on a line of its own, padded already.
    padded = _PADDED.search(text)
    if padded and data.get("vocab_size") is None:
        data["vocab_size"] = int(padded[1])
    fields = Fields(data, file=file)
    # All of some thousand arguments are printed, defaults too: none that is not read was somebody's choice.
    fields.printed = True
    return job_from_arguments(fields, fields.integer("world_size", least=1), command_line=False)


def printed_arguments(text: str) -> dict[str, Any]:
    """Return the arguments of the block that Megatron-LM prints at start, by name."""
    data: dict[str, Any] = {}
    for line in text.splitlines():
        if match := _DUMP_LINE.match(line):
            data[match[1]] = _python_value(match[2])
        elif line.lstrip().startswith("using world size:"):
            for name, value in _HEADER.findall(line):
                key = name.removeprefix("using").strip(" ,").replace("-", "_").replace(" ", "_") + "_size"
                data.setdefault(key, _python_value(value))
    return data


def _python_value(text: str) -> Any:
    # Megatron prints ``str`` of each value: None, True, numbers and lists as Python writes them, text without quotes.
    try:
        return ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
        return text.strip()
