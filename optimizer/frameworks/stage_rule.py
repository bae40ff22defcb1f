"""How freely a framework lets layers be split over stages and chosen for recomputation."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Split(StrEnum):
    """Which numbers of blocks the virtual stages may hold.

    ``free``: any. ``near_equal``: any two stages differ by at most one block, the first and the last may hold one
    fewer than the smallest other one. ``equal``: every stage the same. ``equal_middle``: the first and the last rank
    any, the ranks between the same, and every chunk of a rank the same; or all stages the same but for the first,
    the last or both, which hold one fewer since the embedding and the loss count as a layer. ``equal_middle_unchunked``:
    that without chunks, ``equal`` with them. ``larger_first``: as equal as can be, the larger stages first. ``by_cost``:
    the next rank begins after the block with which the cost of the blocks so far exceeds the rank's equal share.
    """

    FREE = "free"
    NEAR_EQUAL = "near_equal"
    EQUAL = "equal"
    EQUAL_MIDDLE = "equal_middle"
    EQUAL_MIDDLE_UNCHUNKED = "equal_middle_unchunked"
    LARGER_FIRST = "larger_first"
    BY_COST = "by_cost"


COUNTED = frozenset(Split) - {Split.FREE, Split.NEAR_EQUAL}
"""Splits that the framework makes itself, by counting layers."""


class Recomputation(StrEnum):
    """Which blocks may be recomputed in whole."""

    PER_RANK = "per_rank"
    UNIFORM_COUNT = "uniform_count"
    ALL_OR_NONE = "all_or_none"


@dataclass(frozen=True, slots=True, kw_only=True)
class StageLimit:
    """Fewest and most blocks of one rank (from the last where negative) that a question asks for."""

    rank: int
    fewest: int
    most: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRule:
    """The stage choices of one framework.

    What is searched: stages are contiguous, in chunk-major order (virtual stage ``chunk*pp + rank``; V-shaped schedules
    and DualPipe, whose ranks s and pp - 1 - s count as one of two chunks, run the second chunks backwards);
    every virtual stage holds at least one block, except the first and the last, which may hold none when pp > 1
    (they hold the embedding and the head); the chunks of one rank differ by at most one block, the smaller ones
    first, so that ranks work on large chunks at the same time; the first and the last virtual stage, which work on the
    embedding and the head as well, may hold any fewer and at most one more than the smallest other chunk of their rank
    (where ``split`` is not free, one fewer at most); and the numbers are those of ``split``.

    What can be launched: any list with the numbers of ``launch``, None for those of ``split``; ``empty_stages`` says
    whether stages between the first and the last may hold nothing. ``costs`` are those of a layer and of the head
    (``Split.BY_COST``). ``order`` is the kind of every block of the model, empty where kinds follow one another.

    ``recomputation`` per_rank: every virtual stage recomputes any of its blocks (those cheapest per byte first is not
    required: with several kinds, the number is free for each kind). uniform_count: one number N for all virtual
    stages, of which each recomputes its first min(N, blocks) blocks (Megatron-LM ``--recompute-method
    block``). all_or_none: every block or none.
    ``limits`` come from the question: bounds know them, and the solver's model holds them exactly.
    """

    split: Split
    recomputation: Recomputation
    launch: Split | None = None
    empty_stages: bool = False
    costs: tuple[int, int] = (1, 0)
    order: tuple[int, ...] = ()
    limits: tuple[StageLimit, ...] = ()

    @property
    def launchable(self) -> Split:
        """Numbers of blocks that the framework takes."""
        return self.launch or self.split


FREE = StageRule(split=Split.FREE, recomputation=Recomputation.PER_RANK, empty_stages=True)
MEGATRON = StageRule(split=Split.FREE, recomputation=Recomputation.UNIFORM_COUNT, empty_stages=True)
NEAR_EQUAL = StageRule(split=Split.NEAR_EQUAL, recomputation=Recomputation.ALL_OR_NONE)
