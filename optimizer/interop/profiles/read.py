"""Profiles of any kind, by what the files hold: traces and reports, one per rank, or the log of a job."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from layoutopt.optimizer.diagnose.logged import LoggedProfile
from layoutopt.optimizer.interop.measured.logs import ANSI
from layoutopt.optimizer.interop.profiles.kineto import read_kineto
from layoutopt.optimizer.interop.profiles.kineto_events import LONGEST_NS
from layoutopt.optimizer.interop.profiles.options import ProfileOptions
from layoutopt.optimizer.interop.profiles.trace_file import SQLITE, beginning, is_compressed, opened
from layoutopt.optimizer.interop.records import LoggedRun
from layoutopt.optimizer.interop.sources import FileKind, detect_kind, import_text, signs_in
from layoutopt.optimizer.specs.errors import InputError, input_error
from layoutopt.optimizer.specs.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from layoutopt.optimizer.diagnose.profile import RankProfile
    from layoutopt.optimizer.interop.profiles.trace_file import OnProgress


NAMED = ("*trace*.json", "*trace*.json.gz", "*.sqlite")
OTHERS = ("*.json", "*.json.gz")
"""What profiles in a folder are called; other JSON lies beside traces, and only where there are none may be profiles."""

MOST_SHOWN = 12
"""Names of groups that a refusal lists."""

NOTHING = (
    "traces of PyTorch's profiler (.json, .json.gz), Nsight Systems exports (.sqlite), or a trainer's log"
)


def read_profiles(
    sources: Sequence[str | Path],
    options: ProfileOptions | None = None,
    on_progress: Callable[[str, float], None] | None = None,
) -> tuple[RankProfile, ...]:
    """Read the profiles of a job's ranks: files, or folders of them.

    ``on_progress`` is called with a file's name and the share of it that was read. Raises ``InputError`` for what is none.
    """
    found = read_run(sources, options, on_progress)
    if isinstance(found, LoggedProfile):
        raise input_error("is a log", NOTHING, file=found.source)
    return found


def read_run(
    sources: Sequence[str | Path],
    options: ProfileOptions | None = None,
    on_progress: Callable[[str, float], None] | None = None,
) -> tuple[RankProfile, ...] | LoggedProfile:
    """Read what is known of a run, as ``read_profiles``, or a trainer's log, which stands alone.

    Raises ``InputError`` for several logs, or a log among profiles.
    """
    options = options or ProfileOptions()
    found: list[RankProfile] = []
    files = _files(sources)
    for path in files:
        report = None if on_progress is None else (lambda share, name=path.name: on_progress(name, share))
        first = beginning(path, NOTHING)
        if first.startswith(SQLITE):
            # SQLite reads pages in any order, which a compressed file does not give.
            if is_compressed(path):
                what = "is a compressed report"
                raise input_error(what, f"the report unpacked: gunzip {path.name}", file=str(path))
            from layoutopt.optimizer.interop.profiles.nsight import read_nsight

            found += read_nsight(path, options)
        elif _is_log(first):
            if len(files) > 1:
                what = "is a log, which stands alone"
                raise input_error(what, "one log, or traces of ranks", file=str(path))
            if key := options.given:
                what = "is said of traces, and this is a log"
                raise input_error(what, "the log alone", key=key, file=str(path))
            return read_log(path, report)
        else:
            found.append(read_kineto(path, options, report))
    _require_matched(options, found)
    return tuple(found)


def _require_matched(options: ProfileOptions, profiles: Sequence[RankProfile]) -> None:
    """Raise ``InputError`` for an axis that is told of no group and no kind of call of any profile."""
    told = {group.description or group.name for one in profiles for group in one.groups}
    kinds = {kind for one in profiles for kind in one.kinds}
    # A name that is mistyped would change nothing and be believed.
    known = told | kinds | {group.name for one in profiles for group in one.groups}
    if unknown := [name for name in options.axes if name not in known]:
        shown = ", ".join(sorted(told | kinds)[:MOST_SHOWN]) or "the profiles have none"
        what = f"{unknown[0][:60]!r} names no group and no kind of call in the profiles"
        raise input_error(what, shown, key="--axis")


def _is_log(first: bytes) -> bool:
    """Tell a log from JSON by how it begins; a Python dictionary in quotes is the Hugging Face trainer's."""
    text = first.lstrip(b"\xef\xbb\xbf \t\r\n")
    plain = text[:1].isascii() and text[:1] not in (b"{", b"[", b"")
    return plain or text.startswith(b"{'") or _has_stamp(text)


def _has_stamp(text: bytes) -> bool:
    """Tell whether a text in brackets is a line's prefix: ``[rank0]:``, ``[2025-06-01 10:00:00]``."""
    return re.match(rb"\[[\w.: |,+-]{1,60}\]", text) is not None and not text.startswith(b"[]")


def _files(sources: Sequence[str | Path]) -> list[Path]:
    """List the files, those of folders in the order of their names."""
    found: list[Path] = []
    for source in map(Path, sources):
        if source.is_dir():
            inside = _inside(source, NAMED) or _inside(source, OTHERS)
            if not inside:
                raise input_error("holds no profiles", NOTHING, file=str(source))
            found += inside
        else:
            found.append(source)
    return found


def _inside(folder: Path, patterns: tuple[str, ...]) -> list[Path]:
    return sorted({path for pattern in patterns for path in folder.glob(pattern)})


WANTED = "a log of Megatron-LM (timers with --timing-log-level 2), torchtitan, nanotron, or DeepSpeed (wall_clock_breakdown)"
ALONE = (FileKind.MEGATRON_LOG, FileKind.TORCHTITAN_LOG, FileKind.NANOTRON_LOG)
"""Logs of trainers that print no lines of another one: DeepSpeed's stand among those of what drives it."""

LOGS = (*ALONE, FileKind.DEEPSPEED_LOG, FileKind.NEMO_LOG, FileKind.TRAINER_LOG)

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
    # A job that restarts prints its sizes again; other sizes are another job, whose steps would be mixed in.
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
    """Take over what a run's columns say; raises ``InputError`` for a step or a timer that no run has."""
    cells = run.columns
    named = (cells.get(name) for name in ("step_time_s", "tokens_s_gpu"))
    seconds, rate = (float(cell) if isinstance(cell, int | float) else None for cell in named)
    longest_s = max([seconds or 0.0, *(high for _, high in run.timers_s.values())])
    if longest_s > LONGEST_NS / 1e9:
        raise input_error(f"tells of {format_seconds(longest_s)} in a step", "a day at most", file=file)
    trainer = kind.removesuffix("-log")
    if any(name in run.timers_s for name in ("fwd", "bwd")):
        trainer = "deepspeed"  # Megatron-DeepSpeed prints the lines of both
    return LoggedProfile(
        source=file,
        trainer=trainer,
        steps=run.steps,
        step_s=seconds,
        tokens_s_gpu=rate,
        samples_per_s=run.samples_per_s,
        # other logs round their sizes to three or four digits
        stated={
            name: value
            for name in (_SIZES if kind == FileKind.MEGATRON_LOG else ())
            if isinstance(value := cells.get(name), int)
        },
        # a profile has no job to give beside it
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
            rest = rest[:LONGEST_LINE]  # a line without an end must not fill the memory
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
