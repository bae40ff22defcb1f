"""What bash's ``echo`` and ``printf`` print."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from layoutopt.optimizer.interop.shell.pieces import decoded
from layoutopt.optimizer.interop.shell.values import has_hole, hole

if TYPE_CHECKING:
    from layoutopt.optimizer.interop.shell.run import Shell

_SLOT = re.compile(
    r"%(?P<form>[-+ 0#]*)(?P<width>\*|\d{0,3})(?P<size>\.\d{0,3})?(?P<kind>[%sdiufFeEgGxXocbq])"
)


def echo(shell: Shell, words: list[str]) -> bool:
    """Write words with blanks between them; ``-e`` decodes escapes."""
    newline, decode = "\n", False
    while words and re.fullmatch(r"-[neE]+", words[0]):
        newline = "" if "n" in words[0] else newline
        for letter in words[0][1:]:  # the last one counts
            decode = letter == "e" or (decode and letter == "n")
        words = words[1:]
    text = " ".join(words)
    shell.printed += (decoded(text) if decode else text) + newline
    return True


def printf(shell: Shell, words: list[str]) -> bool:
    """Write values in a format, with ``-v`` into a variable."""
    target = words[1] if words[:1] == ["-v"] and len(words) > 2 else None
    form, *values = words[2:] if target else [word for word in words[:1] if word != "--"] + words[1:] or [""]
    text = _formatted(shell, form, values)
    if target:
        shell.assign_to(target, text)
    else:
        shell.printed += text
    return True


def _formatted(shell: Shell, form: str, values: list[str]) -> str:
    """Apply a format again and again until all values are used."""
    # %(...)T is a date, which only running it tells.
    if re.search(r"%\(", form):
        return hole("printf")
    form = decoded(form)
    slots = sum((match["width"] == "*") + (match["kind"] != "%") for match in _SLOT.finditer(form))
    result, left = "", list(values)
    while True:
        taken, left = left[:slots], left[slots:]
        result += _filled(shell, form, taken)
        shell.record.spend(len(form))
        if not left or not slots:
            return result


def _filled(shell: Shell, form: str, values: list[str]) -> str:
    parts = iter(values)

    def fill(match: re.Match[str]) -> str:
        """Return one value as its slot says."""
        if match["kind"] == "%":
            return "%"
        width = next(parts, "0") if match["width"] == "*" else match["width"]
        return _value(shell, match, width, next(parts, ""))

    return _SLOT.sub(fill, form)


def _value(shell: Shell, slot: re.Match[str], width: str, text: str) -> str:
    kind, size = slot["kind"], slot["size"] or ""
    # A hole has no length: it passes through a slot that leaves texts alone, and makes one that pads or cuts open.
    if has_hole(text) or not re.fullmatch(r"-?\d{0,3}", width):
        return text if not (width or size) or kind in "sb" else hole("printf")
    if kind == "q":
        text = re.sub(r"([^\w./:=@%+-])", r"\\\1", text) or "''"
    if kind == "b":
        text = decoded(text)
    if kind in "sbqc":
        text = text[:1] if kind == "c" else text[: int(size[1:] or 0)] if size else text
        return f"%{slot['form']}{width}s" % text if width else text
    try:
        if kind in "diuxXo":
            number = shell.expander.number(text or "0")
            if number is None:
                return hole("printf")
            return f"%{slot['form']}{width}{size}{kind.replace('u', 'd')}" % number
        return f"%{slot['form']}{width}{size}{kind}" % float(text or 0)
    except (ValueError, OverflowError):
        return hole("printf")
