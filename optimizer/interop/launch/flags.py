"""Command words to flags: ``--flag value``, ``--flag=value``, lists, switches and the launcher in front."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from layoutopt.optimizer.interop.reading import Fields, shorten

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_NUMBER = re.compile(r"[+-]?\d{1,18}")
_REAL = re.compile(r"[+-]?(\d+\.\d*|\.\d+|\d+)([eE][+-]?\d{1,3})?")
_LAUNCHER = dict.fromkeys(("nnodes", "num_nodes", "nodes", "num_machines"), "nodes")
_LAUNCHER |= dict.fromkeys(("nproc_per_node", "num_gpus", "ntasks_per_node", "gpus_per_node"), "per_node")
_LAUNCHER |= {"num_processes": "processes"}
_SBATCH = re.compile(r"^#SBATCH\s+(?:--([a-z-]+)[= ]|-(N)\s*)(\S+)", re.MULTILINE)


def split_flags(words: Iterable[str]) -> dict[str, Any]:
    """Map each ``--flag`` (dashes as underscores) to True, one value, or a list; the last mention wins."""
    flags: dict[str, Any] = {}
    current: list[str] | None = None
    for word in words:
        if word.startswith("--") and len(word) > 2:
            name, equals, value = word[2:].partition("=")
            current = [value] if equals else []
            flags[name.replace("-", "_")] = current
            current = None if equals else current
        elif current is not None:
            current.append(word)
    return {name: _value(values) for name, values in flags.items()}


def _value(values: list[str]) -> Any:
    if not values:
        return True
    scalars = [scalar(value) for value in values]
    return scalars[0] if len(scalars) == 1 else scalars


def scalar(text: str) -> Any:
    """Read one word as a number, a truth value, None or, else, itself without surrounding quotes."""
    bare = text.strip().strip("'\"")
    if _NUMBER.fullmatch(bare):
        return int(bare)
    if _REAL.fullmatch(bare):
        return float(bare)
    return {"true": True, "false": False, "none": None, "null": None}.get(bare.lower(), bare)


class ArgFields(Fields):
    """Fields of a command line: a value that comes from outside the script is reported by its name."""

    def find(self, *keys: str) -> tuple[str, Any]:
        """Return the first flag present; refuse one whose value is not in the script."""
        key, value = super().find(*keys)
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, str) and part.startswith("$"):
                raise self.fail(key, self.unresolved(part), "state the value")
        return key, value

    def unresolved(self, value: str) -> str:
        """Say where a value would have to come from."""
        return f"comes from {shorten(value)}, which the script does not set"

    def flag(self, *keys: str) -> bool | None:
        """Read a switch: there or not; words behind it belong to somebody else."""
        for key in keys:
            if key in self.data:
                value = self.data[key]
                return value if value is None or isinstance(value, bool) else True
        return None

    def path(self, key: str) -> str:
        """Name of the flag, for messages."""
        return "--" + key.replace("_", "-")

    def items(self, *keys: str) -> list[Any] | None:
        """Read a list; a single value is a list of one."""
        _, value = self.find(*keys)
        if value is None or isinstance(value, list):
            return value
        return [] if value is True else [value]


def launched_gpus(words: Sequence[str], text: str = "") -> int | None:
    """Processes that torchrun, deepspeed, accelerate or ``#SBATCH`` lines start, None if not stated."""
    found: dict[str, int] = {}
    for name, short, value in _SBATCH.findall(text):
        key = "nodes" if short else _LAUNCHER.get(name.replace("-", "_"))
        # --gpus-per-node=h100:8 names the type in front
        number = scalar(value.split(":")[-1])
        if key and type(number) is int and number > 0:
            found[key] = number
    # the command line comes after the batch system's lines and wins
    for flag, value in split_flags(words).items():
        key = _LAUNCHER.get(flag)
        number = value[0] if isinstance(value, list) else value
        if key and type(number) is int and 0 < number <= 10**7:
            found[key] = number
    if "processes" in found:
        return found["processes"]
    if "nodes" in found and "per_node" in found:
        return found["nodes"] * found["per_node"]
    return None
