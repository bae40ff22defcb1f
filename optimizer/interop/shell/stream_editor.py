"""``sed``: the commands that fill templates and cut words out of names."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from layoutopt.optimizer.interop.shell.conditions import expression
from layoutopt.optimizer.interop.shell.values import has_hole

if TYPE_CHECKING:
    from layoutopt.optimizer.interop.shell.run import Shell


@dataclass(frozen=True, slots=True, kw_only=True)
class SedCommand:
    """One command: the lines that it is for (a number, ``$``, or a pattern), its letter, and what ``s`` puts for what."""

    letter: str
    address: str = ""
    old: str = ""
    new: str = ""
    flags: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SedCall:
    """What a call of ``sed`` does: its commands, whether it prints but what ``p`` says, its patterns, its files."""

    commands: tuple[SedCommand, ...]
    quiet: bool
    extended: bool
    files: tuple[str, ...]


LONGEST = 5_000
"""Characters of the longest script that is looked at."""

_COMMAND = re.compile(
    r"\s*(?P<address>\d+|\$|/(?:[^/\\\n]|\\.)*/)?\s*"
    r"(?:(?P<letter>[pd])|s(?P<mark>[^\w\s\\])(?P<rest>.*))?\s*",
    re.DOTALL,
)


def read_scripts(arguments: list[str]) -> SedCall | None:
    """Take the arguments apart; None where one is not known."""
    scripts, rest, quiet, extended = list[str](), list[str](), False, False
    at = 0
    while at < len(arguments):
        word = arguments[at]
        if word in ("-e", "--expression"):
            at += 1
            scripts += arguments[at : at + 1]
        elif word.startswith("--expression="):
            scripts.append(word.partition("=")[2])
        elif re.fullmatch(r"-[nErsu]+", word):
            quiet, extended = quiet or "n" in word, extended or bool({"E", "r"} & set(word))
        elif word.startswith("-") and word != "-":
            return None
        else:
            rest.append(word)
        at += 1
    if not scripts and rest:
        scripts, rest = rest[:1], rest[1:]
    found = [_commands(script) if len(script) <= LONGEST else None for script in scripts]
    commands = [one for part in found if part is not None for one in part]
    if None in found or not commands:
        return None
    return SedCall(commands=tuple(commands), quiet=quiet, extended=extended, files=tuple(rest))


def _commands(script: str) -> list[SedCommand] | None:
    """Read commands with ``;`` or line ends between them."""
    commands = list[SedCommand]()
    while script.strip(" ;\n"):
        script = script.lstrip(" ;\n")
        match = _COMMAND.match(script)
        if match is None or (match["letter"] is None and match["mark"] is None):
            return None
        address = match["address"] or ""
        if match["letter"]:
            commands.append(SedCommand(letter=match["letter"], address=address))
            script = script[match.end() :]
            if script and script[0] not in ";\n":
                return None
            continue
        parts = _parts(match["rest"], match["mark"])
        flags = re.match(r"[gpI]*(?=\s*(?:[;\n]|$))", parts[2]) if parts else None
        if parts is None or flags is None:
            return None
        commands.append(SedCommand(letter="s", address=address, old=parts[0], new=parts[1], flags=flags[0]))
        script = parts[2][flags.end() :]
    return commands


def _parts(text: str, mark: str) -> tuple[str, str, str] | None:
    """Split what is behind ``s`` and its mark: pattern, replacement, rest; a backslash keeps a mark."""
    found, current, at = list[str](), "", 0
    while at < len(text) and len(found) < 2:
        if text[at] == "\\" and at + 1 < len(text):
            current += text[at + 1] if text[at + 1] == mark else text[at : at + 2]
            at += 2
        elif text[at] == mark:
            found.append(current)
            current, at = "", at + 1
        else:
            current += text[at]
            at += 1
    return (found[0], found[1], text[at:]) if len(found) == 2 else None


def edited(call: SedCall, text: str, shell: Shell) -> str | None:
    """Return what the commands make of a text, None where that is not known."""
    ended = text.endswith("\n")
    lines = text.split("\n")[:-1] if ended else text.split("\n")
    kept = list[str]()
    for place, line in enumerate(lines, 1):
        shell.record.spend(len(line) + 1)
        found = _line(call, line, place, last=place == len(lines))
        if found is None:
            return None
        kept += found
    return "".join(f"{line}\n" for line in kept) if ended else "\n".join(kept)


def _line(call: SedCall, line: str, place: int, *, last: bool) -> list[str] | None:
    """Return the lines that one line gives: itself unless quiet or deleted, and once more where it is printed."""
    printed = list[str]()
    for command in call.commands:
        chosen = _chosen(command.address, line, place, last=last, extended=call.extended)
        if chosen is None:
            return None
        if not chosen:
            continue
        if command.letter == "d":
            return printed
        done = True
        if command.letter == "s":
            found = _substituted(line, command, extended=call.extended)
            if found is None:
                return None
            line, done = found
        if command.letter == "p" or (done and "p" in command.flags):
            printed.append(line)
    return printed if call.quiet else [*printed, line]


def _chosen(address: str, line: str, place: int, *, last: bool, extended: bool) -> bool | None:
    if not address:
        return True
    if address == "$":
        return last
    if address.isdecimal():
        return int(address) == place
    pattern = _pattern(address[1:-1], line, extended=extended)
    return None if pattern is None else pattern.search(line) is not None


def _pattern(source: str, line: str, *, extended: bool) -> re.Pattern[str] | None:
    """Return a pattern that finds what sed finds: no choices, of which the longest would count, and nothing open."""
    written = source if extended else _extended(source)
    plain = re.fullmatch(r"[\w <>{}=:,@%/-]+|\^[\w=:,-]+", source) is not None
    if plain and not extended:
        return re.compile(("^" if source[0] == "^" else "") + re.escape(source.removeprefix("^")))
    if has_hole(line) or has_hole(source) or "|" in re.sub(r"\\\|", "", written):
        return None
    return expression(written, len(line))


def _extended(source: str) -> str:
    """Write a basic expression as an extended one: a backslash makes of braces, ``+`` and ``?`` what they are there."""
    # Both ways at once: a mark with a backslash loses it, one without gets it, other escapes stay.
    return re.sub(r"\\([(){}+?|])|(\\.)|([(){}+?|])", lambda at: at[1] or at[2] or "\\" + at[3], source)


def _substituted(line: str, command: SedCommand, *, extended: bool) -> tuple[str, bool] | None:
    pattern = _pattern(command.old, line, extended=extended)
    if pattern is None or ("I" in command.flags and has_hole(line)):
        return None
    if "I" in command.flags:
        pattern = re.compile(pattern.pattern, re.IGNORECASE)
    if any(int(one) > pattern.groups for one in re.findall(r"(?<!\\)\\(\d)", command.new)):
        return None  # sed refuses a group that there is not
    # \U, \L and \E change case in GNU sed alone.
    if re.search(r"\\[a-zA-Z]", command.new.replace("\\n", "").replace("\\t", "")):
        return None

    def fill(match: re.Match[str]) -> str:
        """Return the replacement: the match for ``&``, a group for its number."""
        return re.sub(r"\\(.)|&", lambda mark: _mark(mark, match), command.new, flags=re.DOTALL)

    changed, count = pattern.subn(fill, line, count=0 if "g" in command.flags else 1)
    return changed, count > 0


def _mark(mark: re.Match[str], match: re.Match[str]) -> str:
    letter = mark[1]
    if letter is None:
        return match[0]
    if letter.isdecimal():
        return match[int(letter)] or ""
    return {"n": "\n", "t": "\t"}.get(letter, letter)
