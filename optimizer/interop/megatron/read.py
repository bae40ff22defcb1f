"""Megatron-LM argument lists, launch scripts and argument dumps to a job."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Any

from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.interop.launch.flags import ArgFields, launched_gpus, split_flags
from layoutopt.optimizer.interop.launch.shell import parse_script
from layoutopt.optimizer.interop.megatron.read_layout import (
    megatron_layout,
    megatron_options,
    megatron_training,
)
from layoutopt.optimizer.interop.megatron.read_model import megatron_model
from layoutopt.optimizer.interop.reading import Fields, importer
from layoutopt.optimizer.interop.records import ImportedJob
from layoutopt.optimizer.specs.errors import input_error

if TYPE_CHECKING:
    from collections.abc import Sequence

    from layoutopt.optimizer.interop.launch.shell import Script
    from layoutopt.optimizer.interop.records import JobTraining
    from layoutopt.optimizer.specs.model import ModelSpec
    from layoutopt.optimizer.specs.partial_layout import PartialLayout

OWN_FLAGS = (
    "--tensor-model-parallel-size",
    "--pipeline-model-parallel-size",
    "--num-layers",
    "--micro-batch-size",
)
_DUMP_LINE = re.compile(r"^(?:\S+:\s*)?\s*([A-Za-z_]\w*) \.{2,} (.*)$")
_HEADER = re.compile(r"([a-z -]+) size: (\[[^\]]*\]|\w+)")
_PADDED = re.compile(r"> padded vocab \(size: (\d{1,12})\)")


@importer
def import_arguments(text: str, file: str = "") -> ImportedJob:
    """Read a shell script or a bare argument list that starts Megatron-LM's ``pretrain_gpt.py``."""
    words = training_command(text, OWN_FLAGS, file)
    fields = ArgFields(split_flags(words), file=file)
    return job_from_arguments(fields, launched_gpus(words, text), command_line=True)


def training_command(text: str, flags: Sequence[str], file: str = "") -> list[str]:
    """Return the words of the script's command that has most of the given flags."""
    return find_command(parse_script(text, file), flags, file)


def find_command(script: Script, flags: Sequence[str], file: str = "") -> list[str]:
    """Return the words of a parsed script's command that has most of the given flags."""
    best = max(script.commands, key=lambda words: _hits(words, flags), default=[])
    if not _hits(best, flags):
        allowed = f"one with {', '.join(flags[:2])} or the like"
        raise input_error("no training command found", allowed, file=file)
    return best


def _hits(words: Sequence[str], flags: Sequence[str]) -> int:
    names = {word.partition("=")[0] for word in words}
    return sum(flag in names for flag in flags)


def job_from_arguments(fields: Fields, gpus: int | None, *, command_line: bool) -> ImportedJob:
    """Build the job from a namespace of Megatron-LM arguments."""
    notes: list[str] = []
    model = megatron_model(fields, notes, command_line=command_line)
    layout = megatron_layout(fields, model, gpus, notes)
    fp8_key, fp4_key = ("fp8_format", "fp4_format") if command_line else ("fp8", "fp4")
    training = megatron_training(fields, layout, fp8_key=fp8_key, fp4_key=fp4_key)
    return ImportedJob(
        framework=Framework.MEGATRON,
        layout=layout,
        training=training,
        options=megatron_options(fields, layout, command_line=command_line),
        model=model,
        gpus=gpus,
        notes=tuple(notes),
        missing=missing_values(fields, model, layout, training, gpus),
    )


def missing_values(
    fields: Fields, model: ModelSpec | None, layout: PartialLayout, training: JobTraining, gpus: int | None
) -> tuple[str, ...]:
    """Name what a price needs and the arguments do not state."""
    needed: dict[str, Any] = {
        "number of GPUs": gpus,
        fields.path("micro_batch_size"): layout.micro_batch,
        fields.path("global_batch_size"): training.global_batch,
        fields.path("seq_length"): training.sequence_length,
        "precision (bf16 or fp16)": training.precision,
    }
    missing = [name for name, value in needed.items() if value is None]
    if model is None:
        sizes = ("num_layers", "hidden_size", "num_attention_heads", "vocab_size")
        missing += [fields.path(key) for key in sizes if fields.data.get(key) is None]
    return tuple(missing)


@importer
def import_dump(text: str, file: str = "") -> ImportedJob:
    """Read the argument block that Megatron-LM prints at start (``name .... value`` lines)."""
    data = _dump_values(text)
    if "tensor_model_parallel_size" not in data:
        raise input_error("no argument dump found", "lines like 'num_layers ........ 32'", file=file)
    padded = _PADDED.search(text)
    if padded and data.get("vocab_size") is None:
        data["vocab_size"] = int(padded[1])
    fields = Fields(data, file=file)
    return job_from_arguments(fields, fields.integer("world_size", least=1), command_line=False)


def _dump_values(text: str) -> dict[str, Any]:
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
    try:
        return ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
        return text.strip()
