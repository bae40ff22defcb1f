"""The one way in which files are written: whole or not at all, through links, and into pipes and devices as they are."""

from __future__ import annotations

import json
import os
import stat
import sys
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from layoutopt.optimizer.specs.errors import input_error

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO

OWN_STREAMS = (1, 2)
"""Descriptors of stdout and stderr: a file that is one of them is appended to, never replaced under the process."""

ANY_WRITE = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH


def require_writable(path: Path | None, *, key: str = "") -> None:
    """Check before any work that a file can be written; raises ``InputError`` naming the option or argument ``key``."""
    if path is None:
        return
    try:
        found = _status(path)
        if found is not None and _own_stream(found) is not None:
            return
        target = _target(path)
    except OSError as error:
        raise input_error(f"cannot be written: {error.strerror}", key=key, file=str(path)) from None
    if found is not None and stat.S_ISDIR(found.st_mode):
        raise input_error("is a folder", "a file in a folder that exists", key=key, file=str(path))
    # Root may write to any file: that all write bits are off is what its owner said.
    if found is not None and not (found.st_mode & ANY_WRITE and os.access(path, os.W_OK)):
        raise input_error("is read-only", "a file that you may write to", key=key, file=str(path))
    if found is not None and not stat.S_ISREG(found.st_mode):
        return
    if not target.parent.is_dir() or not os.access(target.parent, os.W_OK):
        raise input_error("cannot be written", "a file in a folder that exists", key=key, file=str(path))


def write_file(path: Path, content: bytes, *, key: str = "") -> None:
    """Write a file so that a reader sees the old one or the whole new one; raises ``InputError`` naming ``key``."""
    with open_for_writing(path, key=key) as file:
        file.write(content)


def write_json(path: Path, plain: object, *, key: str = "") -> None:
    """Write plain data as a JSON file; raises ``InputError`` naming ``key``."""
    write_file(path, (to_json(plain) + "\n").encode(), key=key)


def to_json(plain: object) -> str:
    """Write plain data as strict JSON in ASCII: no NaN, no infinity, no control character."""
    return json.dumps(plain, indent=2, allow_nan=False)


@contextmanager
def open_for_writing(path: Path, *, key: str = "") -> Iterator[BinaryIO]:
    """Open ``path`` for new content, which appears there when the block ends well, and not at all otherwise.

    A link's target is written, with the mode that it had. Pipes and devices are written to and never replaced. Raises
    ``InputError`` naming ``key`` for what cannot be written, and lets a broken pipe through.
    """
    require_writable(path, key=key)
    try:
        found = _status(path)
        own = _own_stream(found) if found is not None else None
        if own is not None:
            sys.stdout.flush()  # what was printed before stands before it
            with os.fdopen(os.dup(own), "wb") as file:
                yield file
        elif found is not None and not stat.S_ISREG(found.st_mode):
            with path.open("wb") as file:
                yield file
        else:
            with _replacing(_target(path), found) as file:
                yield file
    except BrokenPipeError:
        raise
    except OSError as error:
        raise input_error(f"cannot be written: {error.strerror}", key=key, file=str(path)) from None


@contextmanager
def _replacing(target: Path, old: os.stat_result | None) -> Iterator[BinaryIO]:
    """Write a temporary file beside ``target`` and rename it; both survive a loss of power (fsync of file and folder)."""
    # In the same folder: a rename across file systems is a copy, which may be cut short.
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=".layoutopt-", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(handle)
        _like(temporary, old)
        Path(temporary).replace(target)
    finally:
        Path(temporary).unlink(missing_ok=True)
    _sync_folder(target.parent)


def _like(temporary: str, old: os.stat_result | None) -> None:
    """Give the new file the owner and the mode of the old one, or those of any new file."""
    if old is not None:
        with suppress(PermissionError):  # somebody else's file in a folder of ours: it becomes ours
            os.chown(temporary, old.st_uid, old.st_gid)
    # a temporary file is its owner's alone until then
    Path(temporary).chmod(stat.S_IMODE(old.st_mode) if old is not None else 0o666 & ~_umask())


def _sync_folder(folder: Path) -> None:
    """Make the rename itself durable, where the file system can."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _status(path: Path) -> os.stat_result | None:
    """Return the status of what ``path`` leads to, None where nothing is yet."""
    try:
        return path.stat()
    except FileNotFoundError:
        return None


def _target(path: Path) -> Path:
    """Return where links lead to; raises ``OSError`` for those that lead in a circle."""
    return Path(os.path.realpath(path))


def _own_stream(found: os.stat_result) -> int | None:
    """Return the descriptor of our own stdout or stderr if the file is one of them."""
    for handle in OWN_STREAMS:
        with suppress(OSError):  # closed
            if os.path.samestat(os.fstat(handle), found) and not _is_null(found):
                return handle
    return None


def _is_null(found: os.stat_result) -> bool:
    """Tell whether the file is the null device, to which several names and streams lead."""
    return stat.S_ISCHR(found.st_mode) and os.path.samestat(found, os.stat(os.devnull))


def _umask() -> int:
    """Return the process's mask of file permissions, which can only be read by setting it."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
