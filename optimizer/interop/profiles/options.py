"""What a profile does not say itself."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from layoutopt.optimizer.specs.vocabulary import Axis

_RANK = re.compile(r"rank[_-]?(\d{1,7})", re.IGNORECASE)


def rank_in(name: str) -> int | None:
    """Return the rank that a file's name states: ``rank3_trace.json``, ``job-rank_12.sqlite``."""
    named = _RANK.search(name)
    return int(named[1]) if named else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileOptions:
    """What is said from outside.

    ``steps`` is the number of optimizer steps of a profile that marks none, ``rank`` the rank of one that names none.
    ``axes`` says whose traffic a group is, by its name, its description or, where a call names no group, the kind of call.
    """

    steps: int | None = None
    rank: int | None = None
    axes: Mapping[str, Axis] = field(default_factory=dict)

    @property
    def given(self) -> str:
        """The first thing that is said, as the command line calls it; empty where nothing is."""
        said = {"--steps": self.steps is not None, "--rank": self.rank is not None, "--axis": bool(self.axes)}
        return next((key for key, is_said in said.items() if is_said), "")
