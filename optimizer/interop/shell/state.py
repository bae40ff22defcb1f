"""Variables and positional parameters of one shell, and what is taken where only the outside sets them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutopt.optimizer.interop.shell.patterns import glob_matches, is_plain
from layoutopt.optimizer.interop.shell.values import array_of, has_hole, hole

if TYPE_CHECKING:
    from collections.abc import Sequence

    from layoutopt.optimizer.interop.shell.record import Record
    from layoutopt.optimizer.interop.shell.values import Array

MAX_REFERENCES = 8
"""Most names that stand for another in turn."""

WORD = 16
"""What a word costs of ``record.MAX_SPENT`` beside its characters."""


class NameReference(str):
    """The name of another variable that one stands for (``declare -n``)."""


class ShellVariables:
    """What expansion asks of the shell around it; ``record`` collects for all shells of a script."""

    def __init__(self, record: Record, arguments: Sequence[str] | None) -> None:
        self.record = record
        self.variables: dict[str, str | Array] = {}
        self.attributes: dict[str, str] = {}
        """Letters of ``declare``: ``A`` for keys that are texts, ``i``, ``l``, ``u`` for what values become."""

        self.exported: set[str] = set()
        self.exports_all = False
        self.arguments = None if arguments is None else list(arguments)
        self.folder = ""
        """Where ``cd`` went, in the words of the script; empty where it began."""

        self.sources: list[str] = []
        """Files that are being read into this shell, the last one innermost."""

        self.zero = record.file or "script.sh"
        self.code: int | None = 0
        """Exit code of the last command; None where only running it would tell."""

        self.grouped = self.empties = False
        """Whether ``shopt`` set ``extglob`` and ``nullglob``."""

        self.plain = False
        """``set -f``: no word stands for names of files."""

        self.withheld: set[str] = set()
        """Variables of the shell around this one that it did not export."""
        self.line = 1

    def target(self, name: str) -> str:
        """Return the variable that a name stands for."""
        for _ in range(MAX_REFERENCES):
            found = self.variables.get(name)
            if not isinstance(found, NameReference):
                break
            name = str(found)
        return name

    def value(self, name: str) -> str | Array | None:
        """Return a variable, else what the caller gave under its name."""
        name = self.target(name)
        found = self.variables.get(name)
        if found is None and name == "BASH_SOURCE":
            return {"0": self.sources[-1] if self.sources else self.zero}
        if found is None and name == "OPTIND":
            return "1"
        # Set in the shell that started this one and not exported: empty here, whatever the caller gives.
        if found is None and name in self.withheld:
            return ""
        return self.record.given.get(name) if found is None else found

    def names(self, prefix: str) -> list[str]:
        """Return the variables whose names begin so, in order."""
        return sorted(name for name in {*self.variables, *self.record.given} if name.startswith(prefix))

    def is_associative(self, name: str) -> bool:
        """Tell whether an array's keys are texts."""
        name = self.target(name)
        found = self.variables.get(name)
        return "A" in self.attributes.get(name, "") or (
            isinstance(found, dict) and any(not key.isdecimal() for key in found)
        )

    def wrote(self, name: str) -> bool:
        """Tell whether the script writes a file of that name."""
        name = name.removeprefix("./")
        return name in self.record.files or name in self.record.unwritten

    def has_file(self, name: str, *, filled: bool = False) -> bool | None:
        """Tell whether there is a file (``filled``: one with a text), None where the script has not to do with it."""
        name = name.removeprefix("./")
        if name in self.record.gone:
            return False
        if name in self.record.unwritten:
            return None if filled else True
        # A file that the script never touches may be there or not: only the machine knows.
        text = self.record.files.get(name)
        return None if text is None else bool(text) or not filled

    def matching(self, word: str, glob: str) -> list[str]:
        """Return the names of the files of the script's own that a word's pattern matches, else the word.

        Files that were there before are not known.
        """
        if self.plain or is_plain(glob) or has_hole(word):
            return [word]
        front = "./" if word.startswith("./") else ""
        depth = word.removeprefix("./").count("/")
        hidden = word.removeprefix("./").startswith(".")
        # A star reaches no further than its folder, and matches no name with a dot in front; <(...) is no file at all.
        names = sorted(
            name for name in self.record.files
            if not name.startswith("<(") and name.count("/") == depth and (hidden or not name.startswith("."))
        )  # fmt: skip
        self.record.spend(len(names))
        glob = glob.removeprefix("./")
        found = [front + name for name in names if glob_matches(name, glob, grouped=self.grouped)]
        return found or ([] if self.empties else [word])

    def positional(self, name: str) -> str | Array | None:
        """Return a positional or special parameter."""
        known = self.arguments if self.arguments is not None else self.record.arguments
        if name in ("@", "*"):
            if known is None:
                self.record.assume('no arguments beside the script ("$@" is empty)')
            return array_of(known or [])
        if name == "#":
            return None if known is None else str(len(known))
        if name == "?":
            return None if self.code is None else str(self.code)
        if name == "0":
            return self.zero
        if name.isdecimal():
            place = int(name) - 1
            if known is None:
                return self.record.numbered.get(name)
            # A function knows all of its arguments; of a script's, those behind the last given one stay open.
            return known[place] if place < len(known) else "" if self.arguments is not None else None
        return None

    def assign(self, name: str, value: str | Array, *, key: str | None = None, append: bool = False) -> None:
        """Set or extend a variable or one element; what the caller gave replaces a value from outside."""
        name = self.target(name)
        if "[" in name:  # a reference to an element
            name, _, inner = name.partition("[")
            key = inner.rstrip("]")
        before = self.variables.get(name)
        # NODES=$(scontrol ...) is open here; whoever gives NODES means what the script would find out.
        if isinstance(value, str) and has_hole(value) and name in self.record.given and not append:
            value = self.record.given[name]
        if key is not None:
            array = dict(before) if isinstance(before, dict) else {} if before is None else {"0": before}
            old = array.get(key, "") if append else ""
            array[key] = old + (value if isinstance(value, str) else "")
            value = array
        elif append and before is not None:
            value = _appended(before, value)
        elif isinstance(before, dict) and isinstance(value, str) and before:
            value = {**before, "0": value}  # to bash an array without a key is its element 0
        self.record.spend(
            len(value) if isinstance(value, str) else sum(map(len, value.values())) + WORD * len(value)
        )
        self.variables[name] = value
        if self.exports_all:
            self.exported.add(name)

    def forget(self, name: str, key: str | None = None) -> None:
        """Unset a variable or one element of an array."""
        name = self.target(name)
        found = self.variables.get(name)
        if key is None or key in ("@", "*"):
            self.variables.pop(name, None)
            self.attributes.pop(name, None)
        elif isinstance(found, dict):
            self.variables[name] = {one: value for one, value in found.items() if one != key}

    def unset(self, name: str) -> str:
        """Note a variable that only the outside sets."""
        bare = name.lstrip("#").partition("[")[0]
        # a branch that is not taken sets it, or A="$A more" begins it
        if bare in self.record.own and bare not in self.record.missing:
            self.assume_unset(bare, "")
            return ""
        return self.required(name)

    def required(self, name: str) -> str:
        """Note a variable without which the script stops, or one that nothing in it sets."""
        bare = name.lstrip("#").partition("[")[0]
        if bare in self.record.given:
            return ""
        self.record.missing.setdefault(bare, self.line)
        return hole(name)

    def assume_unset(self, name: str, instead: str) -> None:
        """Note a default that holds as long as the outside sets nothing."""
        if not has_hole(instead):  # an open default is named by itself
            shown = f"${name}" if name.isdecimal() else name
            self.record.assume(f"{shown} is not set outside" + (f": {instead!r}" if instead else ""))


def _appended(before: str | Array, value: str | Array) -> str | Array:
    if isinstance(value, str) and isinstance(before, str):
        return before + value
    array = dict(before) if isinstance(before, dict) else {"0": before}
    if isinstance(value, str):
        array["0"] = array.get("0", "") + value
        return array
    # x+=(a b) goes on behind the highest index, which need not be the number of elements; keys of texts stay theirs.
    numbered = all(key.isdecimal() for key in value)
    start = 1 + max((int(key) for key in array if key.isdecimal()), default=-1)
    for key, element in value.items():
        array[str(start + int(key)) if numbered else key] = element
    return array
