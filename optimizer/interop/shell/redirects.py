"""Where a statement's output goes and its input comes from: files that a script writes, here-documents and here-strings."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from layoutopt.optimizer.interop.shell.builtins import file_text
from layoutopt.optimizer.interop.shell.syntax import child_of, text_of

if TYPE_CHECKING:
    from tree_sitter import Node

    from layoutopt.optimizer.interop.shell.run import Shell

Status = bool | None

NOWHERE = "/dev/null"


@dataclass(slots=True)
class Input:
    """A text that commands read one after the other."""

    text: str
    at: int = 0

    def line(self, end: str = "\n") -> tuple[str, bool]:
        """Return what comes before the next ``end``, and whether there was one."""
        place = self.text.find(end, self.at) if end else -1
        start, found = self.at, place >= 0
        self.at = place + len(end) if found else len(self.text)
        return self.text[start : place if found else len(self.text)], found

    def rest(self) -> str:
        """Return all that is left."""
        start, self.at = self.at, len(self.text)
        return self.text[start:]


def redirected(shell: Shell, body: Node | None, redirects: list[Node]) -> Status:
    """Run a statement whose output goes to a file or whose input is in the script."""
    # The grammar puts what follows a here-document's mark on its line into the document's own node:
    # cat <<EOF > file, and cat <<EOF | program.
    inner = [child for node in redirects if node.type == "heredoc_redirect" for child in node.children]
    target = _target(shell, [*redirects, *inner])
    followed = ("pipeline", "command", "list", "redirected_statement")
    followers = [child for child in inner if child.type in followed]
    kept, opaque, stdin = shell.printed, shell.opaque, shell.stdin
    shell.printed, shell.opaque = "", False
    try:
        shell.stdin = given(shell, redirects, shell.stdin)
        status: Status = True if body is None else shell.statement(body)
    finally:
        shell.stdin = stdin
        printed, shell.printed = shell.printed, kept
        unknown, shell.opaque = shell.opaque, opaque
    piped = any(child.type == "pipeline" and child.children[0].type == "|" for child in inner)
    if target is not None:
        written(shell, target[0], None if unknown else printed, append=target[1])
        printed, unknown = "", False
    if followers and any(child.type == "||" for child in inner) and status:
        return status
    if followers:
        return _following(shell, followers[0], None if unknown or not piped else printed)
    shell.printed += printed
    shell.opaque |= unknown
    return status


def _following(shell: Shell, node: Node, printed: str | None) -> Status:
    """Run what stands behind a here-document's mark on its line: the rest of a pipeline or list."""
    stdin = shell.stdin
    try:
        shell.stdin = None if printed is None else Input(printed)
        return shell.statement(node)
    finally:
        shell.stdin = stdin


def written(shell: Shell, name: str, text: str | None, *, append: bool = False) -> None:
    """Keep what a script writes to a file; what only a program knows (None) is no text that the file had before."""
    if name == NOWHERE:
        return
    name = name.removeprefix("./")
    shell.record.gone.discard(name)
    files = shell.record.files
    if text is None or (append and name in shell.record.unwritten):
        files.pop(name, None)
        shell.record.unwritten.add(name)
    else:
        files[name] = (files.get(name, "") if append else "") + text
        shell.record.spend(len(text))
        shell.record.unwritten.discard(name)


def given(shell: Shell, redirects: list[Node], before: Input | None) -> Input | None:
    """Return what a statement reads: a here-document, a here-string, a file, else what it read ``before``."""
    found = before
    for node in redirects:
        if node.type == "heredoc_redirect":
            found = Input(_document(shell, node))
        elif node.type == "herestring_redirect":
            found = Input(shell.expander.text(node.children[-1]) + "\n")
        elif node.type == "file_redirect" and text_of(node).strip().startswith("<"):
            found = _file(shell, node)
        if found is not None and found is not before:
            shell.record.spend(len(found.text))
    return found


def _file(shell: Shell, node: Node) -> Input | None:
    destination = child_of(node, "destination")
    if destination is None:
        return None
    name = shell.expander.text(destination)
    if destination.type == "process_substitution":
        name = shell.substituted.pop(name, name)
    if name == NOWHERE:
        return Input("")
    text = file_text(shell, name)
    return None if text is None else Input(text)


def _target(shell: Shell, redirects: list[Node]) -> tuple[str, bool] | None:
    """Return the file that standard output goes to, and whether it is appended; the error output is nowhere."""
    for node in redirects:
        marks = [text_of(child).strip() for child in node.children if not child.is_named]
        numbered = any(child.type == "file_descriptor" and text_of(child) != "1" for child in node.children)
        if node.type != "file_redirect" or numbered or not marks:
            continue
        destination = child_of(node, "destination")
        if marks[0] == ">&" and destination is not None and text_of(destination).strip() in ("1", "3"):
            continue
        if marks[0] == ">&" and destination is not None and text_of(destination).strip() == "2":
            return NOWHERE, False
        if marks[0] in (">", ">>", ">|", "&>", "&>>", ">&"):
            return shell.expander.text(destination), marks[0].endswith(">>")
    return None


def _document(shell: Shell, node: Node) -> str:
    """Return a here-document, expanded unless its delimiter is quoted."""
    start = next((text_of(child) for child in node.children if child.type == "heredoc_start"), "")
    body = next((child for child in node.children if child.type == "heredoc_body"), None)
    if body is None:
        return ""
    text = text_of(body)
    if text_of(node.children[0]).strip() == "<<-":
        text = re.sub(r"^\t+", "", text, flags=re.MULTILINE)
    return text if re.search(r"['\"\\]", start) else shell.expander.body(text)
