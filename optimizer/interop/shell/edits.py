"""Programs that copy, move, remove or edit the files that a script wrote, or that lie beside it."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from layoutopt.optimizer.interop.shell.builtins import file_text
from layoutopt.optimizer.interop.shell.redirects import written
from layoutopt.optimizer.interop.shell.stream_editor import edited, read_scripts
from layoutopt.optimizer.interop.shell.values import has_hole

if TYPE_CHECKING:
    from collections.abc import Callable

    from layoutopt.optimizer.interop.shell.run import Shell


def edit_files(words: list[str], shell: Shell) -> bool:
    """Do to files what a program does to them; True where it is one that prints nothing and is done."""
    name, *arguments = words
    change = _CHANGES.get(name)
    if change is None:
        return False
    return change(shell, [word for word in arguments if word != "--"])


def _names(arguments: list[str]) -> list[str]:
    return [word for word in arguments if not word.startswith("-")]


def _copy(shell: Shell, arguments: list[str]) -> bool:
    """Give the target the source's text; several sources, or none that is known, leave the target unknown."""
    *sources, target = _names(arguments) or [""]
    if not sources or has_hole(target):
        return True
    # Nobody says whether a name is a folder: these are, and anything else is taken for a file.
    inside = len(sources) > 1 or target.endswith("/") or target in (".", "..")
    for source in sources:
        where = str(PurePosixPath(target) / PurePosixPath(source).name) if inside else target
        if not has_hole(source) and where.removeprefix("./") != source.removeprefix("./"):
            written(shell, where, file_text(shell, source))
    return True


def _move(shell: Shell, arguments: list[str]) -> bool:
    _copy(shell, arguments)
    return _remove(shell, _names(arguments)[:-1])


def _remove(shell: Shell, arguments: list[str]) -> bool:
    record = shell.record
    # What is gone is kept by name: a file of that name that lies beside the script must not come back for it.
    for name in (word.removeprefix("./").rstrip("/") for word in _names(arguments)):
        below = [one for one in (*record.files, *record.unwritten) if one.startswith(f"{name}/")]
        for one in (name, *below):
            record.files.pop(one, None)
            record.unwritten.discard(one)
            record.gone.add(one)
    return True


def _touch(shell: Shell, arguments: list[str]) -> bool:
    for name in _names(arguments):
        if not has_hole(name) and not shell.wrote(name) and file_text(shell, name) is None:
            written(shell, name, "")
    return True


def _truncate(shell: Shell, arguments: list[str]) -> bool:
    """``truncate -s 0``: the file is empty; any other size is not known."""
    empty = re.match(r"-s ?0 |--size[= ]0 ", " ".join(arguments)) is not None
    return _unknown(shell, _names(arguments), text="" if empty else None)


def _unknown(shell: Shell, names: list[str], *, text: str | None = None) -> bool:
    """Leave the named files that there are with a text that only the program knows."""
    for name in names:
        if not has_hole(name) and (shell.wrote(name) or file_text(shell, name) is not None):
            written(shell, name, text)
    return True


def _sed(shell: Shell, arguments: list[str]) -> bool:
    """``sed -i``, with or without a suffix for a copy of what was there."""
    marks = [word for word in arguments if re.match(r"-[nEr]*i|--in-place", word)]
    if not marks:
        return False
    # Behind the i stands a suffix, whose letters are no options; -s is what the reader knows and passes over.
    kept = {word: "-n" if "n" in word.partition("i")[0] else "-s" for word in marks}
    read = read_scripts([kept.get(word, word) for word in arguments])
    if read is None:
        return _unknown(shell, _names(arguments))
    for name in read.files:
        text = None if has_hole(name) else file_text(shell, name)
        if text is not None:
            written(shell, name, edited(read, text, shell))
    return True


def _in_place(shell: Shell, arguments: list[str]) -> bool:
    """An editor that only running it would follow: what it names in place is not known any more."""
    if not any(re.match(r"-[a-z0-9]*i|--in-?place", word) for word in arguments):
        return False
    return _unknown(shell, _names(arguments))


_CHANGES: dict[str, Callable[[Shell, list[str]], bool]] = {
    "cp": _copy, "mv": _move, "rm": _remove, "ln": _copy, "install": _copy, "touch": _touch, "truncate": _truncate,
    "sed": _sed, "perl": _in_place, "yq": _in_place, "ruby": _in_place,
}  # fmt: skip
