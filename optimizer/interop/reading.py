"""Parse untrusted text: syntax errors become one-line problems, and values are checked as they are read."""

from __future__ import annotations

import ast
import json
import math
import re
import warnings
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from layoutopt.optimizer.specs.document import require_small
from layoutopt.optimizer.specs.errors import InputError, input_error
from layoutopt.optimizer.specs.layout_string import shorten as shorten

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

P = ParamSpec("P")
R = TypeVar("R")

LARGEST = 10**15
"""Above any size, token count or rate in such a file; larger integers are typing errors."""

MAX_LAYERS = 10_000
MAX_DEGREE = 1_000_000


def parse_python(text: str, file: str = "") -> ast.Module:
    """Parse a Python file without running it. Raises ``InputError`` with the line for anything else."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in somebody's strings are not ours to report
            return ast.parse(text)
    except SyntaxError as error:
        raise input_error(f"not valid Python: {shorten(error.msg)}", file=file, line=error.lineno) from None
    except (ValueError, RecursionError, MemoryError):
        raise input_error("not valid Python", file=file) from None


def parse_json(text: str, file: str = "") -> dict[str, Any]:
    """Parse a JSON object. Raises ``InputError`` with the line for anything else."""
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise input_error(
            f"not valid JSON: {error.msg}", "one JSON object", file=file, line=error.lineno
        ) from None
    except (ValueError, RecursionError):
        raise input_error("not valid JSON: numbers too long or nested too deeply", file=file) from None
    return _mapping(data, "JSON object", file)


def parse_yaml(text: str, file: str = "") -> dict[str, Any]:
    """Parse a YAML mapping; anything else is an ``InputError`` with the line."""
    return _mapping(parse_yaml_value(text, file), "YAML mapping", file)


def parse_yaml_value(text: str, file: str = "") -> Any:
    """Parse any YAML document that does not unfold without end.

    Raises ``InputError`` with the line for anything else.
    """
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)(text)
    try:
        # Aliases are counted on the nodes: built, nine lines of them fill the memory.
        root = loader.get_single_node()
        if root is None:
            return None
        require_small(root, file)
        return loader.construct_document(root)
    except InputError:
        raise
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else None
        what = " ".join(str(error.problem or "syntax error").split())
        raise input_error(f"not valid YAML: {what}", file=file, line=line) from None
    except (yaml.YAMLError, ValueError, TypeError, AttributeError, OverflowError, RecursionError):
        # the constructors of dates, numbers and merge keys raise these on malformed scalars
        raise input_error("not valid YAML", file=file) from None
    finally:
        loader.dispose()


def parse_toml(text: str, file: str = "") -> dict[str, Any]:
    """Parse a TOML document. Raises ``InputError`` with the line for anything else."""
    import tomllib

    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        place = re.search(r" \(at line (\d{1,9})", str(error))
        what = f"not valid TOML: {shorten(str(error).split(' (at ')[0])}"
        raise input_error(what, file=file, line=int(place[1]) if place else None) from None


def _mapping(data: Any, kind: str, file: str) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise input_error(f"holds {type(data).__name__}, not a {kind}", file=file)
    return {str(key): value for key, value in data.items()}


LAYOUT_WORDS = re.compile(
    r"parallel|shard|micro_?batch|offload|recompute|checkpointing|pipeline|zero", re.IGNORECASE
)
"""Keys whose meaning may change a layout."""

ELSEWHERE = re.compile(
    r"ckpt|eval|log|save|load|init|dataset|random|rollout|zero_(shot|centered|one)|num_zeros|nonzero|rewarm|dtype"
    r"|mesh|backend|timeout|overlap|async_tensor|checkpointing_kwargs|communication|_fqns|microbatch_group"
    r"|deepspeed_activation|no_pipeline_parallel|bucket|contigious|reduce_scatter|^rl_|^ref_|sglang|hierarchical_context"
    # asked for where they mean something
    r"|data_parallel_sharding_strategy|^expert_tensor_parallel_size|^virtual_pipeline",
    re.IGNORECASE,
)
"""Keys with such a word that concern something else: checkpoints, data, evaluation, or how a transfer is made."""


UNREAD = "not read, though it may change the layout"


DEGREES = re.compile(
    r"size|degree|count|num|nodes|gpus|parallelism|micro_?batch|stages?$|(^|_)[tpcedv]p$", re.IGNORECASE
)
"""Keys of numbers, which 1 turns off; of a switch it turns on."""


def _is_on(key: str, value: Any) -> bool:
    """Tell whether a key's value is none of those that mean off: false, nothing, a degree of 1."""
    if type(value) is int and value == 1:
        return not DEGREES.search(key)
    return value is True or value not in (None, False, 0, -1, "", "none", "None", "null", "auto", [], {})


class Watched(dict[str, Any]):
    """A mapping that remembers which of its keys were asked for."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        super().__init__(data)
        self.asked: set[str] = data.asked if isinstance(data, Watched) else set()

    def get(self, key: str, default: Any = None) -> Any:
        """Return a value, and remember that it was asked for."""
        self.asked.add(key)
        return super().get(key, default)

    def __getitem__(self, key: str) -> Any:
        self.asked.add(key)
        return super().__getitem__(key)

    def __contains__(self, key: object) -> bool:
        self.asked.add(str(key))
        return super().__contains__(key)


class Fields:
    """Typed reads from one mapping of a file.

    ``prefix`` is the dotted path of the mapping in the file; ``unsaid`` says where settings may be that the
    file does not hold, and ``left_open`` which keys have a value that only the outside knows. Every getter
    takes alternative names, first present wins; an absent or null value is None; a value of the wrong type
    raises ``InputError``.
    """

    def __init__(self, data: Mapping[str, Any], *, file: str = "", prefix: str = "") -> None:
        self.data: Mapping[str, Any] = Watched(data)
        self.file = file
        self.prefix = prefix
        self.printed = False
        """Whether the trainer itself printed its settings, derived ones and defaults among them."""

        self.inner: dict[str, Watched] = {}
        self.sections: list[Fields] = []
        """Nested mappings that were read."""
        self.unsaid = ""
        self.left_open: dict[str, str] = {}

    def __contains__(self, key: str) -> bool:
        return key in self.data

    def path(self, key: str) -> str:
        """Dotted path of a key, for messages."""
        return f"{self.prefix}.{key}" if self.prefix else key

    def fail(self, key: str, what: str, allowed: str = "") -> InputError:
        """Build the error of one key."""
        return input_error(what, allowed, key=self.path(key), file=self.file)

    def find(self, *keys: str) -> tuple[str, Any]:
        """Return the first of the names that is present with a value, and the value (None if none is)."""
        for key in keys:
            if self.data.get(key) is not None:
                return key, self.data[key]
        return keys[0], None

    def is_open(self, *keys: str) -> bool:
        """Tell whether a setting under one of the names, of which none is stated, may have a value all the same."""
        elsewhere = bool(self.unsaid) and self.unstated(*keys)
        return elsewhere or any(key in self.left_open for key in keys)

    def unstated(self, *keys: str) -> bool:
        """Tell whether none of the names is stated; a null states nothing."""
        return all(self.data.get(key) is None for key in keys)

    def raw(self, key: str) -> Any:
        """Return a value of any type, None where there is none."""
        return self.find(key)[1]

    def integer(self, *keys: str, least: int = 0, most: int = LARGEST) -> int | None:
        """Read a whole number in [least, most]. Raises ``InputError`` for others."""
        key, value = self.find(*keys)
        if value is None:
            return None
        if isinstance(value, float) and math.isfinite(value) and value == int(value):  # 1e6, and JSON's 4.0
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.fail(key, f"{shorten(value)!r} is not a whole number", f"{least} or more")
        if not least <= value <= most:
            limit = f"{least} or more" if most == LARGEST and value < least else f"{least} to {most}"
            raise self.fail(key, f"{shorten(value)} is out of range", limit)
        return value

    def count(self, *keys: str, default: int = 1) -> int:
        """Read a degree or count of at least 1."""
        value = self.integer(*keys, least=1, most=MAX_DEGREE)
        return default if value is None else value

    def required(self, *keys: str, least: int = 1, most: int = LARGEST) -> int:
        """Read a whole number that must be there. Raises ``InputError`` where it is not."""
        value = self.integer(*keys, least=least, most=most)
        if value is None:
            names = " or ".join(keys)
            raise self.fail(keys[0], "missing", f"needs {names}, a whole number of at least {least}")
        return value

    def number(self, *keys: str) -> float | None:
        """Read a finite number. Raises ``InputError`` for others."""
        key, value = self.find(*keys)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise self.fail(key, f"{shorten(value)!r} is not a number")
        return float(value)

    def fact(self, *keys: str) -> float | None:
        """Read a positive number that decides no price; None where anything else stands, or nothing."""
        for key in keys:
            try:
                value = float(str(self.data.get(key)))
            except ValueError:
                continue
            if 0 < value < math.inf:
                return value
        return None

    def flag(self, *keys: str) -> bool | None:
        """Read true or false. Raises ``InputError`` for others."""
        key, value = self.find(*keys)
        if value is None:
            return None
        if isinstance(value, bool):
            return value
        raise self.fail(key, f"{shorten(value)!r} is not true or false")

    def on(self, *keys: str) -> bool:
        """Read a switch that is off when absent."""
        return bool(self.flag(*keys))

    def text(self, *keys: str) -> str | None:
        """Read a string. Raises ``InputError`` for others."""
        key, value = self.find(*keys)
        if value is None or isinstance(value, str):
            return value
        raise self.fail(key, f"{shorten(value)!r} is not a string")

    def choice(self, key: str, allowed: Sequence[str]) -> str | None:
        """Read one of the given words, whatever its case. Raises ``InputError`` for others."""
        value = self.text(key)
        if value is None:
            return None
        for word in allowed:
            if word.lower() == value.lower():
                return word
        raise self.fail(key, f"{shorten(value)!r} is not known", "one of " + ", ".join(allowed))

    def items(self, *keys: str) -> list[Any] | None:
        """Read a list. Raises ``InputError`` for others."""
        key, value = self.find(*keys)
        if value is None or isinstance(value, list):
            return value
        if isinstance(value, tuple):
            return list(value)
        raise self.fail(key, f"{shorten(value)!r} is not a list")

    def words(self, *keys: str) -> tuple[str, ...] | None:
        """Read a list of strings. Raises ``InputError`` for others."""
        values = self.items(*keys)
        if values is None:
            return None
        if not all(isinstance(value, str) for value in values):
            raise self.fail(keys[0], "holds something else than strings")
        return tuple(values)

    def section(self, *keys: str) -> Fields:
        """Read a nested mapping; an absent one is empty. Raises ``InputError`` for others."""
        key, value = self.find(*keys)
        if value is None:
            value = {}
        if not isinstance(value, dict):
            raise self.fail(key, f"{shorten(value)!r} is not a mapping")
        # One watched copy per section, however often it is read: what any reader asked for counts as read.
        if key not in self.inner:
            self.inner[key] = Watched({str(name): item for name, item in value.items()})
            self.sections.append(Fields(self.inner[key], file=self.file, prefix=self.path(key)))
        return Fields(self.inner[key], file=self.file, prefix=self.path(key))

    def unread(self) -> list[str]:
        """Return the keys that are on, may change a layout and were never asked for."""
        asked = self.data.asked if isinstance(self.data, Watched) else set()
        left = [key for key, value in self.data.items() if key not in asked and _is_on(key, value)]
        # A reader knows what it read, not what a release adds: words in the names of keys tell what may count.
        own = [self.path(key) for key in left if LAYOUT_WORDS.search(key) and not ELSEWHERE.search(key)]
        return own + [key for section in self.sections for key in section.unread()]

    def name_unread(self, notes: list[str]) -> None:
        """Name the keys that may change a layout and are not read, once everything else is."""
        if not any(note.startswith(UNREAD) for note in notes) and (found := self.unread()):
            notes.append(f"{UNREAD}: {', '.join(dict.fromkeys(map(shorten, found)))}")


def importer(function: Callable[P, R]) -> Callable[P, R]:
    """Mark a public importer: text nested or grown beyond what Python can walk is bad input, not a crash."""

    @wraps(function)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> R:
        """Run the importer; say what was too deep."""
        try:
            return function(*args, **kwargs)
        except (RecursionError, MemoryError, OverflowError):
            raise input_error("nested too deeply or with numbers too large to read") from None

    return guarded
