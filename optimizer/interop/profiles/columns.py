"""Events of a trace as compact columns while it is read."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    IntArray = NDArray[np.int64]


@dataclass(slots=True)
class Columns:
    """Rows of whole numbers, eight bytes each."""

    names: tuple[str, ...]
    values: array[int] = field(default_factory=lambda: array("q"))

    def add(self, *row: int) -> None:
        """Add a row."""
        self.values.extend(row)

    def __len__(self) -> int:
        return len(self.values) // len(self.names)

    def table(self) -> dict[str, IntArray]:
        """Return the columns by name, (rows,) each."""
        rows = (
            np.frombuffer(self.values, dtype=np.int64).reshape(-1, len(self.names)) if self.values else None
        )
        none = np.zeros(0, dtype=np.int64)
        return {name: none if rows is None else rows[:, place] for place, name in enumerate(self.names)}


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
