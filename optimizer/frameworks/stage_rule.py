"""How freely a framework lets layers be split over stages and chosen for recomputation."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Split(StrEnum):
    """Which numbers of blocks the virtual stages may hold."""

    FREE = "free"
    NEAR_EQUAL = "near_equal"


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

    All rules: stages are contiguous, in chunk-major order (virtual stage ``chunk*pp + rank``; V-shaped schedules
    and DualPipe, whose ranks s and pp - 1 - s count as one of two chunks, run the second chunks backwards);
    every virtual stage holds at least one block, except the first and the last, which may hold none when pp > 1
    (they hold the embedding and the head); the chunks of one rank differ by at most one block, the smaller ones
    first, so that ranks work on large chunks at the same time; on the last of several ranks, with the head in its
    last chunk, that one is among the smaller ones.

    ``split`` free: any counts within those rules; near_equal: any two virtual stages differ by at most one
    block, the first and last virtual stage may hold one block fewer than the smallest other one.
    ``recomputation`` per_rank: rank s recomputes any r_s of its blocks (those cheapest per byte first is not
    required: with several kinds, r_sk is free for each kind). uniform_count: one number N for all virtual
    stages, of which each recomputes its first min(N, blocks) blocks (Megatron-LM ``--recompute-method
    block``). all_or_none: every block or none.
    ``limits`` come from the question: bounds know them, and the solver's model holds them exactly.
    """

    split: Split
    recomputation: Recomputation
    limits: tuple[StageLimit, ...] = ()


FREE = StageRule(split=Split.FREE, recomputation=Recomputation.PER_RANK)
MEGATRON = StageRule(split=Split.FREE, recomputation=Recomputation.UNIFORM_COUNT)
NEAR_EQUAL = StageRule(split=Split.NEAR_EQUAL, recomputation=Recomputation.ALL_OR_NONE)
