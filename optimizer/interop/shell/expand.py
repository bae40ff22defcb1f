"""Words of a script with variables, arithmetic and quotes as bash expands them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Protocol

from layoutopt.optimizer.interop.shell import arithmetic
from layoutopt.optimizer.interop.shell.parameters import EVERY, expand_parameter
from layoutopt.optimizer.interop.shell.patterns import brace_expand, quote_glob
from layoutopt.optimizer.interop.shell.pieces import (
    ANSI,
    DOUBLE,
    EXPANSION,
    PLAIN,
    SINGLE,
    decoded,
    scan,
    unescaped,
)
from layoutopt.optimizer.interop.shell.syntax import child_of, parse, parts_of, text_of
from layoutopt.optimizer.interop.shell.values import Piece, has_hole, hole, joined, split_fields

if TYPE_CHECKING:
    from collections.abc import Callable

    from tree_sitter import Node

    from layoutopt.optimizer.interop.shell.values import Array

_EXPANSIONS = ("simple_expansion", "expansion", "command_substitution", "arithmetic_expansion")
_PATTERN = re.compile(r"[*?\[]")
_IN_STRINGS = '"\\$`\n'
Fields = list[list[Piece]]


def _glob(source: str) -> str:
    """Return a text of the script's own as part of a pattern, empty where it has no part in one."""
    return source if re.search(r"[*?\[\]!]", source) else ""


class State(Protocol):
    """What expansion asks of the shell around it."""

    def value(self, name: str) -> str | Array | None:
        """Return a variable's value, None where the script sets none."""

    def positional(self, name: str) -> str | Array | None:
        """Return ``1``, ``@``, ``#`` and the like, None where only the caller knows."""

    def assign(self, name: str, value: str | Array, *, key: str | None = None, append: bool = False) -> None:
        """Set a variable, or one element of an array."""

    def names(self, prefix: str) -> list[str]:
        """Return the variables whose names begin so."""

    def is_associative(self, name: str) -> bool:
        """Tell whether an array's keys are texts."""

    def has_file(self, name: str, *, filled: bool = False) -> bool | None:
        """Tell whether there is a file, None where the script has not to do with it."""

    def matching(self, word: str, glob: str) -> list[str]:
        """Return the files that a word stands for whose unquoted part is a pattern, the word itself where there are none."""

    def substitute(self, node: Node) -> str:
        """Return what a command substitution prints, a hole where only running it would tell."""

    def unset(self, name: str) -> str:
        """Return the hole of a variable that is not set."""

    def required(self, name: str) -> str:
        """Return the hole of a variable without which the script stops."""

    def assume_unset(self, name: str, instead: str) -> None:
        """Note that a variable is taken as not set outside, so that its default holds."""


class Expander:
    """Expands the nodes of words against a state."""

    def __init__(self, state: State) -> None:
        self.state = state

    def words(self, node: Node) -> list[str]:
        """Expand a node into words: none, one or several."""
        if node.type in ("word", "concatenation", "brace_expression") and "{" in text_of(node):
            source = text_of(node).strip()
            sources = brace_expand(source)
            if sources is None:
                return [hole(f"{source}, more words than are read")]
            if sources != [source]:
                return [word for one in sources for word in self._words_of(one)]
        return self._split(self.fields(node, quoted=False))

    def _split(self, fields: Fields) -> list[str]:
        """Split fields into words; unquoted patterns become the names of files that they match."""
        value = self.state.value("IFS")
        blanks = value if isinstance(value, str) else None
        words = split_fields(fields, blanks)
        if not any(
            one.glob or (not one.quoted and _PATTERN.search(one.text)) for pieces in fields for one in pieces
        ):
            return words
        # Split twice, as texts and as patterns in which what was quoted means itself: both give the same words.
        guarded = [
            [Piece(one.glob or quote_glob(one.text), True) if one.quoted else one for one in pieces]
            for pieces in fields
        ]
        pairs = zip(words, split_fields(guarded, blanks), strict=True)
        return [name for word, glob in pairs for name in self.state.matching(word, glob)]

    def _words_of(self, source: str) -> list[str]:
        """Expand the source of one word that braces made."""
        if not re.search(r"[$`'\"\\~*?\[]", source):
            return [source] if source else []
        return self._split(self.fields_of(source))

    def fields_of(self, source: str) -> Fields:
        """Expand the source of one word or quoted string into fields."""
        # As an argument: alone the grammar would take a word for the name of a command, or for an assignment.
        command = parse(f"x {source}").children[0]
        node = child_of(command, "argument") if command.type == "command" else None
        return [[Piece(unescaped(source), True)]] if node is None else self.fields(node, quoted=False)

    def text(self, node: Node | None) -> str:
        """Expand a node into one text, as in an assignment."""
        if node is None:
            return ""
        fields = self.fields(node, quoted=False)
        return " ".join(joined(pieces) for pieces in fields)

    def body(self, text: str) -> str:
        """Expand a here-document, in which only ``$`` and backslashes are special."""
        return "".join(
            self._expanded(part) if kind == EXPANSION else unescaped(part, "\\$`\n")
            for kind, part in scan(text, quotes=False)
        )

    def plain(self, source: str) -> str:
        """Expand the source of a word into one text: quotes vanish, nothing is split."""
        return "".join(self._plain_part(kind, part) for kind, part in scan(source))

    def _plain_part(self, kind: str, part: str) -> str:
        if kind == PLAIN:
            return unescaped(part)
        if kind == SINGLE:
            return part[1:-1]
        return decoded(part[2:-1]) if kind == ANSI else self._expanded(part)

    def pattern(self, source: str) -> str:
        """Expand the source of a pattern into a glob in which what stood in quotes means itself."""
        return "".join(
            part if kind == PLAIN else self._guarded(self._plain_part(kind, part), kind, quote_glob)
            for kind, part in scan(source)
        )

    def regex(self, source: str) -> str:
        """Expand the source of a regular expression; what stood in quotes means itself."""
        return "".join(
            part if kind == PLAIN else self._guarded(self._plain_part(kind, part), kind, re.escape)
            for kind, part in scan(source)
        )

    def _guarded(self, text: str, kind: str, guard: Callable[[str], str]) -> str:
        return text if kind == EXPANSION or has_hole(text) else guard(text)

    def _expanded(self, source: str) -> str:
        """Expand one expansion or quoted string into a text."""
        quoted = source if source.startswith('"') else f'"{source}"'
        return " ".join(joined(pieces) for pieces in self.fields_of(quoted))

    def default(self, source: str, *, quoted: bool) -> Fields:
        """Expand the default of a parameter; its plain text is split at blanks like a value."""
        if quoted:
            inner = "".join(
                part[1:-1] if kind == DOUBLE else part for kind, part in scan(source) if kind != PLAIN or part
            )
            return self.fields_of(f'"{inner}"')
        fields: Fields = [[]]
        for kind, part in scan(source):
            escaped = part.startswith("\\")
            found = [[Piece(unescaped(part), escaped)]] if kind == PLAIN else self.fields_of(part)
            if found:
                fields[-1] = fields[-1] + found[0]
                fields += found[1:]
        return fields if fields != [[]] else []

    def fields(self, node: Node, *, quoted: bool) -> Fields:
        """Expand a node into pieces; more than one field where ``$@`` or an array stands."""
        kind = node.type
        if kind == "string":
            return self._string(node)
        if kind == "raw_string":
            return [[Piece(text_of(node).strip()[1:-1], True)]]
        if kind == "ansi_c_string":
            return [[Piece(decoded(text_of(node).strip()[2:-1]), True)]]
        if kind == "translated_string":
            return self._string(node.children[-1])
        if kind in ("simple_expansion", "expansion"):
            return expand_parameter(_without_blanks(text_of(node)), self, quoted=quoted)
        if kind == "command_substitution" and text_of(node).strip().startswith("$(("):
            return [[Piece(self._misread_arithmetic(node), quoted)]]
        if kind in ("command_substitution", "process_substitution"):
            return [[Piece(self.state.substitute(node), quoted)]]
        if kind == "arithmetic_expansion":
            return [[Piece(self.arithmetic_text(node), quoted)]]
        # Expansions that bash knows and the grammar does not.
        if kind == "ERROR" and text_of(node).strip().startswith("${"):
            return expand_parameter(text_of(node).strip(), self, quoted=quoted)
        if kind in ("concatenation", "command_name", "array", "ERROR", "subscript") and node.children:
            return self._joined_fields(list(parts_of(node, node.start_byte, node.end_byte)), quoted=quoted)
        text = text_of(node)
        return [[Piece(self._word(text), True, _glob(self.pattern(text.strip())))]]

    def _word(self, text: str) -> str:
        """Return a plain word; a tilde is the home folder where that is known."""
        home = self.state.value("HOME") if text == "~" or text.startswith("~/") else None
        return unescaped(home + text[1:] if isinstance(home, str) else text)

    def _string(self, node: Node) -> Fields:
        inner = parts_of(
            node, node.children[0].end_byte, node.children[-1].end_byte - 1
        )  # its own blanks too
        fields = self._joined_fields(list(inner), quoted=True)
        return fields if fields else [] if self._only_every(node) else [[Piece("", True)]]

    def _only_every(self, node: Node) -> bool:
        """``"$@"`` without arguments is no word at all, unlike ``""``."""
        inner = [child for child in node.children[1:-1] if child.type != "string_content"]
        return len(inner) == 1 and re.match(r"\$@|\$\{(@|\w+\[@\])", text_of(inner[0]).strip()) is not None

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
            return [[Piece(unescaped(part, _IN_STRINGS), True) if quoted else Piece(part, True, _glob(part))]]
        if quoted and part.type == "string_content":
            return [[Piece(unescaped(text_of(part), _IN_STRINGS), True)]]
        text = text_of(part)
        own = _without_blanks(text)
        blank = unescaped(text[: len(text.rstrip()) - len(own)], _IN_STRINGS)
        found = self.fields(part, quoted=quoted)
        # blanks before an expansion in a string belong to the string
        if quoted and blank and part.type in _EXPANSIONS:
            return [[Piece(blank, True), *found[0]], *found[1:]] if found else [[Piece(blank, True)]]
        return found

    # --- arithmetic

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
        if node.type in (*_EXPANSIONS, "string"):
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
        bare, bracket, key = name.partition("[")
        value = self.state.value(bare)
        if isinstance(value, dict):
            # An array's name alone is its first element.
            value = value.get(self.key_of(bare, key.rstrip("]")) if bracket else "0", "")
        if value is None or has_hole(value):
            return None
        # A value is an expression again, whose variables have values of their own; one of itself would not end.
        return 0 if not value.strip() else self.number(value) if value.strip() != name else None

    def _set_number(self, name: str, value: int | None) -> None:
        bare, bracket, key = name.partition("[")
        text = hole(name) if value is None else str(value)
        self.state.assign(bare, text, key=self.key_of(bare, key.rstrip("]")) if bracket else None)

    def key_of(self, name: str, source: str) -> str:
        """Return an element's key: arithmetic for indexed arrays, the text for associative ones."""
        text = source if source in EVERY else self.plain(source)
        value = self.state.value(name)
        if text in EVERY or has_hole(text) or self.state.is_associative(name):
            return text
        number = self.number(text)
        if number is None:
            known = isinstance(value, dict) and text in value
            return text if known or not re.fullmatch(r"[A-Za-z_]\w*", text.strip()) else hole(text)
        # -1 is the last element.
        if number < 0 and isinstance(value, dict):
            number += 1 + max((int(key) for key in value if key.isdecimal()), default=-1)
        return str(number)


def _without_blanks(text: str) -> str:
    """Return the source of an expansion without the blanks and line ends that the grammar counts to it."""
    return re.sub(r"^(?:\s|\\\n)+", "", text).rstrip()
