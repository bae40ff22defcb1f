"""What a name says: of a kernel what it does, of a collective its kind, of a group its axis (``kernels.yaml``)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from layoutopt.optimizer.diagnose.parts import Activity, Phase
from layoutopt.optimizer.specs.document import packaged
from layoutopt.optimizer.specs.vocabulary import Axis

if TYPE_CHECKING:
    from collections.abc import Mapping

COLLECTIVE = "collective"
NO_AXIS = "none"
"""The axis of groups that add up over several axes: gradient norms, losses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelKind:
    """What a kernel's name says: its part, None of a collective, and its phase, None where the name does not tell."""

    part: Activity | None
    phase: Phase | None


@cache
def _patterns(table: str) -> tuple[tuple[re.Pattern[str], Mapping[str, str]], ...]:
    return tuple((re.compile(entry["pattern"]), entry) for entry in packaged("diagnose", "kernels")[table])


def _first(table: str, name: str) -> Mapping[str, str] | None:
    return next((entry for pattern, entry in _patterns(table) if pattern.search(name)), None)


def kernel_kind(name: str) -> KernelKind:
    """Class a kernel, or an operator of a run without a GPU, by its name."""
    entry = _first("kernels", name)
    # Every vendor and compiler has names of its own: what is not known is said apart, not guessed.
    if entry is None:
        return KernelKind(part=Activity.OTHER, phase=None)
    phase = Phase[entry["phase"].upper()] if "phase" in entry else None
    return KernelKind(part=None if entry["part"] == COLLECTIVE else Activity(entry["part"]), phase=phase)


def collective_kind(name: str) -> str:
    """Return the kind of a collective by its name, or by that of its kernel; empty where neither tells."""
    entry = _first("collectives", name)
    return entry["kind"] if entry else ""


def group_axis(description: str) -> Axis | None:
    """Return whose traffic a group carries by what its trainer calls it; None of sums over several axes."""
    entry = _first("groups", description)
    return None if entry is None or entry["axis"] == NO_AXIS else Axis(entry["axis"])


def is_known_group(description: str) -> bool:
    """Tell whether it is known what a trainer calls so."""
    return _first("groups", description) is not None


def stall_of(name: str) -> str:
    """Return what a named stretch of host time may keep the device waiting with; empty for other ranges."""
    entry = _first("ranges", name)
    return entry["stall"] if entry else ""
