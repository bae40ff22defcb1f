"""Profiles of any kind, by what the files hold."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from layoutopt.optimizer.interop.profiles.kineto import read_kineto
from layoutopt.optimizer.interop.profiles.options import ProfileOptions
from layoutopt.optimizer.specs.errors import input_error

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from layoutopt.optimizer.diagnose.profile import RankProfile

SQLITE = b"SQLite format 3\x00"
NAMED = ("*trace*.json", "*trace*.json.gz", "*.sqlite")
OTHERS = ("*.json", "*.json.gz")
"""What profiles in a folder are called; other JSON lies beside traces, and only where there are none may be profiles."""

NOTHING = "traces of PyTorch's profiler (.json, .json.gz), Nsight Systems exports (.sqlite)"


def read_profiles(
    sources: Sequence[str | Path],
    options: ProfileOptions | None = None,
    on_progress: Callable[[str, float], None] | None = None,
) -> tuple[RankProfile, ...]:
    """Read the profiles of a job: files, or folders of them.

    ``on_progress`` is called with a file's name and the share of it that was read. Raises ``InputError`` for what is none.
    """
    options = options or ProfileOptions()
    found: list[RankProfile] = []
    for path in _files(sources):
        report = None if on_progress is None else (lambda share, name=path.name: on_progress(name, share))
        if _begins_with(path, SQLITE):
            from layoutopt.optimizer.interop.profiles.nsight import read_nsight

            found += read_nsight(path, options)
        else:
            found.append(read_kineto(path, options, report))
    return tuple(found)


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


def _begins_with(path: Path, sign: bytes) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(sign)) == sign
    except OSError as error:
        raise input_error(f"cannot be read: {error.strerror}", NOTHING, file=str(path)) from None
