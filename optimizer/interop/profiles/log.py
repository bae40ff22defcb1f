"""Step logs of trainers as a ``LoggedProfile``: lines that tell of steps and timers, read one by one, compressed or not."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from layoutopt.optimizer.diagnose.logged import LoggedProfile
from layoutopt.optimizer.interop.measured.logs import ANSI
from layoutopt.optimizer.interop.profiles.trace_file import opened
from layoutopt.optimizer.interop.records import LoggedRun
from layoutopt.optimizer.interop.sources import FileKind, detect_kind, import_text, signs_in
from layoutopt.optimizer.specs.errors import InputError, input_error

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from layoutopt.optimizer.interop.profiles.trace_file import OnProgress

WANTED = "a log of Megatron-LM (timers with --timing-log-level 2), torchtitan, nanotron, or DeepSpeed (wall_clock_breakdown)"
LOGS = (
    FileKind.MEGATRON_LOG,
    FileKind.TORCHTITAN_LOG,
    FileKind.NANOTRON_LOG,
    FileKind.DEEPSPEED_LOG,
    FileKind.NEMO_LOG,
    FileKind.TRAINER_LOG,
)
ALONE = (FileKind.MEGATRON_LOG, FileKind.TORCHTITAN_LOG, FileKind.NANOTRON_LOG)
"""Logs of trainers that print no lines of another one: DeepSpeed's stand among those of what drives it."""

MOST_CHARACTERS = 64 * 2**20
"""Characters of lines that tell of steps which a log may have: some hundred thousand steps."""

LONGEST_LINE = 4096
_TELLS = re.compile(
    r"\biteration\b|\bstep: *\d|steps: \d|global_step=|time \(ms\)|across ranks \(ms\)|world size:|max allocated:"
    r"|^ {4}[a-z][a-z0-9-]+ ?\.*: \(?[\d.]|^  [a-z][a-z0-9-]+:\s*$|^ {5}rank +\d+: |train_step_timing|train_steps_per_second"
    r"|s/it\]|it/s\]"
)
_PREFIX = re.compile(r"^\[(?:default|rank)\d{1,7}\]:")
"""What torchrun puts before each line of a rank."""

_HEADER = re.compile(r"using world size:[^\n]*")
_SIZES = ("n_gpus", "tp", "cp", "pp", "dp", "global_batch")


def read_log(path: Path, on_progress: OnProgress | None = None) -> LoggedProfile:
    """Read a trainer's log. Raises ``InputError`` in one line for what is none, has no whole step, or is of several jobs."""
    text = "\n".join(_lines(path, on_progress))
    file = str(path)
    headers = dict.fromkeys(_HEADER.findall(text))
    if len(headers) > 1:
        raise input_error(f"holds the logs of {len(headers)} jobs", "the log of one job", file=file)
    trainers = signs_in(text, ALONE)
    if len(trainers) > 1:
        raise input_error(f"holds lines of {' and '.join(trainers)}", "the log of one job", file=file)
    try:
        kind = detect_kind(text, path.name)
    except InputError:
        kind = ""
    if kind not in LOGS:
        raise input_error("tells of no steps", WANTED, file=file)
    run = import_text(text, file, kind).value
    assert isinstance(run, LoggedRun)
    return _profile(run, kind, file)


def _profile(run: LoggedRun, kind: str, file: str) -> LoggedProfile:
    """Take over what a run's columns say."""
    cells = run.columns
    seconds, rate = cells.get("step_time_s"), cells.get("tokens_s_gpu")
    trainer = kind.removesuffix("-log")
    if any(name in run.timers_s for name in ("fwd", "bwd")):
        trainer = "deepspeed"  # Megatron-DeepSpeed prints the lines of both
    return LoggedProfile(
        source=file,
        trainer=trainer,
        steps=run.steps,
        step_s=float(seconds) if isinstance(seconds, int | float) else None,
        tokens_s_gpu=float(rate) if isinstance(rate, int | float) else None,
        samples_per_s=run.samples_per_s,
        # other logs round their sizes to three or four digits
        stated={
            name: value
            for name in (_SIZES if kind == FileKind.MEGATRON_LOG else ())
            if isinstance(value := cells.get(name), int)
        },
        timers_s=run.timers_s,
        rank_timers_s=run.rank_timers_s,
        notes=tuple(note for note in run.notes if "configuration too" not in note),
    )


def _lines(path: Path, on_progress: OnProgress | None) -> Iterator[str]:
    """Yield the lines that tell of steps; raises ``InputError`` where there is no end of them."""
    kept = 0
    with opened(path, on_progress, wanted=WANTED, errors="replace") as stream:
        rest = ""
        while piece := stream.read():
            *lines, rest = re.split(r"[\r\n]+", rest + piece)
            rest = rest[:LONGEST_LINE]
            for line in lines:
                plain = _plain(line[:LONGEST_LINE])
                if _TELLS.search(plain):
                    kept += len(plain)
                    if kept > MOST_CHARACTERS:
                        raise input_error("has too many lines of steps", "the log of one job", file=str(path))
                    yield plain
        plain = _plain(rest)
        if _TELLS.search(plain):
            yield plain


def _plain(line: str) -> str:
    """Return a line without colours and a launcher's prefix."""
    return _PREFIX.sub("", ANSI.sub("", line))
