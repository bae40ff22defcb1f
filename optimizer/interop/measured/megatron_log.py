"""Logs of Megatron-LM and of the trainers that print its lines (BigScience's Megatron-DeepSpeed: seconds)."""

from __future__ import annotations

import re
from statistics import median
from typing import TYPE_CHECKING

from layoutopt.optimizer.interop.measured.logs import (
    ANSI,
    counted,
    measured,
    most_gb,
    number,
    numbers,
    rise,
    steady,
    step_columns,
    timer_lines,
    unread,
)
from layoutopt.optimizer.interop.megatron.read import printed_arguments
from layoutopt.optimizer.interop.reading import importer
from layoutopt.optimizer.interop.records import LoggedRun
from layoutopt.optimizer.specs.errors import input_error

if TYPE_CHECKING:
    from layoutopt.optimizer.interop.records import ImportedJob

MIB = 2**20
# Gaps are bounded, so that no long line is searched to its end from each of its places; of a number in powers of ten
# (``1.2E+05``) the digits before the E are another number.
_STEP = re.compile(
    r"iteration\s+(?P<step>\d{1,9})/\s*\d+ \|.{0,400}?elapsed time per iteration \((?P<unit>ms|s)\): "
    r"(?P<time>[\d.]{1,15})(?![\d.]*[eE])"
    r"(?:.*?(?:throughput per GPU \(TFLOP/s/GPU\)|TFLOPs): (?P<tflops>[\d.]{1,12})(?![\d.]*[eE]))?"
)
_LINE = re.compile(r"iteration\s+\d{1,9}/\s*\d+ \|.{0,400}?elapsed time per iteration \((?:ms|s)\):")
_CONSUMED = re.compile(r"consumed samples:\s*(\d{1,15}) \| consumed tokens:\s*(\d{1,18})")
_BATCH = re.compile(r"global batch size:\s*(\d{1,9})\b")
_MEMORY = re.compile(r"\[Rank \d+\].{0,400}?max allocated: (?P<mb>[\d.]{1,15})(?![\d.]*[eE])")
_HEADER = re.compile(r"([a-z -]{1,60})[ -]size: (\d{1,9})\b")
_HEADER_COLUMNS = {
    "world": "n_gpus", "data-parallel": "dp", "context-parallel": "cp", "tensor-model-parallel": "tp",
    "pipeline-model-parallel": "pp",
}  # fmt: skip
"""Words of the line ``using world size: 16, data-parallel size: 4, ...`` and columns of measured runs."""

_ARGUMENT_COLUMNS = {
    "world_size": "n_gpus", "tensor_model_parallel_size": "tp", "context_parallel_size": "cp",
    "pipeline_model_parallel_size": "pp", "expert_model_parallel_size": "ep", "data_parallel_size": "dp",
    "micro_batch_size": "micro_batch", "global_batch_size": "global_batch", "seq_length": "seq", "num_layers": "layers",
    "hidden_size": "hidden", "num_attention_heads": "heads", "ffn_hidden_size": "ffn",
}  # fmt: skip
"""Megatron-LM's arguments that columns of measured runs state as they are."""

_TIMER = re.compile(
    r"^\s{4}([a-z][a-z0-9-]+) ?\.*: (?:\(([\d.]{1,15}), ([\d.]{1,15})\)|([\d.]{1,15}))\s*$", re.MULTILINE
)
_TIMER_OF_RANKS = re.compile(
    r"^  ([a-z][a-z0-9-]+):[ \t]*\n((?: {5}rank +\d{1,7}: [\d.]{1,15}[ \t]*\n?)+)", re.MULTILINE
)
_RANK = re.compile(r"rank +(\d{1,7}): ([\d.]{1,15})")


@importer
def import_megatron_log(text: str, file: str = "", job: ImportedJob | None = None) -> LoggedRun:
    """Read the header, iteration lines, timers (ms), and the memory line (max allocated, MiB).

    Raises ``InputError`` without iteration lines.
    """
    plain = ANSI.sub("", text)
    found = [match for line in plain.splitlines() if (match := _STEP.search(line))]
    if not found:
        wanted = "lines with 'elapsed time per iteration (ms)'"
        raise input_error("no Megatron iteration lines", wanted, file=file)
    # The last rank prints these lines (training.py, print_rank_last), others their memory: a job's log holds both, mixed.
    steps = [int(match["step"]) for match in found]
    times_s = [_seconds(match) for match in found]
    memory_gb = most_gb(numbers([*_MEMORY.finditer(plain)], "mb"), MIB)
    values = {"tflops_gpu": steady(steps, numbers(found, "tflops")), "mem_gb": memory_gb or None}
    seconds = found[0]["unit"] == "s"
    columns = measured("megatron-deepspeed" if seconds else "megatron", values, job)
    # What the launch file says goes over what was printed, and what was measured over both.
    columns = _header(plain) | _printed(plain) | columns | step_columns(steady(steps, times_s))
    columns |= {"mem_kind": "allocated"} if memory_gb else {}
    # The batch may grow: the last lines have its final size.
    if batches := _BATCH.findall(plain):
        columns.setdefault("global_batch", int(batches[-1]))
    if length := rise([(int(samples), int(tokens)) for samples, tokens in _CONSUMED.findall(plain)]):
        columns.setdefault("seq", length)
    ranks = _timers_of_ranks(plain)
    timers = _timers(plain) | {name: (value, value) for name, value in timer_lines(plain).items()}
    return LoggedRun(
        columns=columns,
        notes=(counted(steps), *unread(plain, _LINE, sum(value is not None for value in times_s))),
        steps=len(set(steps)),
        timers_s=timers | {name: (min(own.values()), max(own.values())) for name, own in ranks.items()},
        rank_timers_s=ranks,
    )


def _seconds(match: re.Match[str]) -> float | None:
    value = number(match["time"])
    return value if value is None or match["unit"] == "s" else value / 1e3


def _header(text: str) -> dict[str, str | int | float]:
    """Return what the first line of a run says of its layout."""
    line = next((line for line in text.splitlines() if "using world size:" in line), "")
    stated = {words.replace("using", "").strip(" ,"): int(size) for words, size in _HEADER.findall(line)}
    return {_HEADER_COLUMNS[words]: size for words, size in stated.items() if words in _HEADER_COLUMNS}


def _printed(text: str) -> dict[str, str | int | float]:
    """Return what the block of arguments that is printed at start says, however few of its lines are there."""
    printed = printed_arguments(text)
    found = {column: printed.get(name) for name, column in _ARGUMENT_COLUMNS.items()}
    return {column: value for column, value in found.items() if type(value) is int and value > 0}


def _timers(text: str) -> dict[str, tuple[float, float]]:
    """Return each timer's least and most seconds a step over ranks, medians over the logged blocks."""
    blocks: dict[str, list[tuple[float, float]]] = {}
    for name, low, high, only in _TIMER.findall(text):
        pair = [number(low or only), number(high or only)]
        if pair[0] is not None and pair[1] is not None:
            blocks.setdefault(name, []).append((pair[0] / 1e3, pair[1] / 1e3))
    return {
        name: (median(low for low, _ in pairs), median(high for _, high in pairs))
        for name, pairs in blocks.items()
    }


def _timers_of_ranks(text: str) -> dict[str, dict[int, float]]:
    """Return each timer's seconds a step by rank (``--timing-log-option all``), medians over the logged blocks."""
    found: dict[str, dict[int, list[float]]] = {}
    for name, lines in _TIMER_OF_RANKS.findall(text):
        for rank, ms in _RANK.findall(lines):
            if (value := number(ms)) is not None:
                found.setdefault(name, {}).setdefault(int(rank), []).append(value / 1e3)
    return {name: {rank: median(values) for rank, values in ranks.items()} for name, ranks in found.items()}
