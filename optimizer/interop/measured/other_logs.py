"""Logs of DeepSpeed's throughput timer, of NeMo 2 and of the Hugging Face trainer to one measured run each."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from layoutopt.optimizer.interop.measured.log_headers import deepspeed_header
from layoutopt.optimizer.interop.measured.logs import (
    ANSI,
    GIB,
    counted,
    measured,
    most_gb,
    number,
    numbers,
    rise,
    steady,
    step_columns,
    timer_lines,
    timer_values,
)
from layoutopt.optimizer.interop.reading import importer
from layoutopt.optimizer.interop.records import LoggedRun
from layoutopt.optimizer.specs.errors import input_error

if TYPE_CHECKING:
    from layoutopt.optimizer.interop.records import ImportedJob

_DEEPSPEED = re.compile(
    r"(?:global_step=(?P<step>\d{1,9}), RunningAvgSamplesPerSec=[\d.]{1,15}, Curr|\b\d{1,9}/(?P<old>\d{1,9}), )"
    r"SamplesPerSec=(?P<rate>[\d.]{1,15})(?![\d.]*[eE])"
    r"(?:, MemAllocated=[\d.]{1,12}GB, MaxMemAllocated=(?P<gib>[\d.]{1,12})GB)?"
)
"""Up to release 0.6 a line says EPOCH/STEP, SamplesPerSec=, without memory at first."""

_DEEPSPEED_PIPE = re.compile(
    r"steps: (?P<step>\d{1,9}) loss: .{0,200}?iter time \(s\): (?P<s>[\d.]{1,15}) samples/sec: (?P<rate>[\d.]{1,15})"
)
_NEMO = re.compile(
    r"(?:iteration (?P<step>\d{1,9})/\d+ \||\bglobal_step=(?P<old>\d{1,9})(?:\.0)?\b)"
    r"(?P<rest>.{0,1000}?train_step_timing in s[:=] ?(?P<s>[\d.]{1,15})(?![\d.]*[eE]).*)"
)
"""NeMo 2's lines, and the progress bar of NeMo 1."""

_NEMO_BATCH = re.compile(r"global_batch_size: ([\d.]{1,12})")
_NEMO_SAMPLES = re.compile(r"consumed_samples[=:] ?(\d{1,15})")
_NEMO_TFLOPS = re.compile(r"TFLOPS_per_GPU: ([\d.e+]{1,15})")
_TRAINER_END = re.compile(
    r"""\btrain_steps_per_second['"]?\s*[:=]\s*['"]?(?P<rate>[\d.]{1,15})(?![\d.]*[eE])"""
)
"""The dictionary at the end, with numbers or texts, and the table of ``trainer.log_metrics``."""

_TRAINER_BATCHES = {
    "global_batch": re.compile(
        r"Total train batch size \(w\. parallel[^)\n]{0,60}\) = ([\d,]{1,15})$", re.MULTILINE
    ),
    "micro_batch": re.compile(r"Instantaneous batch size per device = ([\d,]{1,15})$", re.MULTILINE),
}
_TRAINER_BAR = re.compile(
    r"(?P<step>\d{1,9})/\d{1,9} \[[\d:]+<[\d:?]+, +(?P<value>[\d.]{1,12}) ?(?P<unit>s/it|it/s)"
)


@importer
def import_deepspeed_log(text: str, file: str = "", job: ImportedJob | None = None) -> LoggedRun:
    """Read DeepSpeed's throughput timer, its pipeline engine's lines and the timers of ``wall_clock_breakdown``.

    Samples/s are the whole job's, memory is in GiB though it prints GB, timers are those of rank 0. The step time follows
    from the batch, which the log does not state: with the job's configuration. Raises ``InputError`` where the log
    has none of them.
    """
    rates, pipes, timers = _matches(_DEEPSPEED, text), _matches(_DEEPSPEED_PIPE, text), timer_lines(text)
    if not rates and not pipes and not timers:
        what = "lines with SamplesPerSec=, iter time (s): or time (ms) | fwd:"
        raise input_error("no DeepSpeed timer lines", what, file=file)
    found = rates or pipes
    rate = number(found[-1]["rate"]) if found else None  # a running mean: the last holds all before it
    memory_gb = most_gb(numbers(rates, "gib"), GIB)
    columns = measured("deepspeed", {"mem_gb": memory_gb}, job, deepspeed_header(text))
    columns |= {} if memory_gb is None else {"mem_kind": "allocated"}
    steps = [_number_of(match) for match in found]
    notes = [f"{rate:g} samples/s, the last of {len(found)} logged"] if rate else []
    batch = columns.get("global_batch")
    if pipes and not rates:
        columns |= step_columns(steady(steps, numbers(pipes, "s")))
    elif isinstance(batch, int) and rate:
        columns |= step_columns(batch / rate)
    elif rate:
        notes.append("step time needs the global batch: give the job's configuration too")
    pairs = {name: (seconds, seconds) for name, seconds in timers.items()}
    # timers of micro-steps have lines of their own
    whole = [len(own) for name, own in timer_values(text).items() if not name.endswith("_microstep")]
    lines = max(whole, default=0)
    notes += [] if steps or not lines else [counted(range(lines), "lines of timers")]
    return LoggedRun(
        columns=columns,
        notes=tuple(notes),
        steps=len(set(steps)) or lines,
        timers_s=pairs,
        samples_per_s=rate,
    )


@importer
def import_nemo_log(text: str, file: str = "", job: ImportedJob | None = None) -> LoggedRun:
    """Read NeMo 2's progress lines; every number is the mean over a logging interval.

    Raises ``InputError`` without such lines.
    """
    found = _matches(_NEMO, text)
    if not found:
        raise input_error("no NeMo 2 progress lines", "lines with 'train_step_timing in s:'", file=file)
    steps = [_number_of(match) for match in found]
    rates = [re.search(_NEMO_TFLOPS, match["rest"]) for match in found]
    values = {"tflops_gpu": steady(steps, [number(rate[1]) if rate else None for rate in rates])}
    columns = measured("megatron-bridge", values, job)
    columns |= step_columns(steady(steps, numbers(found, "s")))
    batch = _NEMO_BATCH.search(found[-1]["rest"])
    if batch and (size := number(batch[1])):
        columns.setdefault("global_batch", round(size))
    samples = [(step, _NEMO_SAMPLES.search(match["rest"])) for step, match in zip(steps, found, strict=True)]
    if grown := rise([(step, int(seen[1])) for step, seen in samples if seen]):
        columns.setdefault("global_batch", grown)
    return LoggedRun(columns=columns, notes=(counted(steps),), steps=len(set(steps)))


@importer
def import_trainer_log(text: str, file: str = "", job: ImportedJob | None = None) -> LoggedRun:
    """Read the Hugging Face trainer's last summary, else its progress bar, whose time per step is smoothed.

    Raises ``InputError`` where the log has neither.
    """
    ends, bars = _matches(_TRAINER_END, text), _matches(_TRAINER_BAR, text)
    # The summary is of the whole run; the bar's readings are smoothed, and taken only where the run did not end.
    rate = number(ends[-1]["rate"]) if ends else None
    if rate:
        seconds: float | None = 1 / rate
        note = "mean over the run, start included: train_steps_per_second"
    elif bars:
        read = [int(bar["step"]) for bar in bars]
        seconds = steady(read, [_bar_seconds(bar) for bar in bars])
        note = counted(read, "readings of the progress bar, which smooths")
    else:
        raise input_error("no trainer lines", "train_steps_per_second or a progress bar", file=file)
    steps = {int(bar["step"]) for bar in bars}
    columns = measured("accelerate", {}, job) | step_columns(seconds)
    for name, pattern in _TRAINER_BATCHES.items():
        if (stated := pattern.search(text)) and (size := number(stated[1])):
            columns.setdefault(name, int(size))
    return LoggedRun(columns=columns, notes=(note,), steps=len(steps) or 1)


def _number_of(match: re.Match[str]) -> int:
    """Return the number of a line's step, in the words of either generation."""
    named = match.groupdict()
    return int(named["step"] or named["old"])


def _bar_seconds(bar: re.Match[str]) -> float | None:
    value = number(bar["value"])
    return value if not value or bar["unit"] == "s/it" else 1 / value


def _matches(pattern: re.Pattern[str], text: str) -> list[re.Match[str]]:
    """Find a pattern once in every line; a progress bar ends its lines with carriage returns."""
    lines = re.split(r"[\r\n]+", ANSI.sub("", text))
    return [match for line in lines if (match := pattern.search(line))]
