"""What a profile does not say itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from layoutopt.optimizer.specs.vocabulary import Axis


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileOptions:
    """What is said from outside.

    ``steps`` is the number of optimizer steps of a profile that marks none, ``rank`` the rank of one that names none.
    ``axes`` says whose traffic a group is, by its name, its description or, where a call names no group, the kind of call.
    """

    steps: int | None = None
    rank: int | None = None
    axes: Mapping[str, Axis] = field(default_factory=dict)
