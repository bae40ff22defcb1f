"""Profiles of any kind, by what the files hold: traces and reports, one per rank, or the log of a job."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from layoutopt.optimizer.diagnose.logged import LoggedProfile
from layoutopt.optimizer.interop.profiles.kineto import read_kineto
from layoutopt.optimizer.interop.profiles.options import ProfileOptions
from layoutopt.optimizer.interop.profiles.trace_file import SQLITE, beginning
from layoutopt.optimizer.specs.errors import input_error

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from layoutopt.optimizer.diagnose.profile import RankProfile

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
            from layoutopt.optimizer.interop.profiles.nsight import read_nsight

            found += read_nsight(path, options)
        elif _is_log(first):
            from layoutopt.optimizer.interop.profiles.log import read_log

            if len(files) > 1:
                what = "is a log, which stands alone"
                raise input_error(what, "one log, or traces of ranks", file=str(path))
            if key := options.given:
                raise input_error(
                    "is said of traces, and this is a log", "the log alone", key=key, file=str(path)
                )
            return read_log(path, report)
        else:
            found.append(read_kineto(path, options, report))
    _require_matched(options, found)
    return tuple(found)


def _require_matched(options: ProfileOptions, profiles: Sequence[RankProfile]) -> None:
    """Raise ``InputError`` for an axis that is told of no group and no kind of call of any profile."""
    told = {group.description or group.name for one in profiles for group in one.groups}
    kinds = {kind for one in profiles for kind in one.kinds}
    known = told | kinds | {group.name for one in profiles for group in one.groups}
    if unknown := [name for name in options.axes if name not in known]:
        shown = ", ".join(sorted(told | kinds)[:MOST_SHOWN]) or "the profiles have none"
        what = f"{unknown[0][:60]!r} names no group and no kind of call in the profiles"
        raise input_error(what, shown, key="--axis")


def _is_log(first: bytes) -> bool:
    """Tell a log from JSON by how it begins; a Python dictionary in quotes is the Hugging Face trainer's."""
    text = first.lstrip(b"\xef\xbb\xbf \t\r\n")
    return (
        (text[:1].isascii() and text[:1] not in (b"{", b"[", b"")) or text[:2] in (b"{'",) or _has_stamp(text)
    )


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
