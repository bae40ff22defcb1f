"""Commands that a script's configuration needs: those of the shell itself, and launchers that start another shell."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from shlex import split
from typing import TYPE_CHECKING

from layoutopt.optimizer.interop.shell.conditions import test_words
from layoutopt.optimizer.interop.shell.control import Leave
from layoutopt.optimizer.interop.shell.printing import echo, printf
from layoutopt.optimizer.interop.shell.reading import getopts, mapfile, read
from layoutopt.optimizer.interop.shell.record import Command
from layoutopt.optimizer.interop.shell.values import has_hole, without_holes

if TYPE_CHECKING:
    from collections.abc import Callable

    from layoutopt.optimizer.interop.shell.run import Shell

Status = bool | None

SHELLS = ("bash", "sh", "zsh", "dash")
HARMLESS = (
    "mkdir", "cd", "pushd", "popd", "module", "ml", "conda", "mamba", "pip", "pip3", "sleep", "wait", "ulimit",
    "rm", "cp", "mv", "ln", "touch", "chmod", "date", "hostname", "alias", "hash", "tee", "cat", "kill", "sync",
)  # fmt: skip
"""Programs that succeed or fail without a say in the configuration; they count as having succeeded."""

PRINTING = ("date", "hostname", "cat", "tee", "pip", "pip3", "conda", "mamba", "alias")
"""Those that print something."""


WRAPPERS = (
    "env", "srun", "nohup", "time", "nice", "timeout", "stdbuf", "mpirun", "mpiexec", "command", "exec",
)  # fmt: skip
"""Programs that start another with variables of their own (``env A=1``, ``mpirun -x A=1``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inner:
    """Another shell that a command starts: where its name stands, the text it runs, its arguments and name."""

    place: int
    text: str
    arguments: list[str]
    zero: str = ""


def run(shell: Shell, words: list[str], line: int) -> Status:
    """Run one command: a function or builtin of the shell, or a program, which is kept and not started."""
    name = words[0]
    # Bash's order: a function hides a builtin, a builtin a program of its name.
    if name in shell.functions:
        return shell.call(name, words[1:])
    builtin = _BUILTINS.get(name)
    if builtin is not None:
        return builtin(shell, words[1:])
    from layoutopt.optimizer.interop.shell.outputs import known_output

    found = known_output(words, shell)
    if found is not None:
        shell.printed += found.text
        shell.record.spend(len(found.text))
        return found.status
    return program(shell, words, line)


def program(shell: Shell, words: list[str], line: int) -> Status:
    """Keep a program, or read the script that it would start."""
    inner = _inner_script(shell, words) or _from_input(shell, words)
    if inner is None:
        seen = {name: value for name in shell.exported if isinstance(value := shell.value(name), str)}
        shell.record.spend(len(seen))
        command = Command(words=(*shell.prefix, *words), line=line, environment=seen | _set_by(words))
        shell.record.commands.append(command)
        # A $(...) or a file around it would hold what the program prints, so that is not known any more.
        shell.opaque |= words[0] not in HARMLESS or words[0] in PRINTING
        return True if words[0] in HARMLESS else None
    start_shell(shell, words, inner)
    return True


def _set_by(words: list[str]) -> dict[str, str]:
    """Return what ``env A=1 B=2`` sets for the command behind it."""
    pairs = (word.partition("=") for word in words[1:]) if words[0] == "env" else ()
    return {name: value for name, equals, value in pairs if equals and re.fullmatch(r"[A-Za-z_]\w*", name)}


def _inner_script(shell: Shell, words: list[str]) -> Inner | None:
    """Return the other shell that a command starts, None where it starts none whose text is known."""
    for place, word in enumerate(words):
        name = PurePosixPath(word).name
        if word.startswith("--wrap"):  # sbatch puts its text into a script of its own
            _, equals, text = word.partition("=")
            text = text if equals else "".join(words[place + 1 : place + 2])
            return Inner(place=place, text=text, arguments=[])
        if name in SHELLS:
            return _of_shell(shell, words, place)
        if place == 0 and name == "sbatch" and not any(one.startswith("--wrap") for one in words):
            return _named_file(shell, words, place + 1)
        if place == 0 and "/" in word and file_text(shell, word) is not None:
            return _named_file(shell, words, place)
        if word.endswith(".sh") and (place == 0 or words[0] in WRAPPERS):
            return _named_file(shell, words, place)
        if place == 0 and word in ("ssh", "pdsh"):
            return _remote(words)
        # Behind the trainer's launcher every word is the trainer's, a "bash" or "x.sh" among them too.
        if name.startswith(("python", "torchrun", "deepspeed")):
            return None
    return None


def _of_shell(shell: Shell, words: list[str], place: int) -> Inner | None:
    for at in range(place + 1, len(words)):
        if re.fullmatch(r"-[a-z]*c", words[at]) and at + 1 < len(words):
            rest = words[at + 2 :]  # bash counts from $0: the first of them is the name, not an argument
            return Inner(place=place, text=words[at + 1], arguments=rest[1:], zero="".join(rest[:1]))
        if re.fullmatch(r"-[a-z]*s", words[at]):
            if shell.stdin is None:
                return None
            arguments = [word for word in words[at + 1 : at + 2] if word != "--"] + words[at + 2 :]
            return Inner(place=place, text=shell.stdin.rest(), arguments=arguments)
        if not words[at].startswith(("-", "+")):
            return _named_file(shell, words, at, start=place)
    return None


def _named_file(shell: Shell, words: list[str], at: int, *, start: int | None = None) -> Inner | None:
    """Read a script by its name: one that this script wrote, or one beside it."""
    for place in range(at, len(words)):
        if words[place].startswith("-"):
            continue
        text = file_text(shell, words[place])
        if text is None:
            return None
        where = at if start is None else start
        return Inner(place=where, text=text, arguments=words[place + 1 :], zero=words[place])
    return None


def _from_input(shell: Shell, words: list[str]) -> Inner | None:
    """Return the shell that reads its script from standard input."""
    if shell.stdin is None:
        return None
    last = PurePosixPath(words[-1]).name
    hosts = [word for word in words[1:] if not word.startswith("-")]
    # ssh reads a script only where no command stands behind the host.
    if last in SHELLS or words[0] == "sbatch" or (words[0] == "ssh" and len(hosts) == 1):
        return Inner(place=0 if words[0] == "ssh" else len(words) - 1, text=shell.stdin.rest(), arguments=[])
    return None


def file_text(shell: Shell, name: str) -> str | None:
    """Return the text of a file that the script wrote or that lies beside it."""
    # "$(dirname "$0")/common.sh": which folder is open, but the files beside the script are looked up by name.
    if has_hole(name):
        name = PurePosixPath(without_holes(name, ".")).name
    if name in ("/dev/stdin", "-"):
        return None if shell.stdin is None else shell.stdin.rest()
    own = name.removeprefix("./")
    written = shell.record.files.get(own)
    if own in shell.record.unwritten or own in shell.record.gone:
        return None
    return shell.record.outside.beside(name) if written is None else written


def lines_of(shell: Shell, names: list[str], given: str | None) -> list[str] | None:
    """Return the lines that a filter reads from one file or its input, None where they are not known."""
    text = file_text(shell, names[0]) if len(names) == 1 else given if not names else None
    return None if text is None or has_hole(text) else text.splitlines()


def _remote(words: list[str]) -> Inner | None:
    """``ssh host "command"``: the last words are the command."""
    texts = [place for place, word in enumerate(words) if " " in word]
    return Inner(place=texts[0], text=" ".join(words[texts[0] :]), arguments=[]) if texts else None


def start_shell(shell: Shell, words: list[str], own: Inner) -> None:
    """Read a text in a shell of its own, which sees what was exported and what the command sets for it."""
    from layoutopt.optimizer.interop.shell.run import Shell

    inner = Shell(shell.record, arguments=own.arguments, depth=shell.depth + 1)
    # Another process sees what was exported and nothing else; what was not is empty there, not open.
    inner.variables = {name: shell.variables[name] for name in shell.exported if name in shell.variables}
    inner.exported = set(inner.variables)
    for before, word in zip(("", *words), words[: own.place], strict=False):
        name, equals, value = word.partition("=")
        if equals and re.fullmatch(r"[A-Za-z_]\w*", name) and (before == "-x" or words[0] == "env"):
            inner.variables[name] = value
            inner.exported.add(name)
    inner.functions = {
        name: shell.functions[name] for name in shell.functions if name in shell.exported_functions
    }
    inner.exported_functions, inner.prefix = set(inner.functions), [*shell.prefix, *words[: own.place]]
    inner.zero, inner.stdin = own.zero or inner.zero, shell.stdin
    inner.withheld = shell.withheld | (set(shell.variables) - inner.exported)
    inner.apart(own.text)
    shell.printed += inner.printed
    shell.opaque |= inner.opaque


def _eval(shell: Shell, words: list[str]) -> Status:
    return shell.source(" ".join(words))


def _exec(shell: Shell, words: list[str]) -> Status:
    if not words:
        return True
    status = run(shell, words, shell.line)
    # The program takes the shell's place: nothing behind it runs.
    raise Leave("exit", status)


def _source(shell: Shell, words: list[str]) -> Status:
    """Read another file into this shell, or note that it is not there."""
    if not words:
        return None
    text = file_text(shell, shell.substituted.pop(words[0], words[0]))
    if text is None:
        shell.record.unread.setdefault(words[0], shell.line)
        return None
    before = shell.arguments
    # Without words of its own the file sees the arguments around it, and may shift them for good.
    if words[1:]:
        shell.arguments = words[1:]
    shell.sources.append(words[0])
    try:
        return shell.source(text)
    except Leave as leave:
        if leave.kind != "return":
            raise
        shell.returned = leave.code
        return leave.status
    finally:
        shell.sources.pop()
        if words[1:]:
            shell.arguments = before


def _leave(kind: str) -> Callable[[Shell, list[str]], Status]:
    def leave(shell: Shell, words: list[str]) -> Status:
        """Go up to the loop, function or shell that is left."""
        number = shell.expander.number(words[0]) if words else None
        if kind in ("break", "continue"):
            raise Leave(kind, levels=max(number or 1, 1))
        if not words:  # with the status of the last command
            raise Leave(kind, None if shell.code is None else shell.code == 0, code=shell.code)
        raise Leave(kind, None if number is None else number == 0, code=number)

    return leave


def _shift(shell: Shell, words: list[str]) -> Status:
    count = int(words[0]) if words and words[0].isdecimal() else 1
    if shell.arguments is None:
        known = shell.record.arguments
        if known is None:
            return None
        shell.arguments = known
    if count > len(shell.arguments):  # then bash shifts nothing at all
        return False
    shell.arguments = shell.arguments[count:]
    return True


_OPTIONS = {"errexit": "e", "allexport": "a", "noglob": "f"}


def _set(shell: Shell, words: list[str]) -> Status:
    """Switch options, and set the arguments to what is no option."""
    at = 0
    while at < len(words) and re.fullmatch(r"[-+][A-Za-z]+", words[at]):
        on, letters = words[at][0] == "-", words[at][1:]
        if "o" in letters:
            at += 1
            letters += _OPTIONS.get("".join(words[at : at + 1]), "")
        if "e" in letters:
            shell.stops = on
        if "a" in letters:
            shell.exports_all = on
        if "f" in letters:
            shell.plain = on
        at += 1
    if words[at : at + 1] in (["--"], ["-"]):
        shell.arguments = words[at + 1 :]
    elif words[at:]:  # "set -e" alone leaves the arguments as they are
        shell.arguments = words[at:]
    return True


def _shopt(shell: Shell, words: list[str]) -> Status:
    if "extglob" in words:
        shell.grouped = "-u" not in words
    if "nullglob" in words:
        shell.empties = "-u" not in words
    return True


def _trap(shell: Shell, words: list[str]) -> Status:
    """Keep what runs at the end."""
    # Other signals come from outside, and a job that is interrupted is not the one that is asked for.
    if len(words) > 1 and {"EXIT", "0"} & set(words[1:]):
        shell.at_exit = "" if words[0] == "-" else words[0]
    return True


def _command(shell: Shell, words: list[str]) -> Status:
    """``command`` and ``builtin`` pass functions over; with ``-v`` only the machine knows."""
    if not words or words[0].startswith("-"):
        shell.opaque = True
        return None
    kept = shell.functions
    shell.functions = {name: body for name, body in kept.items() if name != words[0]}
    try:
        return run(shell, words, shell.line)
    finally:
        shell.functions = kept


def _let(shell: Shell, words: list[str]) -> Status:
    values = [shell.expander.number(word) for word in words]
    return None if not values or values[-1] is None else values[-1] != 0


def _test(shell: Shell, words: list[str]) -> Status:
    return test_words(words[:-1] if words and words[-1] == "]" else words, shell.expander)


def _xargs(shell: Shell, words: list[str]) -> Status:
    """Run a program with the words that it reads behind its own."""
    optional = words[:1] == ["-r"]
    # Its other options deal words out over several calls, or put them in the middle.
    if shell.stdin is None or (words and words[0].startswith("-") and not optional):
        return program(shell, ["xargs", *words], shell.line)
    try:
        given = split(shell.stdin.rest())
    except ValueError:
        return program(shell, ["xargs", *words], shell.line)
    command = [*(words[optional:] or ["echo"]), *given]
    # xargs starts programs: functions and builtins of the shell are not among them, but these two are programs as well.
    start = run if command[0] in ("echo", "printf") else program
    return start(shell, command, shell.line)


_BUILTINS: dict[str, Callable[[Shell, list[str]], Status]] = {
    "eval": _eval, "exec": _exec, "source": _source, ".": _source, "exit": _leave("exit"), "return": _leave("return"),
    "break": _leave("break"), "continue": _leave("continue"), "shift": _shift, "set": _set, "let": _let, "test": _test,
    "[": _test, "echo": echo, "printf": printf, "read": read, "mapfile": mapfile,
    "true": lambda shell, words: True, ":": lambda shell, words: True, "false": lambda shell, words: False,
    "readarray": mapfile, "getopts": getopts, "shopt": _shopt, "trap": _trap, "command": _command, "builtin": _command,
    "xargs": _xargs,
}  # fmt: skip
