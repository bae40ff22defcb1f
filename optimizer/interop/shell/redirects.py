"""Where a statement's output goes and its input comes from: files that a script writes, here-documents and here-strings."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from layoutopt.optimizer.interop.shell.builtins import SHELLS, read_values, start_shell
from layoutopt.optimizer.interop.shell.syntax import child_of, text_of

if TYPE_CHECKING:
    from tree_sitter import Node

    from layoutopt.optimizer.interop.shell.run import Shell

Status = bool | None


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
    kept, shell.printed = shell.printed, ""
    opaque, shell.opaque = shell.opaque, False
    texts = [
        shell.expander.text(node.children[-1]) for node in redirects if node.type == "herestring_redirect"
    ]
    if target is not None and document is None and body.type == "pipeline" and shell.prints(body):
        status: Status = True
    else:
        status = _with_input(shell, body, document, texts)
    printed, shell.printed = shell.printed, kept
    unknown, shell.opaque = shell.opaque, opaque
    if following is not None:
        shell.statement(following)
        target = target or _tee(shell, following)
    if target is None:
        shell.printed += printed
        shell.opaque |= unknown
    else:
        _write(shell, target.removeprefix("./"), None if unknown else printed, append=append)
    return status


def _write(shell: Shell, name: str, text: str | None, *, append: bool) -> None:
    """Keep what a script writes to a file; what only a program knows (None) is no text that the file had before."""
    files = shell.record.files
    if text is None or (append and name in shell.record.unwritten):
        files.pop(name, None)
        shell.record.unwritten.add(name)
    else:
        files[name] = (files.get(name, "") if append else "") + text
        shell.record.unwritten.discard(name)


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
        return read_values(shell, words, [given.rstrip("\n")], name)
    if PurePosixPath(name).name in SHELLS or name in ("ssh", "sbatch", "srun"):
        start_shell(
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
