"""What commands print, as far as it is known by heart: command substitutions, and files that a script writes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from layoutopt.optimizer.interop.shell.builtins import echo, file_text, printf
from layoutopt.optimizer.interop.shell.redirects import redirected
from layoutopt.optimizer.interop.shell.syntax import child_of, text_of
from layoutopt.optimizer.interop.shell.values import has_hole

if TYPE_CHECKING:
    from collections.abc import Callable

    from tree_sitter import Node

    from layoutopt.optimizer.interop.shell.run import Shell


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
    if node.type in ("variable_assignment", "variable_assignments"):
        shell.statement(node)
        return True
    if node.type == "list":
        return _moves_and_prints(node, shell)
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


def _moves_and_prints(node: Node, shell: Shell) -> bool:
    """``cd FOLDER && pwd``: the folder, in the words of the script."""
    left, right = node.children[0], node.children[-1]
    if left.type == "redirected_statement":
        left = child_of(left, "body") or left
    if left.type != "command" or text_of(right).split() not in (["pwd"], ["pwd", "-P"]):
        return False
    words = [word for word in _command_words(left, shell) if word not in ("--", "-P")]
    if words[:1] != ["cd"] or len(words) != 2 or has_hole(words[1]):
        return False
    shell.printed += f"{words[1]}\n"
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
    if not words or (any(map(has_hole, words[1:])) and words[0] not in ("echo", "printf", "sed")):
        return None
    name, arguments = words[0], [word for word in words[1:] if word != "--"]
    if name in ("echo", "printf") and given is None:
        inner = type(shell)(shell.record)
        (echo if name == "echo" else printf)(inner, arguments)
        return inner.printed
    if name in ("true", "false", ":"):
        return ""
    if given is not None and has_hole(given) and name != "sed":
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


def _sed(arguments: list[str], given: str | None, shell: Shell) -> str | None:
    """``sed s/plain/text/`` with one plain text for another, as templates are filled."""
    scripts = [word for word in arguments if re.match(r"s([/|#,:@]).*\1g?$", word, re.DOTALL)]
    files = [word for word in arguments if word not in scripts and word not in ("-e", "-E", "-r")]
    if len(files) > 1 or not scripts or any(name.startswith("-") for name in files):
        return None
    text = file_text(shell, files[0]) if files else given
    for script in scripts:
        old, new, mode = [*script[2:].split(script[1]), "", ""][:3]
        if (
            text is None
            or script.count(script[1]) != 3
            or not re.fullmatch(r"[\w <>{}-]+", old)
            or "&" in new
        ):
            return None
        text = "\n".join(line.replace(old, new, -1 if mode else 1) for line in text.split("\n"))
        shell.record.spend(len(text))
    return text


def _path(arguments: list[str], given: str | None, shell: Shell) -> str | None:
    """``realpath`` and ``readlink -f``: the path, in the words of the script."""
    names = [word for word in arguments if not word.startswith("-")]
    return f"{names[0]}\n" if len(names) == 1 else None


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
    "sed": _sed, "realpath": _path, "readlink": _path,
}  # fmt: skip
