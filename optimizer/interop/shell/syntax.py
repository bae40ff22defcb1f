"""Bash syntax trees, by tree-sitter's bash grammar."""

from __future__ import annotations

import re
from functools import cache, lru_cache
from time import thread_time
from typing import TYPE_CHECKING

from layoutopt.optimizer.specs.errors import input_error

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tree_sitter import Language, Node, Parser

MAX_BYTES = 500_000
"""Longest script that is read; launch scripts have some ten thousand."""

MAX_PARSE_S = 0.5
"""Longest time of a parse, in CPU seconds; scripts of the greatest length take a fifth of it."""

MAX_PIPES = 2_000
"""Most pipes of a script: the parser keeps what it has seen of one that nothing ends, which grows with their square."""

SURE_BYTES = 2_000
"""Scripts up to here are parsed in a twentieth of a second whatever they hold."""

MAX_TREES = 3
"""Most times that a script is parsed anew; what the first tree tells holds but for scripts with errors."""


_VALUE = r"""(?:"[^"`\n]*"|'[^'\n]*'|\$\{[^{}\s]*\}|\$\([^()\n]*\)|\$\(\([^()\n]*\)\)|[^\s'"`;&|<>()\\#])*"""
_ASSIGNMENTS = re.compile(
    rf"(?<![^\n])((?:.*?[;\s](?:then|do|else)[ \t]+|[ \t]*))(?<!\\\n)"
    rf"([A-Za-z_]\w*\+?={_VALUE}(?:[ \t]+[A-Za-z_]\w*\+?={_VALUE})+)(?=[ \t]*(?:#.*)?$)",
    re.MULTILINE | re.ASCII,
)
"""A line that assigns to several variables and starts nothing, unless it lies inside one of ``_INSIDE``."""

_INSIDE = frozenset((
    "array", "string", "raw_string", "ansi_c_string", "translated_string", "heredoc_body", "expansion", "comment",
))  # fmt: skip
"""What lines of ``NAME=value`` are words of, or text in, unless a command is substituted there."""

_TEXT = _INSIDE - {"array"}
"""What a word may go on in that is not read as code."""

_SUBSTITUTED = frozenset(("command_substitution", "process_substitution"))

_BETWEEN = re.compile(rf"(?<==){_VALUE}([ \t])[ \t]*(?=[A-Za-z_]\w*\+?=)", re.ASCII)
_NAME_BEFORE_MARK = re.compile(r"(?<!\\)\$([A-Za-z_]\w*)(?=[-+*\[%@^!?~#/,:=.])")


_COMPARED = re.compile(r"(?<!\[)\[ ([^\]\n]{0,200}) \\([<>]) ([^\]\n]{0,200}) \](?!\])")
_LAST_BLANK = re.compile(r"^([^'\"#\n]*[^\\'\"#\n])\\[ \t]+$", re.MULTILINE)
"""A backslash before a blank at the end of a line: a word of one blank, which ends the command."""


_REMARK = re.compile(r"(?<=[ \t])`#[^`\n']*`(?=[ \t]*\\?$)", re.MULTILINE)
"""A remark between the words of a command that goes on: a substituted command that is a comment alone."""

_KEPT = re.compile(rb"(?<=[^\s\\;&|(])\\(\n)(?=[^\s#;&|)<>\\])|(?<=[ \t])\\([ \t])")
_LINE_END = re.compile(rb"(?<!\\)\n")


_RUN = re.compile(r"([$&|;<>!'\"`~^%@?,+\\)(\]\[}{])\1{999}")
"""A thousand of one mark, which no script has."""

_FOREIGN = re.compile(rb"[\x0e-\x1d\x80-\xff]")
_STAND_INS = re.compile(rb"[\x0e-\x1d]{2}")
"""Bytes that the grammar never sees, and two of the sixteen control characters in place of each.

Its scanner looks characters up in the C library's table of 384 entries, far behind whose end the high ones of Unicode
lie, which ends the process now and then; and it takes letters of other scripts for names and their spaces for blanks, as
bash does not.
"""


@cache
def _language() -> Language:
    """Load the grammar when the first script is read: importing it costs more than most commands."""
    import tree_sitter
    import tree_sitter_bash

    return tree_sitter.Language(tree_sitter_bash.language())


def _parser() -> Parser:
    """Build a parser for one script: the grammar's scanner keeps what a damaged one leaves, and has crashed on it."""
    import tree_sitter

    return tree_sitter.Parser(_language())


def parse(text: str, file: str = "") -> Node:
    """Return the tree of a script; one that is too long, or takes too long, raises ``InputError``."""
    if _RUN.search(text) or text.count("|") > MAX_PIPES:
        raise input_error("not understood as a shell script", "no marks in long rows", file=file)
    source = _plainer(text.replace("\0", "")).encode(errors="surrogatepass")  # bash drops them too
    if len(source) > MAX_BYTES:
        raise input_error("script is too long", f"up to {MAX_BYTES:,} bytes", file=file)
    return _split(_joined(_FOREIGN.sub(_stand_in, source), file), file)


def _joined(source: bytes, file: str) -> bytes:
    """Join what the grammar takes apart: words that go on behind the end of a line, and blanks that a backslash keeps.

    A line's end that goes comes back behind its command, so that later lines keep their numbers.
    """
    found = list(_KEPT.finditer(source))
    if not found:
        return source
    root, edits = _root(source, file), list[tuple[int, int, bytes]]()
    for match in found:
        start, end = match.span()
        if not _is_code(root, start, _TEXT):
            continue
        if match[1] is None:
            edits.append((start, end, b"'" + match[2] + b"'"))
            continue
        ends = (at.start() for at in _LINE_END.finditer(source, end))
        last = next((at for at in ends if _is_code(root, at, _TEXT)), None)
        edits.append((start, end, b""))
        if last is not None and b"<<" not in source[end:last]:  # a document would begin with it
            edits.append((last, last, b"\n"))
    parts, at = list[bytes](), 0
    for start, end, instead in sorted(edits):
        parts += (source[at:start], instead)
        at = end
    return b"".join(parts) + source[at:]


def _split(source: bytes, file: str) -> Node:
    """Return the tree with ``;`` between assignments that are alone on a line: the grammar takes the next for a command.

    Only a tree tells such lines from those of lists, quotes and documents, and the first one may be wrong behind them.
    """
    text = source.decode("ascii")
    found = [
        match.start(2) + blank.start(1)
        for match in _ASSIGNMENTS.finditer(text)
        for blank in _BETWEEN.finditer(match[2])
    ]
    root, ends = _root(source, file), list[int]()
    for _ in range(MAX_TREES if found else 0):
        now = [at for at in found if _is_code(root, at)]
        if now == ends:
            break
        ends, split = now, bytearray(source)
        for at in ends:
            split[at] = ord(";")
        root = _root(bytes(split), file)
    return root


def _is_code(root: Node, at: int, inside: frozenset[str] = _INSIDE) -> bool:
    """Tell whether a byte lies between words of commands."""
    node = root.descendant_for_byte_range(at, at + 1)
    while node is not None and node.type not in _SUBSTITUTED:
        if node.type in inside:
            return False
        node = node.parent
    return True


def _root(source: bytes, file: str) -> Node:
    if len(source) <= SURE_BYTES:
        return _tree(source)
    if not _parsed_in_time(source):
        raise input_error("not understood as a shell script", "no marks in long rows", file=file)
    return _parser().parse(source).root_node


@lru_cache(maxsize=256)  # a word is parsed again for every turn of a loop and every way through a script
def _tree(source: bytes) -> Node:
    return _parser().parse(source).root_node


def _parsed_in_time(source: bytes) -> bool:
    """Try to parse within ``MAX_PARSE_S``: the grammar's recovery takes time with the square of what it passes over.

    Only a parser that asks for its text can be stopped, and only one that holds it gives the text of nodes safely; so
    that what is parsed in time is parsed once more. The binding never lets go of what it was given: a view, closed here.
    """
    start = thread_time()

    def late(_offset: int, _wrong: bool) -> bool:
        """Stop a parser that takes too long on what is no script."""
        return thread_time() - start > MAX_PARSE_S

    with memoryview(source) as whole:
        try:
            _parser().parse(lambda at, _: source[at:] if at else whole, progress_callback=late)
        except ValueError:  # stopped
            return False
    return True


def _plainer(text: str) -> str:
    """Write in a way that the grammar knows what it misreads, with the same meaning to bash: ``$N+`` among it."""
    text = _REMARK.sub("`:`", text)
    text = _LAST_BLANK.sub(r"\1' '", _COMPARED.sub(r"[[ \1 \2 \3 ]]", text))
    return _NAME_BEFORE_MARK.sub(r"${\1}", text)


def _stand_in(match: re.Match[bytes]) -> bytes:
    high, low = divmod(match[0][0], 16)
    return bytes((0x0E + high, 0x0E + low))


def _decoded(source: bytes) -> str:
    """Return the text of bytes that the grammar saw."""
    plain = _STAND_INS.sub(lambda pair: bytes(((pair[0][0] - 0x0E) * 16 + pair[0][1] - 0x0E,)), source)
    return plain.decode(errors="replace")


def text_of(node: Node) -> str:
    """Return the source of a node."""
    return _decoded(node.text or b"")


def line_of(node: Node) -> int:
    """Return the line, from 1, that a node starts on; blanks that the grammar counts to a node are passed over."""
    text = text_of(node)
    return int(node.start_point[0]) + 1 + text[: len(text) - len(text.lstrip())].count("\n")


def parts_of(node: Node, start: int, end: int) -> Iterator[Node | str]:
    """Yield the children of a node between two bytes of the file, and the text between them.

    The parser may end a node inside a character that no script means: what is left of it is replaced.
    """
    source, base, at = node.text or b"", node.start_byte, start
    for child in node.children:
        if child.start_byte < start or child.end_byte > end:
            continue
        if child.start_byte > at:
            yield _decoded(source[at - base : child.start_byte - base])
        yield child
        at = child.end_byte
    if at < end:
        yield _decoded(source[at - base : end - base])


def child_of(node: Node, field: str) -> Node | None:
    """Return the child in a field, None without one."""
    return node.child_by_field_name(field)


def first_error(node: Node) -> Node | None:
    """Return the first place that the grammar does not understand, None without one."""
    waiting = [node] if node.has_error else []
    while waiting:
        current = waiting.pop()
        if current.is_error or current.is_missing:
            return current
        waiting.extend(reversed([child for child in current.children if child.has_error or child.is_missing]))
    return None
