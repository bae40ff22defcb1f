"""Builtins that read: ``read``, ``mapfile`` and ``getopts``."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from layoutopt.optimizer.interop.shell.pieces import unescaped
from layoutopt.optimizer.interop.shell.values import array_of, hole, separators

if TYPE_CHECKING:
    from layoutopt.optimizer.interop.shell.run import Shell

Status = bool | None

_NAME = re.compile(r"[A-Za-z_]\w*")
_READ = "dinptuaN"
_MAPFILE = "dnOsuCc"


def read(shell: Shell, words: list[str]) -> Status:
    """Read a line into variables; without an input in the script they are open."""
    options, names = _options(words, _READ)
    names = [name for name in names if _NAME.fullmatch(name)]
    array = options.get("a")
    # From a terminal, or a descriptor that somebody else opened: only running it would tell.
    if shell.stdin is None or "u" in options:
        for variable in [array] if array else names:
            shell.assign(variable, hole(variable))
        return None
    line, ended = shell.stdin.line(options.get("d", "\n")[:1])
    # Without -r a backslash at the end of a line joins the next one.
    while "r" not in options and ended and re.search(r"(?<!\\)(\\\\)*\\$", line):
        more, ended = shell.stdin.line()
        line = line[:-1] + more
    blanks = shell.value("IFS")
    own = blanks if isinstance(blanks, str) else None
    raw = "r" in options
    if array:
        parts = _fields(line, own, 0, raw=raw)
        shell.forget(array)
        shell.assign(array, array_of(parts))
    elif not names:
        shell.assign("REPLY", line)
    else:
        parts = _fields(line, own, len(names), raw=raw)
        for place, variable in enumerate(names):
            shell.assign(variable, parts[place] if place < len(parts) else "")
    return ended


def _fields(line: str, blanks: str | None, most: int, *, raw: bool) -> list[str]:
    """Split a line; the last of ``most`` fields (0: any number) takes the rest."""
    white = "".join(char for char in (" \t\n" if blanks is None else blanks) if char in " \t\n")
    line = line.strip(white)
    separator, at = separators(blanks), 0
    parts: list[str] = []
    while separator is not None and (most == 0 or len(parts) < most - 1):
        match = separator.search(line, at)
        if match is None:
            break
        parts.append(line[at : match.start()])
        at = match.end()
    rest = line[at:]
    only = separator.search(rest) if separator is not None and most and rest else None
    if only and only.end() == len(rest):
        rest = rest[: only.start()]  # one separator at the end of the last field is none of it
    if rest or (most and not parts):
        parts.append(rest)
    return parts if raw else [unescaped(part) for part in parts]


def mapfile(shell: Shell, words: list[str]) -> Status:
    """Read all lines into an array; without an input in the script it is open."""
    options, names = _options(words, _MAPFILE)
    array = names[-1] if names else "MAPFILE"
    if shell.stdin is None or {"u", "C", "O"} & options.keys():
        shell.assign(array, hole(array))
        return None
    end, lines = options.get("d", "\n")[:1] or "\0", []
    while True:
        line, ended = shell.stdin.line(end)
        if not ended and not line:
            break
        lines.append(line if "t" in options or not ended else line + end)
    first, most = (int(value) if (value := options.get(key, "0")).isdecimal() else 0 for key in "sn")
    shell.forget(array)
    kept = lines[first : first + most if most else None]
    shell.assign(array, array_of(kept))
    return True


def _options(words: list[str], valued: str) -> tuple[dict[str, str], list[str]]:
    """Return options by letter (those of ``valued`` with their value) and the words behind them."""
    options: dict[str, str] = {}
    at = 0
    while at < len(words) and re.fullmatch(r"-\w.*", words[at], re.DOTALL):
        letters = words[at][1:]
        at += 1
        while letters:
            letter, letters = letters[0], letters[1:]
            if letter not in valued:
                options[letter] = ""
                continue
            if not letters:
                letters, at = (words[at] if at < len(words) else ""), at + 1
            options[letter], letters = letters, ""
    return options, words[at:]


def getopts(shell: Shell, words: list[str]) -> Status:
    """Take the next option of the script's, the function's or its own arguments."""
    if len(words) < 2:
        return None
    letters, name = words[:2]
    known = shell.arguments if shell.arguments is not None else shell.record.arguments
    if len(words) == 2 and known is None:
        shell.record.assume('no arguments beside the script ("$@" is empty)')
    arguments = words[2:] or known or []
    place = shell.expander.number(str(shell.value("OPTIND") or 1)) or 1
    # OPTIND says the argument alone; which letter of ``-abc`` is next bash keeps for itself.
    if place != shell.cluster[0]:
        shell.cluster = (place, 1)
    at = shell.cluster[1]
    word = arguments[place - 1] if place <= len(arguments) else ""
    if not re.match(r"-.", word, re.DOTALL) or word == "--":
        _go_on(shell, place + (word == "--"), 1)
        shell.assign(name, "?")
        return False
    letter, rest = word[at], word[at + 1 :]
    where = letters.lstrip(":").find(letter)
    if letter == ":" or where < 0:
        shell.assign(name, "?")
        shell.assign("OPTARG", letter if letters.startswith(":") else "")
        _go_on(shell, place + (not rest), at + 1 if rest else 1)
        return True
    shell.assign(name, letter)
    if letters.lstrip(":")[where + 1 : where + 2] != ":":
        _go_on(shell, place + (not rest), at + 1 if rest else 1)
    elif rest:
        shell.assign("OPTARG", rest)
        _go_on(shell, place + 1, 1)
    elif place < len(arguments):
        shell.assign("OPTARG", arguments[place])
        _go_on(shell, place + 2, 1)
    else:
        quiet = letters.startswith(":")  # the script looks at errors itself
        shell.assign(name, ":" if quiet else "?")
        shell.assign("OPTARG", letter if quiet else "")
        _go_on(shell, place + 1, 1)
    return True


def _go_on(shell: Shell, place: int, at: int) -> None:
    shell.assign("OPTIND", str(place))
    shell.cluster = (place, at)
