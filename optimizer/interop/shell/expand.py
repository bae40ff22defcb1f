"""Words of a script with variables, arithmetic and quotes as bash expands them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Protocol

from layoutopt.optimizer.interop.shell import arithmetic
from layoutopt.optimizer.interop.shell.syntax import child_of, parse, parts_of, text_of
from layoutopt.optimizer.interop.shell.values import (
    Piece,
    brace_expand,
    has_hole,
    hole,
    joined,
    replace_glob,
    split_fields,
    trim,
)

if TYPE_CHECKING:
    from tree_sitter import Node

    from layoutopt.optimizer.interop.shell.values import Array

_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "e": "\x1b", "f": "\f", "v": "\v"}
_EVERY = ("@", "*")
_EXPANSIONS = ("simple_expansion", "expansion", "command_substitution", "arithmetic_expansion")
Fields = list[list[Piece]]


class State(Protocol):
    """What expansion asks of the shell around it."""

    def value(self, name: str) -> str | Array | None:
        """Return a variable's value, None where the script sets none."""

    def positional(self, name: str) -> str | Array | None:
        """Return ``1``, ``@``, ``#`` and the like, None where only the caller knows."""

    def assign(self, name: str, value: str | Array, *, key: str | None = None, append: bool = False) -> None:
        """Set a variable, or one element of an array."""

    def substitute(self, node: Node) -> str:
        """Return what a command substitution prints, a hole where only running it would tell."""

    def unset(self, name: str) -> str:
        """Return the hole of a variable that is not set."""

    def assume_unset(self, name: str, instead: str) -> None:
        """Note that a variable is taken as not set outside, so that its default holds."""


class Expander:
    """Expands the nodes of words against a state."""

    def __init__(self, state: State) -> None:
        self.state = state

    def words(self, node: Node) -> list[str]:
        """Expand a node into words: none, one or several."""
        if node.type in ("word", "concatenation", "brace_expression") and "{" in text_of(node):
            plain = self._literal(node)
            if plain is not None:
                return brace_expand(plain)
        blanks = self.state.value("IFS")
        return split_fields(self.fields(node, quoted=False), blanks if isinstance(blanks, str) else None)

    def text(self, node: Node | None) -> str:
        """Expand a node into one text, as in an assignment."""
        if node is None:
            return ""
        fields = self.fields(node, quoted=False)
        return " ".join(joined(pieces) for pieces in fields)

    def body(self, node: Node) -> str:
        """Expand a here-document, in which only ``$`` and backslashes are special."""
        return "".join(
            _unescaped(part, "\\$`\n") if isinstance(part, str) else self._inside(part)
            for part in parts_of(node, node.start_byte, node.end_byte)
        )

    def _literal(self, node: Node) -> str | None:
        """Return the text of a word without expansions and quotes, None if it has some."""
        text = text_of(node)
        return None if re.search(r"[$`'\"\\]", text) else text

    def fields(self, node: Node, *, quoted: bool) -> Fields:
        """Expand a node into pieces; more than one field where ``$@`` or an array stands."""
        kind = node.type
        if kind == "string":
            return self._string(node)
        if kind == "raw_string":
            return [[Piece(text_of(node).strip()[1:-1], True)]]
        if kind == "ansi_c_string":
            return [[Piece(_ansi(text_of(node).strip()[2:-1]), True)]]
        if kind == "translated_string":
            return self._string(node.children[-1])
        if kind in ("simple_expansion", "expansion"):
            return self._expansion(node, quoted=quoted)
        if kind == "command_substitution" and text_of(node).strip().startswith("$(("):
            return [[Piece(self._misread_arithmetic(node), quoted)]]
        if kind in ("command_substitution", "process_substitution"):
            return [[Piece(self.state.substitute(node), quoted)]]
        if kind == "arithmetic_expansion":
            return [[Piece(self.arithmetic_text(node), quoted)]]
        if kind in ("concatenation", "command_name", "array", "ERROR", "subscript") and node.children:
            return self._joined_fields(list(parts_of(node, node.start_byte, node.end_byte)), quoted=quoted)
        return [[Piece(_unescaped(text_of(node)), True)]]

    def _string(self, node: Node) -> Fields:
        inner = parts_of(node, node.children[0].end_byte, node.children[-1].start_byte)
        fields = self._joined_fields(list(inner), quoted=True)
        return fields if fields else [[Piece("", True)]] if not self._only_every(node) else []

    def _only_every(self, node: Node) -> bool:
        """``"$@"`` without arguments is no word at all, unlike ``""``."""
        inner = [child for child in node.children[1:-1] if child.type != "string_content"]
        return len(inner) == 1 and text_of(inner[0]).strip().rstrip("}").endswith(("@", "@]"))

    def _joined_fields(self, parts: list[Node | str], *, quoted: bool) -> Fields:
        """Join parts that touch: the first field of one continues the last of the one before."""
        fields: Fields = []
        for part in parts:
            found = self._part(part, quoted=quoted)
            if not found:
                continue
            if fields:
                fields[-1] = fields[-1] + found[0]
                fields += found[1:]
            else:
                fields = found
        return fields

    def _part(self, part: Node | str, *, quoted: bool) -> Fields:
        if isinstance(part, str):
            return [[Piece(_unescaped(part, '"\\$`\n') if quoted else part, True)]]
        if quoted and part.type == "string_content":
            return [[Piece(_unescaped(text_of(part), '"\\$`\n'), True)]]
        text = text_of(part)
        blank = text[: len(text) - len(text.lstrip())]
        found = self.fields(part, quoted=quoted)
        if (
            quoted and blank and part.type in _EXPANSIONS
        ):  # blanks before an expansion in a string belong to the string
            return [[Piece(blank, True), *found[0]], *found[1:]] if found else [[Piece(blank, True)]]
        return found

    def _inside(self, node: Node) -> str:
        """Expand a part of a here-document."""
        text = text_of(node)
        if node.type in ("heredoc_content", "string_content", "word"):
            if not re.search(r"(?<!\\)[$`]", text):
                return _unescaped(text, "\\$`\n")
            # the grammar leaves some expansions of a document unread: read them as those of a string
            quoted = text.replace('"', '\\"')
            return self.text(child_of(parse(f'x="{quoted}"').children[0], "value"))
        return " ".join(joined(pieces) for pieces in self._part(node, quoted=True))

    def arithmetic_source(self, node: Node) -> str:
        """Return the expression between the first and the last token of a node, its ``$`` expanded."""
        return self._arithmetic_between(node, node.children[0].end_byte, node.children[-1].start_byte)

    def arithmetic_of(self, node: Node) -> str:
        """Return all of an expression without brackets, its ``$`` expanded."""
        return self._arithmetic_between(node, node.start_byte, node.end_byte)

    def _arithmetic_between(self, node: Node, start: int, end: int) -> str:
        inner = parts_of(node, start, end)
        return "".join(part if isinstance(part, str) else self._arithmetic_part(part) for part in inner)

    def arithmetic_text(self, node: Node) -> str:
        """Return the value of ``$(( ))`` as text."""
        value = self.number(self.arithmetic_source(node))
        return hole(f"(({text_of(node).strip()[3:-2].strip()}))") if value is None else str(value)

    def _misread_arithmetic(self, node: Node) -> str:
        """Inside defaults and here-documents the grammar takes ``$(( ))`` for a command."""
        word = parse(f"x={text_of(node).strip()}").children[0].child_by_field_name("value")
        right = word is not None and word.type == "arithmetic_expansion"
        return self.arithmetic_text(word) if right and word is not None else self.state.substitute(node)

    def _arithmetic_part(self, node: Node) -> str:
        """Return the source of an arithmetic operand with its ``$`` expanded."""
        if node.type in (
            "simple_expansion",
            "expansion",
            "command_substitution",
            "string",
            "arithmetic_expansion",
        ):
            return self.text(node)
        if not node.children:
            return text_of(node)
        parts = parts_of(node, node.start_byte, node.end_byte)
        return "".join(part if isinstance(part, str) else self._arithmetic_part(part) for part in parts)

    def number(self, text: str) -> int | None:
        """Evaluate an arithmetic text, None when it depends on the outside or is none."""
        if has_hole(text):
            return None
        try:
            return arithmetic.evaluate(text, self._look_up, self._set_number)
        except (arithmetic.NotArithmetic, RecursionError, OverflowError, ValueError):
            return None

    def _look_up(self, name: str) -> int | None:
        bare, _, key = name.partition("[")
        value = self.state.value(bare)
        if isinstance(value, dict):
            key = key.rstrip("]").lstrip("$") or "0"
            named = self.state.value(key) if key not in value and not key.isdecimal() else None
            value = value.get(named if isinstance(named, str) else key, "")
        if value is None or has_hole(value):
            return None
        return 0 if not value.strip() else self.number(value) if value.strip() != name else None

    def _set_number(self, name: str, value: int | None) -> None:
        bare, _, key = name.partition("[")
        text = hole(name) if value is None else str(value)
        self.state.assign(bare, text, key=key.rstrip("]") if key else None)

    def _expansion(self, node: Node, *, quoted: bool) -> Fields:
        """Expand ``$x`` or ``${x...}``."""
        children = node.children
        if node.type == "simple_expansion":
            return self._variable(text_of(children[-1]), None, quoted=quoted)
        inner = children[1:-1]
        length = indirect = False
        while inner and text_of(inner[0]).strip() in ("#", "!") and len(inner) > 1:
            length, indirect = length or text_of(inner[0]) == "#", indirect or text_of(inner[0]) == "!"
            inner = inner[1:]
        if not inner:
            return [[Piece(hole(text_of(node)), quoted)]]
        name, key = self._name(inner[0])
        if indirect:
            return self._indirect(name, key, quoted=quoted)
        if length:
            return [[Piece(self._length(name, key), quoted)]]
        if len(inner) == 1:
            return self._variable(name, key, quoted=quoted)
        operator = text_of(inner[1]).strip()
        rest = list(parts_of(node, inner[1].end_byte, children[-1].start_byte))
        return self._operated(name, key, operator, rest, quoted=quoted)

    def _name(self, node: Node) -> tuple[str, str | None]:
        if node.type != "subscript":
            return text_of(node).strip(), None
        named, index = child_of(node, "name"), child_of(node, "index")
        name = text_of(named) if named else ""
        return name, self.key(name, index)

    def key(self, name: str, index: Node | None) -> str:
        """Return an element's key: arithmetic for indexed arrays, the text for associative ones."""
        text = self.text(index)
        if text in _EVERY or has_hole(text):
            return text
        value = self.state.value(name)
        associative = isinstance(value, dict) and any(not key.lstrip("-").isdecimal() for key in value)
        if associative or not re.fullmatch(r"[\w\s+*/%()-]+", text):
            return text
        number = self.number(text) if re.search(r"\d", text) or self.state.value(text) is not None else None
        if number is None:
            return text
        if number < 0 and isinstance(value, dict):
            number += 1 + max((int(key) for key in value), default=-1)
        return str(number)

    def _raw(self, name: str, key: str | None) -> str | list[str] | None:
        """Return the value of a name and key: a list for all elements, None where nothing is set."""
        special = not (name[:1].isalpha() or name[:1] == "_")
        value = self.state.positional(name) if special else self.state.value(name)
        if isinstance(value, dict):
            if key in _EVERY or name in _EVERY:
                return list(value.values())
            if key is not None and has_hole(key):
                return hole(f"{name}[{key}]")
            return value.get(key or "0")
        if key in _EVERY and value is not None:
            return [value]
        return value if key in (None, "0", "@", "*") else None

    def _variable(self, name: str, key: str | None, *, quoted: bool) -> Fields:
        value = self._raw(name, key)
        if value is None:
            value = self.state.unset(name if key is None else f"{name}[{'@' if key == '*' else key}]")
        return self._as_fields(value, quoted=quoted, star=key == "*" or name == "*")

    def _as_fields(self, value: str | list[str], *, quoted: bool, star: bool = False) -> Fields:
        if isinstance(value, str):
            return [[Piece(value, quoted)]]
        if quoted and star:
            blanks = self.state.value("IFS")
            return [[Piece((blanks[:1] if isinstance(blanks, str) else " ").join(value), True)]]
        return [[Piece(element, quoted)] for element in value]

    def _indirect(self, name: str, key: str | None, *, quoted: bool) -> Fields:
        """``${!name}`` names another variable, ``${!name[@]}`` lists the keys."""
        value = self.state.value(name)
        if key in _EVERY and isinstance(value, dict):
            return self._as_fields(list(value), quoted=quoted)
        target = self._raw(name, key)
        if not isinstance(target, str) or has_hole(target) or not re.fullmatch(r"\w+", target):
            return [[Piece(hole(name), quoted)]]
        return self._variable(target, None, quoted=quoted)

    def _length(self, name: str, key: str | None) -> str:
        value = self._raw(name, key)
        if isinstance(value, list):
            return hole(f"#{name}") if any(map(has_hole, value)) else str(len(value))
        if value is None:
            return self.state.unset(f"#{name}")
        return hole(f"#{name}") if has_hole(value) else str(len(value))

    def _operated(
        self, name: str, key: str | None, operator: str, rest: list[Node | str], *, quoted: bool
    ) -> Fields:
        """Apply the operator of ``${name operator rest}``."""
        value = self._raw(name, key)
        if operator in (":-", "-", ":=", "=", ":+", "+", ":?", "?"):
            return self._default(name, value, operator, rest, quoted=quoted)
        if value is None:
            value = self.state.unset(name)
        if isinstance(value, list):
            if operator == ":":
                return self._as_fields(self._slice_list(name, value, rest), quoted=quoted)
            return self._as_fields([self._changed(one, operator, rest) for one in value], quoted=quoted)
        return [[Piece(self._changed(value, operator, rest), quoted)]]

    def _default(
        self, name: str, value: str | list[str] | None, operator: str, rest: list[Node | str], *, quoted: bool
    ) -> Fields:
        """``:-`` and ``:+``: a variable that the script does not set counts as not set outside either."""
        missing = value is None or (operator[0] == ":" and value in ("", []))
        if operator[-1] == "+":
            if value is None:
                self.state.assume_unset(name, "")
            return [] if missing else self._rest(rest, quoted=quoted)
        if not missing and value is not None:
            return self._as_fields(value, quoted=quoted)
        if operator[-1] == "?":
            return [[Piece(self.state.unset(name), quoted)]]
        fields = self._rest(rest, quoted=quoted)
        text = " ".join(joined(pieces) for pieces in fields)
        if value is None:
            self.state.assume_unset(name, text)
        if operator[-1] == "=":
            self.state.assign(name, text)
        return fields if fields else [[Piece("", quoted)]]

    def _rest(self, rest: list[Node | str], *, quoted: bool) -> Fields:
        """Expand a default; its plain text is split at blanks like a value."""
        return [
            [Piece(piece.text, quoted) if " " in piece.text and not quoted else piece for piece in pieces]
            for pieces in self._joined_fields(rest, quoted=quoted)
        ]

    def _slice_list(self, name: str, value: list[str], rest: list[Node | str]) -> list[str]:
        start, length = self._slice(rest)
        if start is None:
            return [hole("slice")]
        if name in _EVERY:
            start = max(start - 1, 0)
        return value[start:] if length is None else value[start : start + length]

    def _slice(self, rest: list[Node | str]) -> tuple[int | None, int | None]:
        """Read ``:start:length``; a start that is not known is None."""
        text = "".join(part if isinstance(part, str) else self._arithmetic_part(part) for part in rest)
        start, _, length = text.partition(":")
        return self.number(start), self.number(length) if length else None

    def _changed(self, value: str, operator: str, rest: list[Node | str]) -> str:
        if has_hole(value):
            return hole("+".join(dict.fromkeys(re.findall("\ue000([^\ue001]*)", value))))
        if operator == ":":
            start, length = self._slice(rest)
            if start is None:
                return hole("slice")
            start = start if start >= 0 else max(len(value) + start, 0)
            return (
                value[start:] if length is None else value[start : start + length if length >= 0 else length]
            )
        if operator in ("^", "^^", ",", ",,"):
            change = str.upper if operator[0] == "^" else str.lower
            return change(value) if len(operator) == 2 else change(value[:1]) + value[1:]
        fields = self._joined_fields([part for part in rest if part != ""], quoted=False)
        text = " ".join(joined(pieces) for pieces in fields)
        if has_hole(text):
            return hole(text.strip("\ue000\ue001"))
        if operator in ("#", "##", "%", "%%"):
            return trim(value, text, front=operator[0] == "#", longest=len(operator) == 2)
        if operator[0] == "/":
            glob, _, new = text.partition("/")
            glob = operator[1:] + glob if operator in ("/#", "/%") else glob
            return replace_glob(value, glob, new, every=operator == "//")
        return value if operator == "@" else hole(f"{operator}")


def _unescaped(text: str, special: str | None = None) -> str:
    """Take the character after a backslash as it is (``special``: only these); a line break vanishes."""

    def plain(match: re.Match[str]) -> str:
        """Return what one escaped character stands for."""
        char = match[1]
        if special is not None and char not in special:
            return match[0]
        return "" if char == "\n" else char

    return re.sub(r"\\(.)", plain, text, flags=re.DOTALL)


def _ansi(text: str) -> str:
    return re.sub(r"\\(.)", lambda match: _ESCAPES.get(match[1], match[1]), text, flags=re.DOTALL)
