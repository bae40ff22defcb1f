"""Programs whose output and status their arguments and input decide, known by heart."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING

from layoutopt.optimizer.interop.shell.builtins import file_text, lines_of
from layoutopt.optimizer.interop.shell.conditions import search
from layoutopt.optimizer.interop.shell.edits import edit_files
from layoutopt.optimizer.interop.shell.fields import awk
from layoutopt.optimizer.interop.shell.redirects import written
from layoutopt.optimizer.interop.shell.stream_editor import edited, read_scripts
from layoutopt.optimizer.interop.shell.values import has_hole, hole

if TYPE_CHECKING:
    from collections.abc import Iterable

    from layoutopt.optimizer.interop.shell.run import Shell


@dataclass(frozen=True, slots=True)
class Output:
    """What a program prints, and whether it succeeds."""

    text: str
    status: bool = True


Found = str | Output | None
Program = Callable[[list[str], "str | None", "Shell"], Found]
"""What a program prints for its arguments, its input and the shell around it; None where that is not known."""


def known_output(words: list[str], shell: Shell) -> Output | None:
    """Return what a program prints where its arguments and input decide it, None else."""
    name = words[0]
    if name == "pwd" and shell.folder:
        return Output(f"{shell.folder}\n")
    if name == "cd":
        shell.folder = words[-1] if len(words) > 1 and not has_hole(words[-1]) else ""
        return Output("")
    if edit_files(words, shell):
        return Output("")
    if name not in _OUTPUTS or (any(map(has_hole, words[1:])) and name not in ("sed", "tee")):
        return None
    # Looked at and not taken: a program that turns out to be unknown leaves its input to whoever reads on.
    given = None if shell.stdin is None else shell.stdin.text[shell.stdin.at :]
    if given is not None and has_hole(given) and name not in ("sed", "cat", "tee", "envsubst"):
        return None
    found = _OUTPUTS[name]([word for word in words[1:] if word != "--"], given, shell)
    if found is not None and shell.stdin is not None and name not in _WITHOUT_INPUT:
        shell.stdin.rest()
    return Output(found) if isinstance(found, str) else found


def _expr(arguments: list[str], given: str | None, shell: Shell) -> Found:
    value = shell.expander.number(" ".join(arguments))
    return None if value is None else f"{value}\n"


def _bc(arguments: list[str], given: str | None, shell: Shell) -> Found:
    # Fractions, powers and bc's own functions and scale are not the shell's arithmetic.
    if given is None or arguments or re.search(r"[.^]|[a-zA-Z]", given):
        return None
    value = shell.expander.number(given)
    return None if value is None else f"{value}\n"


def _seq(arguments: list[str], given: str | None, shell: Shell) -> Found:
    mark = "\n"
    if arguments[:1] and arguments[0].startswith("-s"):
        joined = arguments[0][2:]
        mark, arguments = (joined, arguments[1:]) if joined else ("".join(arguments[1:2]), arguments[2:])
    if not all(re.fullmatch(r"-?\d{1,6}", word) for word in arguments) or not 1 <= len(arguments) <= 3:
        return None
    numbers = [int(word) for word in arguments]
    ends = {1: [1, 1, *numbers], 2: [numbers[0], 1, numbers[-1]], 3: numbers}
    first, step, last = ends[len(numbers)]
    if step == 0 or abs(last - first) // abs(step) > 10_000:
        return None
    values = [str(value) for value in range(first, last + (1 if step > 0 else -1), step)]
    return mark.join(values) + "\n" if values else ""


def _basename(arguments: list[str], given: str | None, shell: Shell) -> Found:
    if not arguments:
        return None
    name = arguments[0].rstrip("/").rpartition("/")[2]
    if name in (".", ".."):  # stands for where the script lies, whose name is not known
        return None
    return (name.removesuffix(arguments[1]) if len(arguments) > 1 and name != arguments[1] else name) + "\n"


def _dirname(arguments: list[str], given: str | None, shell: Shell) -> Found:
    if not arguments:
        return None
    folder, slash, _ = arguments[0].rstrip("/").rpartition("/")
    return (folder if folder else "/" if slash else ".") + "\n"


def _cat(arguments: list[str], given: str | None, shell: Shell) -> Found:
    if not arguments:
        return given
    texts = [file_text(shell, name) for name in arguments]
    return None if None in texts else "".join(text or "" for text in texts)


def _sed(arguments: list[str], given: str | None, shell: Shell) -> Found:
    call = read_scripts(arguments)
    if call is None or len(call.files) > 1:
        return None
    text = file_text(shell, call.files[0]) if call.files else given
    return None if text is None else edited(call, text, shell)


def _path(arguments: list[str], given: str | None, shell: Shell) -> Found:
    """``realpath`` and ``readlink -f``: the path, in the words of the script."""
    names = [word for word in arguments if not word.startswith("-")]
    return f"{names[0]}\n" if len(names) == 1 else None


def _tr(arguments: list[str], given: str | None, shell: Shell) -> Found:
    ranges = {"[:lower:]": "abcdefghijklmnopqrstuvwxyz", "[:upper:]": "ABCDEFGHIJKLMNOPQRSTUVWXYZ"}
    ranges |= {"a-z": ranges["[:lower:]"], "A-Z": ranges["[:upper:]"]}
    if given is None:
        return None
    if len(arguments) == 2 and arguments[0] == "-d":
        return "".join(char for char in given if char not in arguments[1].replace("\\n", "\n"))
    if len(arguments) != 2 or arguments[0].startswith("-"):
        return None
    old, new = (ranges.get(word, word).replace("\\n", "\n") for word in arguments)
    # A shorter second set goes on with its last character.
    new = new.ljust(len(old), new[-1:]) if new else old
    return given.translate(dict(zip(map(ord, old), new, strict=False)))


def _cut(arguments: list[str], given: str | None, shell: Shell) -> Found:
    joined = " ".join(arguments)
    match = re.fullmatch(r"-d\s?(.) -f\s?([\d,-]{1,9})|-f\s?([\d,-]{1,9}) -d\s?(.)", joined)
    if given is None or not match:
        return None
    mark, places = match[1] or match[4], match[2] or match[3]
    lines = given.splitlines()
    # Lines without the mark are printed whole, as cut does without -s.
    kept = [mark.join(_chosen(line.split(mark), places)) if mark in line else line for line in lines]
    return "".join(f"{line}\n" for line in kept)


def _chosen(parts: list[str], places: str) -> list[str]:
    """Return the fields that a list such as ``2,4-`` names."""
    wanted: set[int] = set()
    for span in places.split(","):
        first, dash, last = span.partition("-")
        ends = int(first or 1), int(last or len(parts)) if dash else int(first or 0)
        wanted |= set(range(ends[0], min(ends[1], len(parts)) + 1))
    return [part for place, part in enumerate(parts, 1) if place in wanted]


def _ends(arguments: list[str], given: str | None, shell: Shell, *, last: bool) -> Found:
    joined = re.sub(r"^-n\s?", "-", " ".join(arguments))
    match = re.fullmatch(r"(?:-(\d{1,6}))?\s?(\S*)", joined)
    lines = lines_of(shell, [match[2]] if match[2] else [], given) if match else None
    if lines is None or match is None:
        return None
    count = int(match[1] or 10)
    return "".join(f"{line}\n" for line in (lines[-count:] if last and count else lines[:count]))


def _wc(arguments: list[str], given: str | None, shell: Shell) -> Found:
    if given is None or len(arguments) != 1 or arguments[0] not in ("-l", "-w", "-c", "-m"):
        return None
    sizes = {"-l": given.count("\n"), "-w": len(given.split()), "-c": len(given.encode()), "-m": len(given)}
    return f"{sizes[arguments[0]]}\n"


def _sort(arguments: list[str], given: str | None, shell: Shell) -> Found:
    flags = "".join(word[1:] for word in arguments if re.fullmatch(r"-[nru]+", word))
    lines = lines_of(shell, [word for word in arguments if not re.fullmatch(r"-[nru]+", word)], given)
    if lines is None or (("n" in flags) and not all(re.fullmatch(r"-?\d{1,18}", line) for line in lines)):
        return None
    # By code points, as in the C locale: the order of letters elsewhere is that of whoever runs the script.
    lines = [*set(lines)] if "u" in flags else lines
    lines = sorted(lines, key=int if "n" in flags else None, reverse="r" in flags)
    return "".join(f"{line}\n" for line in lines)


def _grep(arguments: list[str], given: str | None, shell: Shell) -> Found:
    flags = "".join(word[1:] for word in arguments if re.fullmatch(r"-[a-zA-Z]+", word))
    names = [word for word in arguments if not word.startswith("-")]
    lines = lines_of(shell, names[1:], given) if names and not set(flags) - set("qEFiowcvP") else None
    if lines is None:
        return None
    pattern = re.escape(names[0]) if "F" in flags else names[0]
    if "P" in flags:
        pattern = re.sub(r"\\([dws])", lambda mark: _CLASSES[mark[1]], pattern)
    # Without -E these marks mean themselves, or need a backslash to mean more: not the expression that is searched here.
    if not {"E", "F", "P"} & set(flags) and re.search(r"[\\+?|(){}]", pattern):
        return None
    if "w" in flags:
        pattern = f"(?<![0-9A-Za-z_])(?:{pattern})(?![0-9A-Za-z_])"
    lowered = str.lower if "i" in flags else str
    hits = [search(lowered(line), lowered(pattern)) for line in lines]
    if None in hits:
        return None
    kept = [(line, hit) for line, hit in zip(lines, hits, strict=True) if bool(hit) != ("v" in flags)]
    if "c" in flags:
        return Output(f"{len(kept)}\n", bool(kept))
    if "q" in flags or ("o" in flags and "i" in flags):
        return Output("", bool(kept)) if "q" in flags else None
    shown = [line for line, _ in kept]
    if "o" in flags:
        every = [hit.re.finditer(line) for line, hit in kept if isinstance(hit, re.Match)]
        shown = [match[0] for matches in every for match in matches if match[0]]
    return Output("".join(f"{line}\n" for line in shown), bool(kept))


def _tee(arguments: list[str], given: str | None, shell: Shell) -> Found:
    for name in arguments:
        if not name.startswith("-"):
            written(shell, name, given, append="-a" in arguments)
    return given


def _by_line(change: Callable[[list[str]], Iterable[str]]) -> Program:
    """Return a program without options that makes other lines of its lines."""

    def changed(arguments: list[str], given: str | None, shell: Shell) -> Found:
        """Print the changed lines."""
        lines = lines_of(shell, arguments, given)
        return None if lines is None else "".join(f"{line}\n" for line in change(lines))

    return changed


def _paste(arguments: list[str], given: str | None, shell: Shell) -> Found:
    """``paste -sd,``: all lines as one."""
    match = re.fullmatch(r"(?:-s ?)(?:-?d ?(.))?(?: (\S+))?", " ".join(arguments))
    lines = lines_of(shell, [match[2]] if match[2] not in (None, "-") else [], given) if match else None
    return None if match is None or lines is None else (match[1] or "\t").join(lines) + "\n"


def _envsubst(arguments: list[str], given: str | None, shell: Shell) -> Found:
    """Fill in exported variables; others may be set outside."""
    if given is None or arguments:
        return None

    def fill(match: re.Match[str]) -> str:
        """Return a variable's text."""
        name = match[1] or match[2]
        # A program sees what is exported; what the caller gave stands in the environment of the script itself.
        value = shell.value(name) if name in shell.exported or name in shell.record.given else None
        return value if isinstance(value, str) else hole(name)

    return re.sub(r"\$(?:\{([A-Za-z_]\w*)\}|([A-Za-z_]\w*))", fill, given)


_CLASSES = {"d": "[0-9]", "w": "[0-9A-Za-z_]", "s": "[ \t]"}
_OUTPUTS: dict[str, Program] = {
    "expr": _expr, "seq": _seq, "basename": _basename, "dirname": _dirname, "realpath": _path, "readlink": _path,
    "bc": _bc, "cat": _cat, "tr": _tr, "cut": _cut, "sed": _sed, "wc": _wc, "sort": _sort, "awk": awk, "grep": _grep,
    "tee": _tee, "paste": _paste, "envsubst": _envsubst,
    "head": partial(_ends, last=False), "tail": partial(_ends, last=True),
    "tac": _by_line(reversed), "uniq": _by_line(lambda lines: [line for line, _ in groupby(lines)]),
    "rev": _by_line(lambda lines: [line[::-1] for line in lines]),
}  # fmt: skip
_WITHOUT_INPUT = ("expr", "seq", "basename", "dirname", "realpath", "readlink")
"""Those of them that leave their input to the next."""
