"""``awk``: what prints fields of lines, counts them, or multiplies two numbers."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from layoutopt.optimizer.interop.shell.builtins import lines_of
from layoutopt.optimizer.interop.shell.conditions import search

if TYPE_CHECKING:
    from layoutopt.optimizer.interop.shell.run import Shell

LONGEST = 300
"""Characters of the longest program that is looked at; those that print a field have some twenty."""

_PROGRAM = re.compile(
    r"\s*(?P<rule>BEGIN|NR\s*==\s*\d+|/[^/]*/|\$\d+\s*==\s*\"[^\"]*\")?\s*"
    r"\{\s*(?P<what>print|printf)\b\s*(?P<terms>[^{};]*?)\s*;?\s*(?:exit\s*;?\s*)?\}\s*"
)
_TERM = re.compile(r'\s*(\$\(?NF-\d\)?|\$NF|\$\d{1,3}|NF|NR|"[^"\\]*"|\d{1,15}|[-+*/%(),])')


@dataclass(frozen=True, slots=True)
class AwkLine:
    """One line: its text, its fields, and its number."""

    text: str
    fields: list[str]
    number: int

    def field(self, place: int) -> str:
        """Return a field, all of the line for 0."""
        return self.text if place == 0 else "".join(self.fields[place - 1 : place]) if place > 0 else ""


def awk(arguments: list[str], given: str | None, shell: Shell) -> str | None:
    """Return what ``awk '{print $2}'`` prints, with ``-F`` for what stands between fields; None for other programs."""
    mark = None
    if arguments and arguments[0].startswith("-F"):
        joined = arguments[0][2:]
        mark, arguments = (joined, arguments[1:]) if joined else ("".join(arguments[1:2]), arguments[2:])
    # A single character is itself; anything longer is a regular expression to awk, and a blank means any white space.
    if mark is not None and not re.fullmatch(r"[^\\.*+?\[\](){}|^$ ]", mark):
        return None
    program = _PROGRAM.fullmatch(arguments[0]) if arguments and len(arguments[0]) <= LONGEST else None
    if program is None:
        return None
    if program["rule"] == "BEGIN":
        lines = [AwkLine("", [], 0)]  # runs once, before any input
    else:
        texts = lines_of(shell, arguments[1:], given)
        if texts is None:
            return None
        lines = [AwkLine(line, line.split(mark), place) for place, line in enumerate(texts, 1)]
    printed = [_printed(program, line, shell) for line in lines]
    known = [text for text in printed if text is not None]
    return "".join(known) if len(known) == len(printed) else None


def _printed(program: re.Match[str], line: AwkLine, shell: Shell) -> str | None:
    """Return what one line prints: nothing where the rule is not for it, None where that is not known."""
    chosen = _chosen(program["rule"] or "", line)
    if not chosen:
        return None if chosen is None else ""
    terms, end = program["terms"], "\n"
    if program["what"] == "printf":  # only what prints one whole number
        form = re.fullmatch(r'"%[ds](\\n)?"\s*,(.*)', terms)
        if form is None:
            return None
        terms, end = form[2], "\n" if form[1] else ""
    if not terms:
        return line.text + end
    parts = [_value(part, line, shell) for part in _arguments(terms)]
    known = [part for part in parts if part is not None]
    return " ".join(known) + end if len(known) == len(parts) else None


def _chosen(rule: str, line: AwkLine) -> bool | None:
    if rule in ("", "BEGIN"):
        return True
    if rule.startswith("NR"):
        return int(rule.rpartition("=")[2]) == line.number
    if rule.startswith("/"):
        found = search(line.text, rule[1:-1])
        return None if found is None else bool(found)
    field, _, text = rule.partition("==")
    return line.field(int(field.strip()[1:])) == text.strip()[1:-1]


def _arguments(terms: str) -> list[str]:
    """Split at commas outside of texts."""
    return re.findall(r'(?:"[^"]*"|[^",])+', terms) or [""]


def _value(source: str, line: AwkLine, shell: Shell) -> str | None:
    """Return terms that touch as one text, or the number of a product; None for what is neither."""
    words, at = list[str](), 0
    source = source.strip()
    while at < len(source):
        match = _TERM.match(source, at)
        if match is None:
            return None
        words.append(match[1])
        at = match.end()
    if any(word in ("-", "+", "*", "/", "%", "(", ")") for word in words):
        return _number(words, line, shell)
    return "".join(_text(word, line) for word in words)


def _text(word: str, line: AwkLine) -> str:
    if word.startswith('"'):
        return word[1:-1]
    if word.isdecimal():
        return str(int(word))
    if word in ("NF", "NR"):
        return str(len(line.fields) if word == "NF" else line.number)
    inner = word[1:].strip("()")
    if inner.startswith("NF"):
        return line.field(len(line.fields) + int(inner[2:] or 0))
    return line.field(int(inner))


def _number(words: list[str], line: AwkLine, shell: Shell) -> str | None:
    """Return a whole number; awk divides with a rest, which the shell's arithmetic does not."""
    texts = [word if re.fullmatch(r"[-+*/%()]", word) else _text(word, line) for word in words]
    # awk counts in floating point: beyond fifteen digits its numbers are not the shell's.
    if any(not re.fullmatch(r"\d{1,15}|[-+*/%()]", text) for text in texts):
        return None
    if "/" in texts and (len(texts) != 3 or not int(texts[2] or 0) or int(texts[0]) % int(texts[2])):
        return None
    value = shell.expander.number(" ".join(texts))
    return None if value is None else str(value)
