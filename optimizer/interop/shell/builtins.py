"""Commands that a script's configuration needs: those of the shell itself, and launchers that start another shell."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from layoutopt.optimizer.interop.shell.conditions import test_words
from layoutopt.optimizer.interop.shell.record import Command
from layoutopt.optimizer.interop.shell.syntax import child_of, text_of
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


def run(shell: Shell, words: list[str], line: int, strings: Sequence[Node] = ()) -> Status:
    """Run one command: a function or builtin of the shell, or a program, which is kept and not started."""
    name = words[0]
    if name in shell.functions:
        return shell.call(name, words[1:])
    builtin = _BUILTINS.get(name)
    if builtin is not None:
        return builtin(shell, words[1:])
    if name in ("read", "mapfile", "readarray"):
        return _read(shell, words[1:], [shell.expander.text(node.children[-1]) for node in strings], name)
    return program(shell, words, line)


def program(shell: Shell, words: list[str], line: int) -> Status:
    """Keep a program, or read the script that it would start."""
    inner = _inner_script(shell, words)
    if inner is None:
        shell.record.commands.append(Command(words=(*shell.prefix, *words), line=line))
        return True if words[0] in HARMLESS else None
    place, text, arguments = inner
    _start(shell, [*shell.prefix, *words[:place]], text, arguments)
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
    return shell.record.outside.beside(name) if written is None else written


def _remote(words: list[str]) -> tuple[int, str, list[str]] | None:
    """``ssh host "command"``: the last words are the command."""
    texts = [place for place, word in enumerate(words) if " " in word]
    return (texts[0], " ".join(words[texts[0] :]), []) if texts else None


def _start(shell: Shell, prefix: list[str], text: str, arguments: list[str]) -> None:
    """Read a text in a shell of its own, which sees what was exported."""
    from layoutopt.optimizer.interop.shell.run import Leave, Shell

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
        from layoutopt.optimizer.interop.shell.run import Leave

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


def _echo(shell: Shell, words: list[str]) -> Status:
    newline = "\n"
    while words and re.fullmatch(r"-[neE]+", words[0]):
        newline = "" if "n" in words[0] else newline
        words = words[1:]
    shell.printed += " ".join(words) + newline
    return True


def _printf(shell: Shell, words: list[str]) -> Status:
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


def _read(shell: Shell, words: list[str], strings: list[str], name: str) -> Status:
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
    "[": _test, "echo": _echo, "printf": _printf, "true": _true, ":": _true, "false": _false,
}  # fmt: skip


def redirected(shell: Shell, body: Node, redirects: list[Node]) -> Status:
    """Run a statement whose output goes to a file or whose input is in the script."""
    target, append = None, False
    document: str | None = None
    following: Node | None = None
    for node in redirects:
        if node.type == "heredoc_redirect":
            document = _document(shell, node)
            inner = [child for child in node.children if child.type == "file_redirect"]
            target, append = _target(shell, inner) or (target, append)
            following = next(
                (child for child in node.children if child.type in ("pipeline", "command")), None
            )
    target, append = _target(shell, redirects) or (target, append)
    kept = shell.printed
    shell.printed = ""
    texts = [
        shell.expander.text(node.children[-1]) for node in redirects if node.type == "herestring_redirect"
    ]
    status = _with_input(shell, body, document, texts)
    printed, shell.printed = shell.printed, kept
    if following is not None:
        shell.statement(following)
        target = target or _tee(shell, following)
    if target is not None:
        target = target.removeprefix("./")
        before = shell.record.files.get(target, "") if append else ""
        shell.record.files[target] = before + printed
    else:
        shell.printed += printed
    return status


def _with_input(shell: Shell, body: Node, document: str | None, texts: list[str]) -> Status:
    """Run a command with a here-document or here-string as its input."""
    name = text_of(body).split(maxsplit=1)[0] if text_of(body).strip() else ""
    if document is None and not texts:
        return shell.statement(body)
    given = document if document is not None else texts[0]
    if name in ("cat", "tee"):
        shell.printed += given
        target = _tee(shell, body)
        if target is not None:
            shell.record.files[target.removeprefix("./")] = given
        return True
    if name in ("read", "mapfile", "readarray"):
        words = [
            word for node in body.children_by_field_name("argument") for word in shell.expander.words(node)
        ]
        # without a delimiter the whole document is one value
        whole = document is not None and "-d" in words
        words = [
            word
            for place, word in enumerate(words)
            if word != "-d" and (place == 0 or words[place - 1] != "-d")
        ]
        if whole:
            names = [word for word in words if re.fullmatch(r"[A-Za-z_]\w*", word)]
            shell.assign(names[-1], given.strip()) if names else None
            return True
        return _read(shell, words, [given.rstrip("\n")], name)
    if PurePosixPath(name).name in SHELLS or name in ("ssh", "sbatch", "srun"):
        _start(
            shell,
            [*shell.prefix, *shell.expander.words(body)[:1]] if name == "srun" else shell.prefix,
            given,
            [],
        )
        return True
    return shell.statement(body)


def _target(shell: Shell, redirects: list[Node]) -> tuple[str, bool] | None:
    """Return the file that standard output goes to, and whether it is appended."""
    for node in redirects:
        marks = [text_of(child).strip() for child in node.children if not child.is_named]
        numbered = any(child.type == "file_descriptor" and text_of(child) != "1" for child in node.children)
        if node.type == "file_redirect" and not numbered and marks[:1] in ([">"], [">>"], [">|"]):
            return shell.expander.text(child_of(node, "destination")), marks[0] == ">>"
    return None


def _tee(shell: Shell, node: Node) -> str | None:
    """Return the file that ``tee`` writes."""
    match = re.search(r"\btee\s+(?:-a\s+)?([^\s<>|&;]+)", text_of(node))
    return match[1].strip("\"'") if match else None


def _document(shell: Shell, node: Node) -> str:
    """Return a here-document, expanded unless its delimiter is quoted."""
    start = next((text_of(child) for child in node.children if child.type == "heredoc_start"), "")
    body = next((child for child in node.children if child.type == "heredoc_body"), None)
    if body is None:
        return ""
    quoted = re.search(r"['\"\\]", start) is not None
    text = text_of(body) if quoted else shell.expander.body(body)
    dashed = text_of(node.children[0]).strip() == "<<-"
    return re.sub(r"^\t+", "", text, flags=re.MULTILINE) if dashed else text


# --- command substitutions


def prints(node: Node, shell: Shell) -> bool:
    """Add what a command prints to ``shell.printed``; False where only running it would tell."""
    if node.type == "pipeline":
        return _pipeline_prints(node, shell)
    if node.type == "redirected_statement":
        redirects = [child for child in node.children if "redirect" in child.type]
        body = child_of(node, "body")
        if body is None or text_of(body).split(maxsplit=1)[:1] != ["cat"]:
            return (
                body is not None
                and all(text_of(child).strip().startswith("2>") for child in redirects)
                and prints(body, shell)
            )
        redirected(shell, body, redirects)
        return True
    if node.type != "command":
        return False
    words = _command_words(node, shell)
    if words and words[0] in shell.functions:
        shell.call(words[0], words[1:])
        return True
    text = _known_output(words, None, shell)
    if text is None:
        return False
    shell.printed += text
    return True


def _command_words(node: Node, shell: Shell) -> list[str]:
    named = child_of(node, "name")
    words = shell.expander.words(named) if named is not None else []
    return words + [
        word for part in node.children_by_field_name("argument") for word in shell.expander.words(part)
    ]


def _pipeline_prints(node: Node, shell: Shell) -> bool:
    """``echo ... | bc`` and the like: every part known by heart."""
    text: str | None = None
    for child in node.named_children:
        if child.type != "command":
            return False
        text = _known_output(_command_words(child, shell), text, shell)
        if text is None:
            return False
    shell.printed += text or ""
    return True


def _known_output(words: list[str], given: str | None, shell: Shell) -> str | None:
    """Return what a program prints where its arguments decide it, None else."""
    if not words or (any(map(has_hole, words[1:])) and words[0] not in ("echo", "printf")):
        return None
    name, arguments = words[0], words[1:]
    if name in ("echo", "printf") and given is None:
        inner = type(shell)(shell.record)
        (_echo if name == "echo" else _printf)(inner, arguments)
        return inner.printed
    if given is not None and has_hole(given):
        return None
    return _OUTPUTS[name](arguments, given, shell) if name in _OUTPUTS else None


def _expr(arguments: list[str], given: str | None, shell: Shell) -> str | None:
    value = shell.expander.number(" ".join(arguments))
    return None if value is None else f"{value}\n"


def _bc(arguments: list[str], given: str | None, shell: Shell) -> str | None:
    if given is None or re.search(r"[./]|scale", given):
        return None
    value = shell.expander.number(given)
    return None if value is None else f"{value}\n"


def _seq(arguments: list[str], given: str | None, shell: Shell) -> str | None:
    if not all(re.fullmatch(r"-?\d{1,6}", word) for word in arguments) or not 1 <= len(arguments) <= 3:
        return None
    numbers = [int(word) for word in arguments]
    first, step, last = {1: (1, 1, numbers[0]), 2: (numbers[0], 1, numbers[-1])}.get(
        len(numbers), (numbers[0], numbers[1] if len(numbers) > 2 else 1, numbers[-1])
    )
    if step == 0 or abs(last - first) // abs(step) > 10_000:
        return None
    return "".join(f"{value}\n" for value in range(first, last + (1 if step > 0 else -1), step))


def _basename(arguments: list[str], given: str | None, shell: Shell) -> str | None:
    if not arguments:
        return None
    name = arguments[0].rstrip("/").rpartition("/")[2]
    return (name.removesuffix(arguments[1]) if len(arguments) > 1 and name != arguments[1] else name) + "\n"


def _dirname(arguments: list[str], given: str | None, shell: Shell) -> str | None:
    if not arguments:
        return None
    folder, slash, _ = arguments[0].rstrip("/").rpartition("/")
    return (folder if folder else "/" if slash else ".") + "\n"


def _cat(arguments: list[str], given: str | None, shell: Shell) -> str | None:
    if not arguments:
        return given
    texts = [file_text(shell, name) for name in arguments]
    return None if None in texts else "".join(text or "" for text in texts)


def _tr(arguments: list[str], given: str | None, shell: Shell) -> str | None:
    ranges = {"[:lower:]": "abcdefghijklmnopqrstuvwxyz", "[:upper:]": "ABCDEFGHIJKLMNOPQRSTUVWXYZ"}
    ranges |= {"a-z": ranges["[:lower:]"], "A-Z": ranges["[:upper:]"]}
    if given is None:
        return None
    if len(arguments) == 2 and arguments[0] == "-d":
        return "".join(char for char in given if char not in arguments[1].replace("\\n", "\n"))
    if len(arguments) != 2 or arguments[0].startswith("-"):
        return None
    old, new = (ranges.get(word, word).replace("\\n", "\n") for word in arguments)
    new = new.ljust(len(old), new[-1:]) if new else old
    return given.translate(dict(zip(map(ord, old), new, strict=False)))


def _cut(arguments: list[str], given: str | None, shell: Shell) -> str | None:
    joined = " ".join(arguments)
    match = re.fullmatch(r"-d\s?(.) -f\s?(\d{1,3})|-f\s?(\d{1,3}) -d\s?(.)", joined)
    if given is None or not match:
        return None
    mark, place = match[1] or match[4], int(match[2] or match[3])
    lines = given.rstrip("\n").split("\n")
    return "".join(
        ("".join(line.split(mark)[place - 1 : place]) if mark in line else line) + "\n" for line in lines
    )


_OUTPUTS: dict[str, Callable[[list[str], str | None, Shell], str | None]] = {
    "expr": _expr, "bc": _bc, "seq": _seq, "basename": _basename, "dirname": _dirname, "cat": _cat, "tr": _tr, "cut": _cut,
}  # fmt: skip
