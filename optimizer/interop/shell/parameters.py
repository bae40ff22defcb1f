"""``${name...}``: elements, lengths, defaults, slices, patterns and changes of a parameter."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from layoutopt.optimizer.interop.shell.patterns import balanced, replace_glob, trim
from layoutopt.optimizer.interop.shell.pieces import PLAIN, scan
from layoutopt.optimizer.interop.shell.values import Piece, has_hole, hole, holes, joined

if TYPE_CHECKING:
    from layoutopt.optimizer.interop.shell.expand import Expander, Fields

EVERY = ("@", "*")
_DEFAULTS = (":-", ":=", ":?", ":+", "-", "=", "?", "+")
# Longer ones first: each is tried at the start of what follows the name.
_OPERATORS = (
    *_DEFAULTS, "##", "#", "%%", "%", "//", "/", "^^", "^", ",,", ",", "~~", "~", "@", ":",
)  # fmt: skip
_START = re.compile(r"\$\{(?P<mark>[#!]?)(?P<name>[A-Za-z_]\w*|\d+|[@*#?$!-])")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellParameter:
    """The parts of one ``${...}``; ``key`` is the source of an element's key."""

    name: str
    mark: str = ""
    key: str | None = None
    operator: str = ""
    rest: str = ""


def read_parameter(source: str) -> ShellParameter | None:
    """Take ``${...}`` apart, None where it is none that bash knows."""
    if source == "${#}":
        return ShellParameter(name="#")
    start = _START.match(source)
    if start is None or not source.endswith("}"):
        return None
    at, key = start.end(), None
    if source[at : at + 1] == "[":
        end = balanced(source, at)
        key, at = source[at + 1 : end - 1], end
    inner = source[at:-1]
    known = (*_OPERATORS, "*") if start["mark"] == "!" else _OPERATORS  # the names that begin so
    operator = next((one for one in known if inner.startswith(one)), "") if inner else ""
    if inner and not operator:
        return None
    return ShellParameter(
        name=start["name"], mark=start["mark"], key=key, operator=operator, rest=inner[len(operator) :]
    )


def expand_parameter(source: str, expander: Expander, *, quoted: bool) -> Fields:
    """Expand ``$name`` or ``${...}`` into fields."""
    if not source.startswith("${"):
        name = source[1:]
        if name.isdecimal() and len(name) > 1:  # $10 is $1 with a 0 behind it
            first = _value_fields(expander, name[0], None, quoted=quoted)
            return [[*first[0], Piece(name[1:], True)]] if first else [[Piece(name[1:], True)]]
        return _value_fields(expander, name, None, quoted=quoted)
    parameter = read_parameter(source)
    if parameter is None:
        return [[Piece(hole(source), quoted)]]
    name = parameter.name
    key = None if parameter.key is None else expander.key_of(name, parameter.key)
    if parameter.mark == "!":
        return _indirect(expander, parameter, key, quoted=quoted)
    if parameter.mark == "#":
        return [[Piece(_length(expander, name, key), quoted)]]
    if not parameter.operator:
        return _value_fields(expander, name, key, quoted=quoted)
    return _operated(expander, name, key, parameter, quoted=quoted)


def raw(expander: Expander, name: str, key: str | None) -> str | list[str] | None:
    """Return the value of a name and key: a list for all elements, None where nothing is set."""
    special = not (name[:1].isalpha() or name[:1] == "_")
    value = expander.state.positional(name) if special else expander.state.value(name)
    if isinstance(value, dict):
        if key in EVERY or name in EVERY:
            return [value[one] for one in keys_of(value)]
        if key is not None and has_hole(key):
            return hole(f"{name}[{key}]")
        return value.get(key or "0", None if key is None else "")
    if key in EVERY and value is not None:
        return [value]
    return value if key in (None, "0", "@", "*") else None if value is None else ""


def keys_of(value: dict[str, str]) -> list[str]:
    """Return the keys of an array in bash's order: indices by size, names as they came."""
    return sorted(value, key=int) if all(key.isdecimal() for key in value) else list(value)


def _value_fields(expander: Expander, name: str, key: str | None, *, quoted: bool) -> Fields:
    value = raw(expander, name, key)
    if value is None:
        value = expander.state.unset(name if key is None else f"{name}[{'@' if key == '*' else key}]")
        if not value and key in EVERY:  # an array without elements is no word, even in quotes
            return []
    return _as_fields(expander, value, quoted=quoted, star="*" in (key, name))


def _as_fields(expander: Expander, value: str | list[str], *, quoted: bool, star: bool = False) -> Fields:
    if isinstance(value, str):
        return [[Piece(value, quoted)]]
    if quoted and star:
        blanks = expander.state.value("IFS")
        return [[Piece((blanks[:1] if isinstance(blanks, str) else " ").join(value), True)]]
    return [[Piece(element, quoted)] for element in value]


def _indirect(expander: Expander, parameter: ShellParameter, key: str | None, *, quoted: bool) -> Fields:
    """``${!name}`` names another variable, ``${!name[@]}`` lists the keys, ``${!name@}`` the names that begin so."""
    name = parameter.name
    if parameter.operator in EVERY and not parameter.rest:
        return _as_fields(expander, expander.state.names(name), quoted=quoted, star=parameter.operator == "*")
    value = expander.state.value(name)
    if key in EVERY and isinstance(value, dict):
        return _as_fields(expander, keys_of(value), quoted=quoted, star=key == "*")
    target = raw(expander, name, key)
    named = re.compile(r"([A-Za-z_]\w*|\d+|[@*#])(?:\[(.*)\])?")
    place = named.fullmatch(target) if isinstance(target, str) else None
    if place is None:
        return [[Piece(hole(name), quoted)]]
    own = None if place[2] is None else expander.key_of(place[1], place[2])
    if parameter.operator:
        return _operated(expander, place[1], own, parameter, quoted=quoted)
    return _value_fields(expander, place[1], own, quoted=quoted)


def _length(expander: Expander, name: str, key: str | None) -> str:
    value = raw(expander, name, key)
    if isinstance(value, list):
        return hole(f"#{name}") if any(map(has_hole, value)) else str(len(value))
    if value is None:
        return expander.state.unset(f"#{name}") or "0"
    return hole(f"#{name}") if has_hole(value) else str(len(value))


def _operated(
    expander: Expander, name: str, key: str | None, parameter: ShellParameter, *, quoted: bool
) -> Fields:
    """Apply the operator of ``${name operator rest}``."""
    value, operator, star = raw(expander, name, key), parameter.operator, "*" in (key, name)
    if operator in _DEFAULTS:
        return _default(expander, name, value, parameter, quoted=quoted, star=star)
    if value is None:
        value = expander.state.unset(name)
    if not isinstance(value, list):
        return [[Piece(_changed(expander, value, parameter), quoted)]]
    if operator == ":":
        changed = _slice_list(expander, name, value, parameter.rest)
    else:
        changed = [_changed(expander, one, parameter) for one in value]
    return _as_fields(expander, changed, quoted=quoted, star=star)


def _default(
    expander: Expander,
    name: str,
    value: str | list[str] | None,
    parameter: ShellParameter,
    *,
    quoted: bool,
    star: bool,
) -> Fields:
    """``:-`` and ``:+``: a variable that the script does not set counts as not set outside either."""
    operator, state = parameter.operator, expander.state
    missing = value is None or value == [] or (operator[0] == ":" and value in ("", [""]))
    if operator[-1] == "+":
        if value is None:
            state.assume_unset(name, "")
        absent: Fields = [] if isinstance(value, list) or not quoted else [[Piece("", True)]]
        return absent if missing else expander.default(parameter.rest, quoted=quoted)
    if not missing and value is not None:
        return _as_fields(expander, value, quoted=quoted, star=star)
    if operator[-1] == "?":
        return [[Piece(state.required(name), quoted)]]
    fields = expander.default(parameter.rest, quoted=quoted)
    text = " ".join(joined(pieces) for pieces in fields)
    if value is None:
        state.assume_unset(name, text)
    if operator[-1] == "=":
        state.assign(name, text)
    return fields if fields else [[Piece("", quoted)]]


def _slice_list(expander: Expander, name: str, value: list[str], rest: str) -> list[str]:
    start, length = _slice(expander, rest)
    if start is None:
        return [hole("slice")]
    if name in EVERY:  # ${@:0} begins with $0, so that ${@:1} is the first argument
        value = [str(expander.state.positional("0") or ""), *value]
    start = start if start >= 0 else len(value) + start
    if start < 0:
        return []
    return value[start:] if length is None else value[start : start + length]


def _slice(expander: Expander, rest: str) -> tuple[int | None, int | None]:
    """Read ``:start:length``; a start that is not known is None."""
    text = expander.plain(rest)
    start, colon, length = text.partition(":")
    size = expander.number(length) if colon else None
    return (None if colon and size is None else expander.number(start)), size


def _changed(expander: Expander, value: str, parameter: ShellParameter) -> str:
    operator, rest = parameter.operator, parameter.rest
    if has_hole(value):  # named after the variables inside: those are what the caller can give
        return hole("+".join(dict.fromkeys(holes(value))))
    changed: str | None = None
    if operator == ":":
        changed = _sliced(expander, value, rest)
    elif operator in ("^", "^^", ",", ",,", "~", "~~") and not rest:
        change = {"^": str.upper, ",": str.lower, "~": str.swapcase}[operator[0]]
        changed = change(value) if len(operator) == 2 else change(value[:1]) + value[1:]
    elif operator in ("#", "##", "%", "%%"):
        glob = expander.pattern(rest)
        known = not has_hole(glob)
        changed = trim(value, glob, front=operator[0] == "#", longest=len(operator) == 2) if known else None
    elif operator[0] == "/":
        changed = _replaced(expander, value, operator, rest)
    elif operator == "@":
        changed = _transformed(value, rest)
    return hole(f"{parameter.name}{operator}{rest}") if changed is None else changed


def _sliced(expander: Expander, value: str, rest: str) -> str | None:
    start, length = _slice(expander, rest)
    if start is None:
        return None
    start = start if start >= 0 else len(value) + start
    if start < 0:
        return ""
    return value[start:] if length is None else value[start : start + length if length >= 0 else length]


def _replaced(expander: Expander, value: str, operator: str, rest: str) -> str | None:
    """``/glob/new``: the first slash outside of quotes and expansions ends the glob."""
    glob, new, ended = "", "", False
    for kind, part in scan(rest):
        skipped = not glob and part[:1] == "/"  # ${x///_}: a slash that the glob begins with is its own
        if kind == PLAIN and not ended and not part.startswith("\\") and "/" in part[skipped:]:
            before, _, after = part[skipped:].partition("/")
            glob, new, ended = glob + part[:skipped] + before, after, True
        elif ended:
            new += part
        else:
            glob += part
    mark, bound = "", glob
    if operator == "/" and glob[:1] in ("#", "%"):
        mark, bound = glob[0], glob[1:]
    pattern, text = expander.pattern(bound), expander.plain(new)
    # & is what matched from bash 5.2 on (patsub_replacement), and itself before.
    if has_hole(pattern) or has_hole(text) or "&" in new:
        return None
    return replace_glob(value, mark + pattern, text, every=operator == "//")


def _transformed(value: str, letter: str) -> str | None:
    """``${x@Q}`` and the changes of case."""
    if letter == "Q":
        quoted = value.replace("'", "'\\''")
        return f"'{quoted}'"
    changes = {"U": value.upper(), "L": value.lower(), "u": value[:1].upper() + value[1:]}
    return changes.get(letter)
