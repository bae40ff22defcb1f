"""YAML and JSON files as plain data that remembers its lines; every way in which a file can be unreadable."""

from __future__ import annotations

import os
import re
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import resources
from stat import S_ISFIFO
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

from layoutopt.optimizer.specs.errors import InputError, Problem, input_error
from layoutopt.optimizer.specs.units import shown

if TYPE_CHECKING:
    from pathlib import Path

    from yaml import MappingNode, Node, ScalarNode

KeyPath = tuple[str | int, ...]
MAX_BYTES = 4_000_000
"""Specification files are a few kilobytes; explicit cluster graphs, read elsewhere, may be larger."""
MAX_NODES = 200_000
"""Aliases can make a small file unfold without end; no honest file has this many values."""
MAX_DEPTH = 50
PIPE_WAIT_S = 10.0
"""Longest wait for somebody to open a pipe for writing; what comes through it may take longer."""

_YAML = "tag:yaml.org,2002:"
_INTEGER = re.compile(r"[-+]?\d[\d_]*")
# YAML 1.1 reads 1e-4 and 15.6e12 as text because the exponent has no sign or the mantissa no point
_FLOAT = re.compile(r"[-+]?(\d[\d_]*\.?[\d_]*|\.\d[\d_]*)([eE][-+]?\d+)?")
_WORDS: dict[str, Any] = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_WORDS |= {"null": None, "~": None, "": None}
_WORDS |= {".inf": float("inf"), "-.inf": float("-inf"), ".nan": float("nan")}


@dataclass(frozen=True, slots=True)
class Document:
    """A file's content as mappings, lists and scalars, and the line of every key and list entry."""

    data: Any
    file: str
    lines: dict[KeyPath, int] = field(default_factory=dict)

    def line(self, path: KeyPath) -> int | None:
        """Return the line of a key, or of the nearest mapping around a key that is not there."""
        for length in range(len(path), -1, -1):
            if path[:length] in self.lines:
                return self.lines[path[:length]]
        return None

    def problem(self, path: KeyPath, what: str, allowed: str = "") -> Problem:
        """Build a problem at a key."""
        return Problem(what=what, allowed=allowed, file=self.file, line=self.line(path), key=dotted(path))

    def at(self, path: KeyPath) -> Any:
        """Return the value at a path."""
        value = self.data
        for part in path:
            value = value[part]
        return value

    def replaced(self, path: KeyPath, value: Any) -> Document:
        """Return a copy with another value at a path of mappings."""
        if not path:
            return replace(self, data=value)
        inner = replace(self, data=self.data[path[0]]).replaced(path[1:], value).data
        return replace(self, data={**self.data, path[0]: inner})


def dotted(path: KeyPath) -> str:
    """Write a path as users do: ``levels[1].gpus``."""
    parts = [f"[{part}]" if isinstance(part, int) else f".{_one_line(part)}" for part in path]
    return "".join(parts).removeprefix(".")


def _one_line(key: str) -> str:
    return key if key.isprintable() and len(key) <= 40 else shown(key)


def read_text(path: Path, *, max_bytes: int = MAX_BYTES, wanted: str = "") -> str:
    """Read a text file; raises ``InputError`` if it is missing, not a file, too large, or not UTF-8 text."""
    return decode(read_bytes(path, max_bytes=max_bytes, wanted=wanted), str(path))


def read_bytes(path: Path, *, max_bytes: int = MAX_BYTES, wanted: str = "") -> bytes:
    """Read a file of a user, never more than a limit: a device such as ``/dev/zero`` does not end.

    Raises ``InputError``, which says what is ``wanted``, if it is missing, not a file, or too large, and where nothing
    writes to a pipe within ``PIPE_WAIT_S``.
    """
    name = str(path)
    try:
        with open(path, "rb", opener=_open_at_once) as stream:
            handle = stream.fileno()
            # Opened without waiting, so that a pipe that nobody writes to is an error and not a stop without end.
            first = _first_of_pipe(handle, name) if S_ISFIFO(os.fstat(handle).st_mode) else b""
            os.set_blocking(handle, True)
            raw = first + stream.read(max_bytes + 1 - len(first))
    except InputError:  # a ValueError too
        raise
    except IsADirectoryError:
        raise input_error("is a directory", "a file", file=name) from None
    except OSError as error:
        raise input_error(error.strerror or "cannot be read", wanted, file=name) from None
    except ValueError:  # a null byte in the name
        raise input_error("is not a file name", file=shown(name)) from None
    if len(raw) > max_bytes:
        raise input_error(f"is larger than {max_bytes // 1_000_000} MB", file=name)
    return raw


def _open_at_once(name: str, flags: int) -> int:
    """Open a file without waiting for the writer of a pipe."""
    return os.open(name, flags | getattr(os, "O_NONBLOCK", 0))


def _first_of_pipe(handle: int, name: str) -> bytes:
    """Wait for a pipe's writer and return what is there by then; one that has opened it may take its time."""
    end = monotonic() + PIPE_WAIT_S
    while monotonic() < end:
        try:
            first = os.read(handle, 2**16)
        except BlockingIOError:  # open for writing, and empty
            return b""
        if first:
            return first
        sleep(0.01)
    raise input_error(f"nothing wrote to the pipe for {PIPE_WAIT_S:g} s", "a file", file=name)


def decode(raw: bytes, file: str) -> str:
    """Decode UTF-8 (with or without byte-order mark), or UTF-16 with one. Raises ``InputError`` for binary content."""
    # PowerShell 5 writes UTF-16 with a mark where a command's output is redirected to a file (about_Character_Encoding).
    try:
        text = raw.decode("utf-16" if raw[:2] in (BOM_UTF16_LE, BOM_UTF16_BE) else "utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise input_error("is not UTF-8 text", "a YAML file", file=file, line=line) from None
    # Many binary files begin with bytes that are valid UTF-8; text has no null character.
    if "\0" in text:
        raise input_error("is a binary file", "a YAML file", file=file)
    return text


def plain_yaml(text: str) -> Any:
    """Return what trusted YAML of the package itself says; read by libyaml where it is there."""
    import yaml

    return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))


@cache
def packaged(room: str, name: str) -> Any:
    """Return what ``NAME.yaml`` of a room of the package says, read once: nobody may change it."""
    file = resources.files(f"layoutopt.optimizer.{room}").joinpath(f"{name}.yaml")
    return plain_yaml(file.read_text(encoding="utf-8"))


def parse_document(text: str, file: str) -> Document:
    """Parse YAML (hence also JSON) whose top level is a mapping.

    Raises ``InputError`` with every duplicate key and unusable value, or with the first syntax error.
    """
    import yaml

    # libyaml reads several times faster, and is not part of every build of PyYAML.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        # Nodes and not values: they know their lines, and aliases are not unfolded yet.
        root = yaml.compose(text, Loader=loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise input_error(_syntax(error), file=file, line=mark.line + 1 if mark else None) from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        reason = " ".join(str(getattr(error, "reason", "") or "syntax error").split())
        raise input_error(f"not valid YAML: {reason}", file=file) from None
    if root is None:
        raise input_error("is empty", "a YAML mapping", file=file)
    reader = _Reader(file)
    data = reader.read(root, (), 0)
    if reader.problems:
        raise InputError(*reader.problems)
    if not isinstance(data, dict):
        raise input_error(f"top level is {_kind(data)}", "a mapping of keys to values", file=file, line=1)
    return Document(data, file, reader.lines)


def require_small(root: Node, file: str) -> None:
    """Raises ``InputError`` for a composed document that unfolds to more than ``MAX_NODES`` values, or holds itself.

    Nothing is unfolded to find out.
    """
    sizes: dict[int, int] = {}
    opened: set[int] = set()
    waiting: list[tuple[Node, bool]] = [(root, False)]
    while waiting:
        node, left = waiting.pop()
        children = _children(node)
        if left:
            # Behind its children, so that their sizes are known; an alias adds its size once for every use.
            sizes[id(node)] = 1 + sum(sizes[id(child)] for child in children)
        elif id(node) not in opened:
            opened.add(id(node))
            waiting.append((node, True))
            waiting += [(child, False) for child in children]
            continue
        # what was opened and is not counted yet is met inside of itself
        if sizes.get(id(node), MAX_NODES + 1) > MAX_NODES:
            what = f"unfolds to more than {MAX_NODES:,} values"
            raise input_error(what, "a file without nested aliases", file=file, line=node.start_mark.line + 1)


def _children(node: Node) -> list[Node]:
    if isinstance(node.value, str):
        return []
    return [part for item in node.value for part in (item if isinstance(item, tuple) else (item,))]


def _syntax(error: Any) -> str:
    what = " ".join(str(error.problem or error.context or "syntax error").split())
    if "cannot start any token" in what:
        what += "; indent with spaces, not tabs"
    return f"not valid YAML: {what}"


def _kind(data: object) -> str:
    return "a list" if isinstance(data, list) else f"a single value, {shown(data)}"


class _Reader:
    """Turns nodes into data, collecting lines and problems."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.lines: dict[KeyPath, int] = {}
        self.problems: list[Problem] = []
        self._nodes = 0

    def read(self, node: Node, path: KeyPath, depth: int) -> Any:
        """Turn a node into plain data and note its line; too many or too deep nodes are refused."""
        import yaml

        self._nodes += 1
        # An alias is met again elsewhere; the first place is where a user looks.
        self.lines.setdefault(path, node.start_mark.line + 1)
        if self._nodes > MAX_NODES:
            allowed = f"at most {MAX_NODES}, aliases included"
            raise input_error("unfolds to too many values", allowed, file=self.file)
        if depth > MAX_DEPTH:
            allowed = f"at most {MAX_DEPTH} levels"
            raise InputError(self._problem(path[:3], node, "is nested too deeply", allowed))
        # Tags can name classes to be built; a file of plain values needs none.
        if not node.tag.startswith(_YAML) or node.tag.startswith(_YAML + "python"):
            tag = shown(node.tag.removeprefix(_YAML))
            self.problems.append(self._problem(path, node, f"tag {tag} is not accepted", "plain values"))
            return None
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path, depth)
        if isinstance(node, yaml.SequenceNode):
            return [self.read(item, (*path, index), depth + 1) for index, item in enumerate(node.value)]
        assert isinstance(node, yaml.ScalarNode)
        return _scalar(node)

    def _mapping(self, node: MappingNode, path: KeyPath, depth: int) -> dict[str, Any]:
        import yaml

        data: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                what = "a key is a list or mapping"
                self.problems.append(self._problem(path, key_node, what, "plain keys"))
                continue
            key = str(key_node.value)
            # ``<<`` is of YAML 1.1 alone and would bring keys from elsewhere, whose lines no message could name.
            if key_node.tag == _YAML + "merge":
                what = "merge keys are not accepted"
                self.problems.append(self._problem((*path, key), key_node, what, "the keys themselves"))
                continue
            place = (*path, key)
            if key in data:
                # YAML keeps the last of equal keys without a word, which hides a slip.
                first = self.lines[place]
                self.problems.append(self._problem(place, key_node, f"duplicate key, first on line {first}"))
                continue
            self.lines[place] = key_node.start_mark.line + 1
            data[key] = self.read(value_node, place, depth + 1)
        return data

    def _problem(self, path: KeyPath, node: Node, what: str, allowed: str = "") -> Problem:
        line = node.start_mark.line + 1
        return Problem(what=what, allowed=allowed, file=self.file, line=line, key=dotted(path))


def _scalar(node: ScalarNode) -> Any:
    # Quotes say text: "1f1b", "on" and "8" stay what they are, and fields that want numbers read them anyway.
    quoted = node.style in ("'", '"', "|", ">")
    return str(node.value) if quoted else plain_scalar(str(node.value))


def exists(path: Path) -> bool:
    """Tell whether a path exists; a name that no file can have does not."""
    try:
        return path.exists()
    except (OSError, ValueError):  # too long, or with a null byte
        return False


def plain_scalar(text: str) -> Any:
    """Read an unquoted scalar: true/false/yes/no, null, decimal numbers with any exponent, else text.

    Octal, hexadecimal and base-60 numbers of YAML 1.1 (``1:30`` is 90) stay text: nobody means them here.
    """
    word = text.lower()
    if word in _WORDS:
        return _WORDS[word]
    # Underscores part the digits of YAML 1.1's numbers, as in Python: 16_384.
    if _INTEGER.fullmatch(text):
        digits = text.replace("_", "")
        # Python refuses to print very long integers, also inside an error.
        return int(digits) if len(digits) <= 30 else float(digits)
    return float(text.replace("_", "")) if _FLOAT.fullmatch(text) else text
