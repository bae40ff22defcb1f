"""What an explanation consists of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from layoutopt.optimizer.cost.estimate import Estimate
    from layoutopt.optimizer.solve.plan import Judgement, Plan
    from layoutopt.optimizer.space.rule import BrokenRule
    from layoutopt.optimizer.specs.layout import Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPart:
    """One component of a rank's memory: bytes, and in words what one rank's share was divided by."""

    name: str
    size_bytes: float
    divided_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FullestRank:
    """The pipeline rank that needs most memory, its components with the largest first; they sum to ``needed_bytes``."""

    rank: int
    needed_bytes: float
    usable_bytes: float
    parts: tuple[MemoryPart, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """One change that makes a layout run, with everything else of it fixed.

    ``axes`` are the choices that were free, ``changes`` what became of them and of what follows from them
    (``tp 4 -> 8``). ``slower`` is the predicted step time over that of the given layout, less 1; of remedies with more
    GPUs the GPU-time; None where the given layout has no price. ``note`` says what else changes.
    """

    axes: tuple[str, ...]
    changes: tuple[str, ...]
    layout: Layout
    estimate: Estimate
    slower: float | None
    gpus: int
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GapStep:
    """One change on the way from a layout to the optimum: the layout after it, and what it saved.

    ``saved_s`` may be negative. ``why`` names the components of the step time that changed most.
    """

    axes: tuple[str, ...]
    changes: tuple[str, ...]
    layout: Layout
    step_time_s: float
    saved_s: float
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """The way from a layout to the optimum; ``saved_s`` of its steps sum to the whole gap.

    ``slower`` is the layout's step time over the optimum's, less 1.
    """

    step_time_s: float
    best_s: float
    slower: float
    steps: tuple[GapStep, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Why a layout gets its verdict, and what to do about it.

    ``advice`` lists what runs but costs time or memory. ``fullest`` is None without a price. ``remedies`` are ranked by
    predicted slow-down and empty for a layout that fits. ``optimum`` is the best layout of the same framework, ``gap``
    the way there; both None when not asked for or when there is none. ``fewest_gpus`` is the smallest number of GPUs at
    which the layout fits with dp alone changed; None: unknown or not needed.
    """

    judgement: Judgement
    advice: tuple[BrokenRule, ...] = ()
    fullest: FullestRank | None = None
    remedies: tuple[Remedy, ...] = ()
    optimum: Plan | None = None
    gap: Gap | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WhyNot:
    """What a wish costs: the best layout with it (``plan``) beside the best without it (``best``).

    ``slower`` is None when either has no layout; ``why`` says it in one line.
    """

    fixed: Mapping[str, tuple[int | str, ...]]
    plan: Plan
    best: Plan
    slower: float | None
    why: str
