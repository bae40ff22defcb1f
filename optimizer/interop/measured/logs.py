"""Step logs of torchtitan and nanotron to one measured run each; what the readers of all logs share."""

from __future__ import annotations

import re
from statistics import median
from typing import TYPE_CHECKING

from layoutopt.optimizer.interop.measured.log_headers import torchtitan_header
from layoutopt.optimizer.interop.measured.run_columns import job_columns
from layoutopt.optimizer.interop.reading import importer
from layoutopt.optimizer.interop.records import LoggedRun
from layoutopt.optimizer.specs.errors import input_error

if TYPE_CHECKING:
    from collections.abc import Sequence

    from layoutopt.optimizer.interop.measured.run_columns import Columns
    from layoutopt.optimizer.interop.records import ImportedJob

GIB = 2**30
SUFFIXES = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
ANSI = re.compile(r"\x1b?\[(?:\d{1,3}(?:;\d{1,3}){0,5})?m")
"""Colours, also of a log that was copied without the escapes."""

_TITAN = re.compile(
    r"step:\s*(?P<step>\d{1,9})\b.{0,400}?memory:\s*(?P<gib>[\d.]{1,12})GiB.{0,400}?(?:tps|wps):\s*(?P<tps>[\d,.]{1,15})(?![\d,.]*[eE])"
    r"(?:\s+tflops:\s*(?P<tflops>[\d,.]{1,12}))?(?:\s+mfu:\s*(?:(?P<mfu>[\d.]{1,8})%|N/A))?"
)
_NANOTRON = re.compile(r"iteration: (?P<step>\d{1,9}) / \d+ \|(?P<rest>.*)")
_PAIR = re.compile(r"(\w+): ([\d.]{1,12})([KMBT]?)(?=\s|$)")
_TITAN_SIGN = re.compile(r"step:\s*\d{1,9}\b.{0,400}?memory:.{0,400}?(?:tps|wps):")
_TIMER_LINE = re.compile(r"time \(ms\) \|(.*)")
_TIMER_PAIR = re.compile(r"([\w./-]{1,60}): ([\d.]{1,15})(?![\d.]*[eE])")


def number(text: str) -> float | None:
    """Read a number with commas between thousands; None for other words."""
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return None


def numbers(found: Sequence[re.Match[str]], name: str) -> list[float | None]:
    """Return one group of every match as a number, None where it is not there."""
    return [number(match[name]) if match[name] else None for match in found]


def most_gb(values: Sequence[float | None], unit_bytes: int) -> float | None:
    """Return the largest reading of memory in GB; the table's are decimal, trainers print binary units."""
    known = [value for value in values if value is not None]
    return max(known) * unit_bytes / 1e9 if known else None


def steady(steps: Sequence[int], values: Sequence[float | None]) -> float | None:
    """Return the median over the logged steps; the first, which may compile and warm up, counts where it is alone."""
    # A median, since single steps wait for checkpoints and evaluation. Logs of several ranks repeat their steps: count
    # steps, not lines.
    first = min(steps)
    known = [(step, value) for step, value in zip(steps, values, strict=True) if value is not None]
    kept = [value for step, value in known if step != first] or [value for _, value in known]
    return median(kept) if kept else None


def counted(steps: Sequence[int], what: str = "logged steps") -> str:
    """Say of which steps ``steady`` is the median."""
    found = len(set(steps))
    if found == 1:
        return f"the only one of the {what}: it may be a warm-up"
    if found == 2:
        return f"the last of two {what}: the first may be a warm-up"
    return f"median of {found - 1} {what}; the first, which compiles and warms up, is left out"


def unread(text: str, sign: re.Pattern[str], read: int) -> tuple[str, ...]:
    """Say how many lines with the sign of a step have no readable time or rate, where ``read`` have one; empty if all do."""
    left = sum(sign.search(line) is not None for line in text.splitlines()) - read
    lines = "a line of a step is" if left == 1 else f"{left:,} lines of steps are"
    return (f"{lines} left out: no readable time or rate",) if left > 0 else ()


def timer_values(text: str) -> dict[str, list[float]]:
    """Return the seconds of timers that are logged in one line, ``time (ms) | NAME: x | ...``, line by line."""
    found: dict[str, list[float]] = {}
    for line in _TIMER_LINE.findall(text):
        for name, ms in _TIMER_PAIR.findall(line):
            if (value := number(ms)) is not None:
                found.setdefault(name, []).append(value / 1e3)
    return found


def timer_lines(text: str) -> dict[str, float]:
    """Return the medians of timers over their lines, the first, which may compile and warm up, left out if not alone."""
    return {name: median(values[1:] or values) for name, values in timer_values(text).items()}


@importer
def import_torchtitan_log(text: str, file: str = "", job: ImportedJob | None = None) -> LoggedRun:
    """Read a torchtitan log; with the job's configuration the step time follows from tokens/s and batch.

    Tokens per second are per GPU; memory is the most reserved, in GiB in the log and GB in the table. Raises
    ``InputError`` where no line is a step's.
    """
    found = [match for line in ANSI.sub("", text).splitlines() if (match := _TITAN.search(line))]
    if not found:
        raise input_error("no torchtitan step lines", "lines with step:, memory: and tps:", file=file)
    steps = [int(match["step"]) for match in found]
    tokens_s = steady(steps, numbers(found, "tps"))
    values = {
        "tokens_s_gpu": tokens_s,
        "tflops_gpu": steady(steps, numbers(found, "tflops")),
        "mfu_pct": steady(steps, numbers(found, "mfu")),
        "mem_gb": most_gb(numbers(found, "gib"), GIB),
    }
    columns = measured("torchtitan", values, job, torchtitan_header(text))
    columns |= {"mem_kind": "reserved", "flops_note": "torchtitan counts the full attention square"}
    return _with_step_time(columns, tokens_s, steps, unread(ANSI.sub("", text), _TITAN_SIGN, len(found)))


def measured(
    framework: str, values: dict[str, float | None], job: ImportedJob | None, header: Columns | None = None
) -> Columns:
    """Return a job's columns with what was measured; what the log states of itself goes first."""
    columns: Columns = {"framework": framework, **(job_columns(job) if job else {}), **(header or {})}
    return columns | {name: value for name, value in values.items() if value is not None}


def step_columns(seconds: float | None) -> Columns:
    """Return the columns of a step time that the log itself states; none where it states none."""
    if seconds is None:
        return {}
    return {"step_time_s": seconds, "measured_step_s": seconds, "measured_from": "step_time_s"}


def _with_step_time(
    columns: Columns, tokens_s_gpu: float | None, steps: Sequence[int], left_out: Sequence[str]
) -> LoggedRun:
    notes = [counted(steps), *left_out]
    needed = [columns.get(name) for name in ("seq", "global_batch", "n_gpus")]
    numbers = [value for value in needed if isinstance(value, int | float) and value > 0]
    # torchtitan prints a rate of tokens alone: a time follows from it once the batch is known.
    if tokens_s_gpu and len(numbers) == 3:
        sequence, batch, gpus = numbers
        columns["measured_step_s"] = sequence * batch / (tokens_s_gpu * gpus)
        columns["measured_from"] = "tokens_s_gpu"
    else:
        needs = "sequence length, global batch and GPUs"
        notes.append(f"step time needs {needs}: give the job's configuration too")
    return LoggedRun(columns=columns, notes=tuple(notes), steps=len(set(steps)))


@importer
def import_nanotron_log(text: str, file: str = "", job: ImportedJob | None = None) -> LoggedRun:
    """Read a nanotron log: batch in tokens on main (``time_per_iteration_ms``), in sequences up to 0.5.

    The numbers carry two or three digits only; GPUs are the ratio of total to per-GPU tokens/s, rounded. Raises
    ``InputError`` where no line is an iteration's.
    """
    found = [match for line in ANSI.sub("", text).splitlines() if (match := _NANOTRON.search(line))]
    if not found:
        raise input_error("no nanotron iteration lines", "lines with 'iteration: 10 / 1000 |'", file=file)
    rows = [_nanotron_values(match["rest"]) for match in found]
    steps = [int(match["step"]) for match in found]
    older = "elapsed_time_per_iteration_ms"
    time_ms = steady(steps, [row.get("time_per_iteration_ms", row.get(older)) for row in rows])
    names = ("tokens_per_sec_per_gpu", "tokens_per_sec", "model_tflops_per_gpu")
    per_gpu, total, tflops = (steady(steps, [row.get(name) for row in rows]) for name in names)
    columns = measured("nanotron", {"tokens_s_gpu": per_gpu, "tflops_gpu": tflops}, job)
    notes = [counted(steps), "the log rounds to two or three digits"]
    if "n_gpus" not in columns and total and per_gpu:
        columns["n_gpus"] = round(total / per_gpu)
        notes.append("n_gpus is the ratio of total to per-GPU tokens/s")
    columns |= step_columns(time_ms / 1e3 if time_ms else None)
    _nanotron_batch(columns, rows[-1], notes)
    return LoggedRun(columns=columns, notes=tuple(notes), steps=len(set(steps)))


def _nanotron_values(text: str) -> dict[str, float]:
    pairs = ((name, number(digits), suffix) for name, digits, suffix in _PAIR.findall(text))
    return {name: value * SUFFIXES[suffix] for name, value, suffix in pairs if value is not None}


def _nanotron_batch(columns: Columns, row: dict[str, float], notes: list[str]) -> None:
    batch = row.get("global_batch_size")
    if batch is None or "global_batch" in columns:
        return
    # The name of the time tells the release, and that whether the batch is in tokens.
    if "time_per_iteration_ms" not in row:
        columns["global_batch"] = round(batch)
        return
    sequence = columns.get("seq")
    if isinstance(sequence, int) and sequence > 0:
        columns["global_batch"] = round(batch / sequence)
    notes.append(f"global batch {batch:g} is in tokens")


def rise(pairs: Sequence[tuple[int, int]]) -> int | None:
    """Return by how much the second number of pairs grows for each one of the first, None unless that is whole."""
    (first, low), (last, high) = (pairs[0], pairs[-1]) if pairs else ((0, 0), (0, 0))
    if last <= first or high <= low or (high - low) % (last - first):
        return None
    return (high - low) // (last - first)
