"""A network whose transfers count: a second for each byte, times a number for the kind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from layoutopt.optimizer.topology.groups import GroupBatch

    Array = np.ndarray[Any, np.dtype[np.float64]]

KINDS = {
    "p2p": 1,
    "all_to_all": 10,
    "all_gather": 100,
    "reduce_scatter": 1000,
    "all_reduce": 10_000,
    "broadcast": 7,
}


class Wire:
    """Every transfer takes its bytes times the number of its kind; ``members`` are those of the groups that were asked."""

    def __init__(self) -> None:
        self.members: list[int] = []

    def __getattr__(self, name: str) -> Any:
        kind = KINDS[name.removesuffix("_s")]

        def price(size: Array, group: GroupBatch) -> Array:
            """Note who takes part; a group of one sends nothing."""
            members = int(np.ravel(group.size)[0])
            self.members += [members] if members > 1 else []
            return kind * size * (members > 1)

        return price
