"""What a value in a file may be: whole numbers, quantities, words, switches, each with its exact error."""

from __future__ import annotations

from dataclasses import dataclass, field
from difflib import SequenceMatcher
from functools import wraps
from typing import TYPE_CHECKING, Any

from pydantic_core import PydanticCustomError, core_schema

from layoutopt.optimizer.specs.errors import InputError, input_error
from layoutopt.optimizer.specs.printable import require_name
from layoutopt.optimizer.specs.units import (
    COUNT,
    TOKENS,
    Dimension,
    format_count,
    parse_quantity,
    shown,
    whole_number,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from enum import StrEnum


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldKind:
    """A kind of value: how it is read, and its JSON Schema. Use as ``Annotated[int, whole()]``."""

    read: Callable[[Any], Any]
    schema: Mapping[str, Any] = field(default_factory=dict)

    def __get_pydantic_core_schema__(self, source: object, handler: object) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(self._validate)

    def __get_pydantic_json_schema__(self, core: object, handler: object) -> dict[str, Any]:
        return dict(self.schema)

    def _validate(self, value: Any) -> Any:
        return as_kind_error(self.read)(value)


def as_kind_error(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Let pydantic collect the ``InputError`` of a reading function instead of stopping at it."""

    @wraps(read)
    def wrapped(value: Any) -> Any:
        """Turn an ``InputError`` into pydantic's own."""
        try:
            return read(value)
        except InputError as error:
            # pydantic goes on with the other fields after an error of its own, and shows what it was handed in ``ctx``.
            problem = error.problems[0]
            context = {"what": problem.what, "allowed": problem.allowed}
            raise PydanticCustomError("kind", "{what}", context) from None

    return wrapped


COUNT_TEXT = r"^\s*\d[\d_,]*(\.\d+)?([eE]\+?\d+)?\s*([kKMBT]|[KMGT]i)?\s*$"
"""What editors take for a count beside plain numbers."""


def whole(
    least: int = 1, most: int = 1_000_000_000, *, dimension: Dimension = COUNT, tokens_key: str = ""
) -> FieldKind:
    """Return the kind of whole numbers in a range; ``tokens_key`` is the key that counts the same in tokens."""
    # A limit that nobody meets only makes the message longer.
    allowed = f"a whole number from {least}" + (f" to {most}" if most < 1_000_000_000 else "")

    def read(value: Any) -> int:
        """Read a whole number in the range."""
        number = whole_number(value, dimension)
        # "16M tokens" under a key that counts sequences is a number under the wrong key, not a wrong number.
        if number is None and tokens_key and (tokens := whole_number(value, TOKENS)) is not None:
            raise input_error(f"{shown(value)} counts tokens", f"{tokens_key}: {format_count(tokens)}")
        if number is None:
            raise input_error(f"{shown(value)} is not a whole number", allowed)
        if not least <= number <= most:
            raise input_error(f"{shown(value)} is out of range", f"a whole number from {least} to {most}")
        return number

    # Editors that know the schema would underline "8Ki" without the text's form.
    integer = {"type": "integer", "minimum": least, "maximum": most}
    return FieldKind(read=read, schema={"anyOf": [integer, {"type": "string", "pattern": COUNT_TEXT}]})


def quantity(
    dimension: Dimension, *, least: float | None = None, most: float | None = None, above: float | None = 0.0
) -> FieldKind:
    """Return the kind of quantities of a dimension, above 0 unless ``least`` is given."""
    above = None if least is not None else above

    def read(value: Any) -> float:
        """Read a quantity in the range."""
        number = parse_quantity(value, dimension)
        if above is not None and number <= above:
            raise input_error(f"{shown(value)} is not above {above:g}", dimension.examples)
        if least is not None and number < least:
            raise input_error(f"{shown(value)} is below {least:g}", f"at least {least:g}")
        if most is not None and number > most:
            raise input_error(f"{shown(value)} is above {most:g}", f"at most {most:g}")
        return number

    number: dict[str, Any] = {"type": "number"}
    number |= {"exclusiveMinimum": above} if above is not None else {}
    number |= {"minimum": least} if least is not None else {}
    number |= {"maximum": most} if most is not None else {}
    text = {"type": "string", "description": dimension.examples}
    return FieldKind(read=read, schema={"anyOf": [number, text]})


def _read_switch(value: Any) -> bool:
    if not isinstance(value, bool):
        raise input_error(f"{shown(value)} is neither true nor false", "true or false")
    return value


SWITCH = FieldKind(read=_read_switch, schema={"type": "boolean"})


def _read_line(value: Any) -> str:
    # YAML reads a name of digits as a number, and 007 would come out as 7.
    if not isinstance(value, str):
        raise input_error(f"{shown(value)} is not text", "text; put numbers in quotes")
    require_name(value, key="")
    return value.strip()


NAME = FieldKind(read=_read_line, schema={"type": "string"})


def _read_lines(value: Any) -> tuple[str, ...]:
    return tuple(_read_line(part) for part in (value if isinstance(value, list) else [value]))


_TEXTS = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}
NAMES = FieldKind(read=_read_lines, schema=_TEXTS)
"""One line of text, or a list of such."""


def _read_source(value: Any) -> tuple[str, ...]:
    parts = value if isinstance(value, list) else [value]
    if not all(isinstance(part, str) for part in parts):
        raise input_error(f"{shown(value)} is not text", "text or a list of texts")
    return tuple(" ".join(part.split()) for part in parts)


SOURCE = FieldKind(read=_read_source, schema=_TEXTS)


def word(words: type[StrEnum], aliases: Mapping[str, StrEnum] | None = None) -> FieldKind:
    """Return the kind of the words of an enumeration; ``aliases`` are further spellings."""
    own = {str(item.value): item for item in words}
    return choice(own | dict(aliases or {}), listed=list(own))


def choice(table: Mapping[str, Any], listed: list[str] | None = None) -> FieldKind:
    """Return the kind of the words of a table, read as the table's values; ``listed`` are those that are offered."""
    offered = list(table) if listed is None else listed

    def read(value: Any) -> Any:
        """Read one of the table's words, whatever its case."""
        if isinstance(value, str) and value.lower() in table:
            return table[value.lower()]
        raise unknown_word(value, offered, among=table)

    return FieldKind(read=read, schema={"enum": offered})


def unknown_word(value: Any, listed: Iterable[str], *, among: Iterable[str] | None = None) -> InputError:
    """Build the error for a word that is not in a list, with the nearest one."""
    listed = list(listed)
    near = nearest(str(value), among or listed)
    return input_error(f"{shown(value)} is unknown{near}", ", ".join(listed))


def nearest(text: str, known: Iterable[str]) -> str:
    """Return ``"; did you mean X?"`` for the most similar known word, or nothing."""
    word = nearest_word(text, known)
    return f"; did you mean {word}?" if word else ""


def nearest_word(text: str, known: Iterable[str]) -> str:
    """Return the most similar known word, empty where none is near."""
    # difflib is quadratic in the length: no word that is meant is this long
    if not 0 < len(text) <= 60:
        return ""
    text = text.lower()
    cutoff = 0.6 if len(text) > 4 else 0.5  # one wrong letter out of two is still a near miss
    # of equally similar words, the one that begins alike
    scored = [(SequenceMatcher(None, word, text).ratio(), word[:1] == text[0], word) for word in known]
    best = max(scored, default=(0.0, False, ""))
    return best[2] if best[0] >= cutoff else ""
