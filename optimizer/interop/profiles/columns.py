"""Events of a profile as compact columns while it is read, and as the record's arrays when it has been."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from layoutopt.optimizer.diagnose.parts import Activity
from layoutopt.optimizer.diagnose.profile import Events
from layoutopt.optimizer.diagnose.terms import COLLECTIVE, PARTS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from layoutopt.optimizer.diagnose.kernels import KernelKind

    IntArray = NDArray[np.int64]
    Table = dict[str, IntArray]


@dataclass(slots=True)
class Columns:
    """Rows of whole numbers, eight bytes each."""

    names: tuple[str, ...]
    # Not a list of ints, which takes several times as much: a profile has millions of events.
    values: array[int] = field(default_factory=lambda: array("q"))

    def add(self, *row: int) -> None:
        """Add a row."""
        self.values.extend(row)

    def __len__(self) -> int:
        return len(self.values) // len(self.names)

    def table(self) -> Table:
        """Return the columns by name, (rows,) each."""
        # frombuffer refuses a buffer without bytes
        return by_name(np.frombuffer(self.values, dtype=np.int64) if self.values else [], self.names)


def by_name(rows: Any, names: tuple[str, ...]) -> Table:
    """Return rows (n, columns) of whole numbers, or all of them in one row, as columns by name, (n,) each."""
    table = np.asarray(rows, dtype=np.int64).reshape(-1, len(names))
    return {name: table[:, place] for place, name in enumerate(names)}


@dataclass(slots=True)
class Numbered:
    """Texts by number."""

    known: dict[str, int] = field(default_factory=dict)

    def number(self, text: str) -> int:
        """Return the number of a text."""
        return self.known.setdefault(text, len(self.known))

    def texts(self) -> tuple[str, ...]:
        """Return all texts by number."""
        return tuple(self.known)


def places(keys: IntArray, wanted: IntArray) -> IntArray:
    """Return where each wanted key (n,) is among keys (m,): (n,), -1 where it is not; negative keys are none."""
    if not len(keys):
        return np.full(len(wanted), -1)
    order = np.argsort(keys, kind="stable")
    place = order[np.minimum(np.searchsorted(keys[order], wanted), len(keys) - 1)]
    return np.where((keys[place] == wanted) & (wanted >= 0), place, -1)


def parts_of(kinds: Sequence[KernelKind], rows: Table) -> IntArray:
    """Return each row's part, (rows,), by its name's kind; of copies between host and device, marked in ``copy``, theirs."""
    table = [COLLECTIVE if one.part is None else PARTS.index(one.part) for one in kinds]
    part = np.array(table, dtype=np.int64)[rows["name"]]
    copies = rows.get("copy", np.zeros(len(part), dtype=np.int64)) > 0
    return np.where(copies, PARTS.index(Activity.HOST_COPY), part)


def ordered(
    rows: Table, part: IntArray, phase: IntArray, launch_ns: IntArray, call: IntArray, base_ns: int = 0
) -> Events:
    """Return rows on a device, columns (n,), as the record's events by start."""
    order = np.argsort(rows["start"], kind="stable")
    return Events(
        start_ns=rows["start"][order] + base_ns,
        end_ns=rows["end"][order] + base_ns,
        stream=rows["stream"][order],
        part=part[order],
        phase=phase[order],
        launch_ns=launch_ns[order],
        name=rows["name"][order],
        call=call[order],
    )
