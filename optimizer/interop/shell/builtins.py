"""Commands that a script's configuration needs: those of the shell itself, and launchers that start another shell."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from layoutopt.optimizer.interop.shell.conditions import test_words
from layoutopt.optimizer.interop.shell.control import Leave
from layoutopt.optimizer.interop.shell.record import Command
from layoutopt.optimizer.interop.shell.values import Piece, has_hole, hole, split_fields

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tree_sitter import Node

    from layoutopt.optimizer.interop.shell.run import Shell

Status = bool | None

SHELLS = ("bash", "sh", "zsh", "dash")
HARMLESS = (
    "mkdir", "cd", "pushd", "popd", "module", "ml", "conda", "mamba", "pip", "pip3", "sleep", "wait", "trap", "ulimit",
    "rm", "cp", "mv", "ln", "touch", "chmod", "date", "hostname", "alias", "shopt", "hash", "tee", "cat", "kill", "sync",
)  # fmt: skip
"""Programs that succeed or fail without a say in the configuration; they count as having succeeded."""

PRINTING = ("date", "hostname", "cat", "tee", "pip", "pip3", "conda", "mamba", "alias", "trap")
"""Those that print something."""


def run(shell: Shell, words: list[str], line: int, strings: Sequence[Node] = ()) -> Status:
    """Run one command: a function or builtin of the shell, or a program, which is kept and not started."""
    name = words[0]
    if name in shell.functions:
        return shell.call(name, words[1:])
    builtin = _BUILTINS.get(name)
    if builtin is not None:
        return builtin(shell, words[1:])
    if name in ("read", "mapfile", "readarray"):
        return read_values(
            shell, words[1:], [shell.expander.text(node.children[-1]) for node in strings], name
        )
    return program(shell, words, line)


def program(shell: Shell, words: list[str], line: int) -> Status:
    """Keep a program, or read the script that it would start."""
    inner = _inner_script(shell, words)
    if inner is None:
        shell.record.commands.append(Command(words=(*shell.prefix, *words), line=line))
        shell.opaque |= words[0] not in HARMLESS or words[0] in PRINTING
        return True if words[0] in HARMLESS else None
    place, text, arguments = inner
    start_shell(shell, [*shell.prefix, *words[:place]], text, arguments)
    return True


def _inner_script(shell: Shell, words: list[str]) -> tuple[int, str, list[str]] | None:
    """Return where another shell starts, the text it runs and its arguments; None where none does."""
    for place, word in enumerate(words):
        if word.startswith("--wrap"):
            _, equals, text = word.partition("=")
            return place, text if equals else "".join(words[place + 1 : place + 2]), []
        if PurePosixPath(word).name in SHELLS:
            return _of_shell(shell, words, place)
        if place == 0 and PurePosixPath(word).name == "sbatch":
            return _named_file(shell, words, place + 1)
        if place == 0 and word.endswith(".sh"):
            return _named_file(shell, words, place)
        if place == 0 and word in ("ssh", "pdsh"):
            return _remote(words)
        if PurePosixPath(word).name.startswith(("python", "torchrun", "deepspeed")):
            return None
    return None


def _of_shell(shell: Shell, words: list[str], place: int) -> tuple[int, str, list[str]] | None:
    for at in range(place + 1, len(words)):
        if re.fullmatch(r"-[a-z]*c", words[at]) and at + 1 < len(words):
            return place, words[at + 1], words[at + 3 :]
        if not words[at].startswith(("-", "+")):
            return _named_file(shell, words, at, start=place)
    return None


def _named_file(
    shell: Shell, words: list[str], at: int, *, start: int | None = None
) -> tuple[int, str, list[str]] | None:
    """Read a script by its name: one that this script wrote, or one beside it."""
    for place in range(at, len(words)):
        if words[place].startswith("-"):
            continue
        text = file_text(shell, words[place])
        return None if text is None else (at if start is None else start, text, words[place + 1 :])
    return None


def file_text(shell: Shell, name: str) -> str | None:
    """Return the text of a file that the script wrote or that lies beside it."""
    if has_hole(name):
        name = PurePosixPath(re.sub("\ue000[^\ue001]*\ue001", ".", name)).name
    written = shell.record.files.get(name.removeprefix("./"))
    if name.removeprefix("./") in shell.record.unwritten:
        return None
    return shell.record.outside.beside(name) if written is None else written


def _remote(words: list[str]) -> tuple[int, str, list[str]] | None:
    """``ssh host "command"``: the last words are the command."""
    texts = [place for place, word in enumerate(words) if " " in word]
    return (texts[0], " ".join(words[texts[0] :]), []) if texts else None


def start_shell(shell: Shell, prefix: list[str], text: str, arguments: list[str]) -> None:
    """Read a text in a shell of its own, which sees what was exported."""
    from layoutopt.optimizer.interop.shell.run import Shell

    inner = Shell(shell.record, arguments=arguments, depth=shell.depth + 1)
    inner.variables = {name: shell.variables[name] for name in shell.exported if name in shell.variables}
    inner.exported, inner.prefix = set(inner.variables), prefix
    inner.withheld = shell.withheld | (set(shell.variables) - shell.exported)
    try:
        inner.source(text)
    except Leave:
        return


def _eval(shell: Shell, words: list[str]) -> Status:
    return shell.source(" ".join(words))


def _exec(shell: Shell, words: list[str]) -> Status:
    if not words:
        return True
    run(shell, words, shell.line)
    return _leave("exit")(shell, words)


def _source(shell: Shell, words: list[str]) -> Status:
    """Read another file into this shell, or note that it is not there."""
    if not words:
        return None
    text = file_text(shell, words[0])
    if text is None:
        shell.record.unread.setdefault(words[0], shell.line)
        return None
    return shell.source(text)


def _leave(kind: str) -> Callable[[Shell, list[str]], Status]:
    def leave(shell: Shell, words: list[str]) -> Status:
        """Go up to the loop, function or shell that is left."""
        raise Leave(kind)

    return leave


def _shift(shell: Shell, words: list[str]) -> Status:
    count = int(words[0]) if words and words[0].isdecimal() else 1
    if shell.arguments is None:
        known = shell.record.arguments
        if known is None:
            return None
        shell.arguments = known
    if count > len(shell.arguments):
        return False
    shell.arguments = shell.arguments[count:]
    return True


def _set(shell: Shell, words: list[str]) -> Status:
    if "--" in words:
        shell.arguments = words[words.index("--") + 1 :]
    return True


def _let(shell: Shell, words: list[str]) -> Status:
    values = [shell.expander.number(word) for word in words]
    return None if not values or values[-1] is None else values[-1] != 0


def _test(shell: Shell, words: list[str]) -> Status:
    return test_words(words[:-1] if words and words[-1] == "]" else words)


def echo(shell: Shell, words: list[str]) -> Status:
    """Write words with blanks between them, as bash's ``echo``."""
    newline = "\n"
    while words and re.fullmatch(r"-[neE]+", words[0]):
        newline = "" if "n" in words[0] else newline
        words = words[1:]
    shell.printed += " ".join(words) + newline
    return True


def printf(shell: Shell, words: list[str]) -> Status:
    """Write values in a format, with ``-v`` into a variable, as bash's ``printf``."""
    target = words[1] if words[:1] == ["-v"] and len(words) > 2 else None
    form, *values = words[2:] if target else words or [""]
    text = _formatted(form, values)
    if target:
        shell.assign(target, text)
    else:
        shell.printed += text
    return True


def _formatted(form: str, values: list[str]) -> str:
    """Apply a printf format again and again until all values are used."""
    form = form.replace("\\n", "\n").replace("\\t", "\t")
    slots = len(re.findall(r"%[-0-9.]*[sdiqf]", form))
    result, left = "", list(values)
    while True:
        taken, left = left[:slots], left[slots:]
        result += _filled(form, taken)
        if not left or not slots:
            return result


def _filled(form: str, values: list[str]) -> str:
    parts = iter(values)
    return re.sub(r"%(%|[-0-9.]*[sdiqf])", lambda match: "%" if match[1] == "%" else next(parts, ""), form)


def read_values(shell: Shell, words: list[str], strings: list[str], name: str) -> Status:
    """``read`` takes its text from a here-string; from anywhere else it is open."""
    blanks = shell.value("IFS")
    names = [word for word in words if re.fullmatch(r"[A-Za-z_]\w*", word)]
    array = name != "read" or any(re.fullmatch(r"-[a-z]*a", word) for word in words)
    if not strings:
        for variable in names:
            shell.assign(variable, hole(variable))
        return None
    parts = split_fields([[Piece(strings[0], False)]], blanks if isinstance(blanks, str) else None)
    if name != "read":
        parts = strings[0].split("\n")
    if array and names:
        shell.assign(names[-1], {str(place): part for place, part in enumerate(parts)})
        return True
    separator = re.compile(f"[{re.escape(blanks)}]" if isinstance(blanks, str) and blanks else r"\s+")
    parts = separator.split(strings[0].strip(), maxsplit=max(len(names) - 1, 0))
    for place, variable in enumerate(names):
        shell.assign(variable, "".join(parts[place : place + 1]))
    return True


def _true(shell: Shell, words: list[str]) -> Status:
    return True


def _false(shell: Shell, words: list[str]) -> Status:
    return False


_BUILTINS: dict[str, Callable[[Shell, list[str]], Status]] = {
    "eval": _eval, "exec": _exec, "source": _source, ".": _source, "exit": _leave("exit"), "return": _leave("return"),
    "break": _leave("break"), "continue": _leave("continue"), "shift": _shift, "set": _set, "let": _let, "test": _test,
    "[": _test, "echo": echo, "printf": printf, "true": _true, ":": _true, "false": _false,
}  # fmt: skip
