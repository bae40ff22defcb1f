"""Chrome trace files read event by event, compressed or not, in memory that does not grow with the file."""

from __future__ import annotations

import codecs
import gzip
import json
import re
import zlib
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any

from layoutopt.optimizer.specs.errors import input_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Event = dict[str, Any]
    OnProgress = Callable[[float], None]

CHUNK = 2**20
LARGEST_EVENT = 16 * 2**20
"""Characters that one event, or what stands before or behind the events, may have."""

BEGINNING = 4096
"""Bytes that tell what a file is."""

SQLITE = b"SQLite format 3\x00"
GZIP = b"\x1f\x8b"
WANTED = "a trace of PyTorch's profiler: JSON with traceEvents"
_TRACE = re.compile(
    rb'^\s*[{\[].*"(traceEvents|schemaVersion|deviceProperties|distributedInfo)"\s*:', re.DOTALL
)
_START = re.compile(r'"traceEvents"\s*:\s*\[')
_BETWEEN = re.compile(r"[\s,]*")
_NO_VALUE = re.compile(r":\s*(?=[,}])")


@dataclass(slots=True)
class TraceFile:
    """One trace file. ``header`` has what stands beside the events, complete when they have been read."""

    path: Path
    on_progress: OnProgress | None = None
    header: dict[str, Any] = field(default_factory=dict)
    _text: str = ""
    _place: int = 0
    _ended: bool = False

    def events(self) -> Iterator[Event]:
        """Yield the events in the file's order.

        Raises ``InputError`` for a file that is no trace, ends in the middle, or holds several traces one behind another.
        """
        with opened(self.path, self.on_progress, wanted=WANTED) as stream:
            self._begin(stream)
            yield from self._listed(stream)
            self._finish(stream)

    def _listed(self, stream: TextStream) -> Iterator[Event]:
        # One event at a time: a trace of gigabytes read as a whole takes many times its size.
        decode = json.JSONDecoder().raw_decode
        while True:
            self._skip(stream)
            if self._text.startswith("]", self._place):
                return
            try:
                event, self._place = decode(self._text, self._place)
            except (
                json.JSONDecodeError
            ) as error:  # most often an event that goes on in the next piece of the file
                self._more(stream, error)
                continue
            except (RecursionError, ValueError):
                raise self._too_deep() from None
            if isinstance(event, dict):
                yield event

    def _skip(self, stream: TextStream) -> None:
        """Go to the next event; raises ``InputError`` where the file ends before its list of events does."""
        while True:
            match = _BETWEEN.match(self._text, self._place)
            self._place = match.end() if match else self._place
            if self._place < len(self._text):
                return
            if not self._fill(stream):
                raise truncated(self.path)

    def _more(self, stream: TextStream, error: json.JSONDecodeError) -> None:
        """Read on where an event is not complete; mend a key without a value, which some releases write."""
        cut = error.pos >= len(self._text) - 64 or "Unterminated" in error.msg
        event, place = self._text[self._place :], error.pos - self._place
        valueless = _NO_VALUE.search(event[max(place - 64, 0) : place + 2]) is not None
        if valueless and (not cut or self._ended):
            self._text, self._place = _NO_VALUE.sub(': ""', event), 0
        elif not cut or len(event) > LARGEST_EVENT:
            raise input_error(f"is no JSON: {error.msg[:60]}", WANTED, file=str(self.path))
        elif not self._fill(stream) and not valueless:
            raise truncated(self.path)

    def _too_deep(self) -> Exception:
        what = "is nested too deeply, or has a number of too many digits"
        return input_error(what, WANTED, file=str(self.path))

    def _begin(self, stream: TextStream) -> None:
        """Read what stands before the events."""
        while not (found := _START.search(self._text)):
            filled = self._fill(stream)
            first = self._text.lstrip()[:1]
            if first == "[":
                self._place = self._text.index("[") + 1
                return
            if not filled or first not in ("{", "") or len(self._text) > LARGEST_EVENT:
                raise input_error("holds no traceEvents", WANTED, file=str(self.path))
        before = self._text[: found.start()].rstrip().rstrip(",")
        self.header |= self._object(before + "}")
        self._place = found.end()

    def _finish(self, stream: TextStream) -> None:
        """Read what stands behind the events."""
        while len(self._text) - self._place < LARGEST_EVENT and self._fill(stream):
            pass
        rest = self._text[self._place + 1 :].strip()
        if not rest:
            return
        try:
            behind, end = json.JSONDecoder().raw_decode("{" + rest.removeprefix(",").lstrip())
        except json.JSONDecodeError:
            raise truncated(self.path) from None
        except (RecursionError, ValueError):
            raise self._too_deep() from None
        if "traceEvents" in behind or rest.removeprefix(",").lstrip()[end - 1 :].strip():
            what = "holds several traces one behind another"
            raise input_error(what, "one file per rank", file=str(self.path))
        self.header |= behind

    def _object(self, text: str) -> dict[str, Any]:
        try:
            found = json.loads(_NO_VALUE.sub(': ""', text))
        except json.JSONDecodeError as error:
            raise input_error(f"is no JSON: {error.msg[:60]}", WANTED, file=str(self.path)) from None
        except (RecursionError, ValueError):
            raise self._too_deep() from None
        return found if isinstance(found, dict) else {}

    def _fill(self, stream: TextStream) -> bool:
        """Read on; False at the end of the file."""
        if self._ended:
            return False
        chunk = stream.read()
        self._ended = not chunk
        self._text, self._place = self._text[self._place :] + chunk, 0
        return not self._ended


def truncated(path: Path) -> Exception:
    """Return the error of a file that ends too early."""
    return input_error("ends in the middle: the file is truncated", "the whole file", file=str(path))


def beginning(path: Path, wanted: str = WANTED) -> bytes:
    """Return the first bytes of a file, decompressed.

    Raises ``InputError`` for what can't be read or decompressed; ``wanted`` says what would be valid.
    """
    try:
        require_regular(path)
        with path.open("rb") as file:
            first = file.read(BEGINNING)
        return zlib.decompressobj(wbits=31).decompress(first, BEGINNING) if first.startswith(GZIP) else first
    except zlib.error:
        raise truncated(path) from None
    except OSError as error:
        raise input_error(f"cannot be read: {error.strerror}", wanted, file=str(path)) from None


def is_compressed(path: Path) -> bool:
    """Tell whether a file that could be read is gzip's."""
    with path.open("rb") as file:
        return file.read(len(GZIP)) == GZIP


def is_profile(first: bytes) -> bool:
    """Tell a trace of PyTorch's profiler and a report of Nsight Systems by how they begin."""
    return first.startswith(SQLITE) or _TRACE.search(first) is not None


def require_regular(path: Path) -> None:
    """Raises ``InputError`` for pipes, devices and folders, which cannot be read twice and may never end."""
    if path.exists() and not path.is_file():
        raise input_error("is no regular file", "a file: what a pipe gives, saved first", file=str(path))


@contextmanager
def opened(
    path: Path, on_progress: OnProgress | None, *, wanted: str, errors: str = "strict"
) -> Iterator[TextStream]:
    """Open a file of text, compressed or not; ``errors`` says what becomes of bytes that are no UTF-8.

    Raises ``InputError`` in one line, also for what fails while the file is read.
    """
    try:
        require_regular(path)
        with path.open("rb") as raw:
            size = max(path.stat().st_size, 1)
            compressed = raw.read(2) == GZIP  # by content: whoever copies a file may rename it
            raw.seek(0)
            content: IO[bytes] = gzip.GzipFile(fileobj=raw) if compressed else raw  # type: ignore[assignment]
            decoder = codecs.getincrementaldecoder("utf-8-sig")(errors)
            yield TextStream(raw=raw, content=content, size=size, decoder=decoder, on_progress=on_progress)
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise truncated(path) from None
    except UnicodeDecodeError:
        raise input_error("is no text", wanted, file=str(path)) from None
    except OSError as error:
        raise input_error(f"cannot be read: {error.strerror}", wanted, file=str(path)) from None


@dataclass(slots=True)
class TextStream:
    """The text of a file in pieces."""

    raw: IO[bytes]
    content: IO[bytes]
    size: int
    decoder: codecs.IncrementalDecoder
    on_progress: OnProgress | None = None

    def read(self) -> str:
        """Return the next piece, empty at the end."""
        while True:
            data = self.content.read(CHUNK)
            text = self.decoder.decode(data, final=not data)
            if self.on_progress is not None:
                self.on_progress(self.share)
            if text or not data:
                return text

    @property
    def share(self) -> float:
        """What of the file has been read."""
        return min(self.raw.tell() / self.size, 1.0)
