"""Where a token's experts are: the expected number of equal parts of the experts, ranks or NVLink domains, that it reaches.

Experts stand in order on the ranks of an expert group, and so do the router's groups (deepseek-ai/DeepSeek-V3
inference/model.py ``Gate``; NVIDIA/Megatron-LM core/transformer/moe/moe_utils.py ``group_limited_topk``). All sets of
``router_group_limit`` groups are equally likely, and of a token's choices each is any expert of these groups, whatever the
others are.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from layoutopt.optimizer.specs.model import MoeSpec

    FloatArray = NDArray[np.float64]

_CUT = 1e-9
"""Share of a group below which a part's edge is the group's."""


def reached_parts(parts: FloatArray, moe: MoeSpec, *, least: bool = False) -> FloatArray:
    """Return how many of ``parts`` (n,) equal neighbouring parts of the experts hold a choice of a token, expected, (n,).

    ``least`` gives a lower bound that grows with the parts: parts that cut groups reach more than their size says.
    """
    if moe.binding_groups is None:
        free: FloatArray = parts * (1 - (1 - 1 / parts) ** moe.top_k)
        return free
    kinds, index = np.unique(parts, return_inverse=True)
    count = _least_reached if least else _reached
    return np.array([count(float(kind), moe.top_k, *moe.binding_groups) for kind in kinds])[index]


@lru_cache(maxsize=4096)
def _reached(parts: float, top_k: int, groups: int, limit: int) -> float:
    """Parts reached, by what each part covers of which groups, where choices lie in ``limit`` of ``groups``."""
    width = groups / parts
    start = width * np.arange(int(parts + _CUT))
    first, last = np.ceil(start - _CUT), np.floor(start + width + _CUT)
    inside = last < first
    covers = np.array(
        [
            np.where(inside, 0.0, last - first),
            np.where(inside, width, first - start),
            np.where(inside, 0.0, start + width - last),
        ]
    )
    kinds, counts = np.unique(covers.round(12), axis=1, return_counts=True)
    missed = [
        _missed(int(whole), tuple(piece for piece in pieces if piece > _CUT), top_k, groups, limit)
        for whole, *pieces in kinds.T.tolist()
    ]
    return parts * (1 - float(np.average(missed, weights=counts)))


@lru_cache(maxsize=4096)
def _least_reached(parts: float, top_k: int, groups: int, limit: int) -> float:
    """A lower bound of ``_reached`` that grows with ``parts``, and equals it where parts and groups nest.

    What a token misses is convex in how much of each group a part covers, so whole groups miss it most, and
    between two numbers of them no more than in proportion.
    """
    width = groups / parts
    if width < 1:
        return parts * (1 - _missed(0, (width,), top_k, groups, limit))
    whole = int(width)
    fewer, more = (_missed(min(count, groups), (), top_k, groups, limit) for count in (whole, whole + 1))
    return parts * (1 - fewer - (width - whole) * (more - fewer))


@lru_cache(maxsize=4096)
def _missed(whole: int, pieces: tuple[float, ...], top_k: int, groups: int, limit: int) -> float:
    """Chance that no choice lies in a part that covers so many whole groups and pieces (shares of one) of others."""
    chosen = np.arange(min(whole, limit) + 1)
    others = groups - whole - len(pieces)
    total = 0.0
    for taken in product((False, True), repeat=len(pieces)):
        elsewhere = limit - sum(taken) - chosen
        possible = (elsewhere >= 0) & (elsewhere <= others)
        ways = _log_ways(groups, whole, chosen[possible]) + _log_ways(groups, others, elsewhere[possible])
        chance = np.exp(ways - _log_ways(groups, groups, np.array([limit])))
        covered = chosen[possible] + sum(share for share, there in zip(pieces, taken, strict=True) if there)
        total += float(chance @ np.maximum(1 - covered / limit, 0.0) ** top_k)
    return total


def _log_ways(most: int, whole: int, chosen: NDArray[np.int64]) -> FloatArray:
    """Logarithm of the ways to choose ``chosen`` (n,) of ``whole``, at most ``most``, (n,)."""
    table = _log_factorials(most)
    ways: FloatArray = table[whole] - table[chosen] - table[whole - chosen]
    return ways


@lru_cache(maxsize=16)
def _log_factorials(most: int) -> FloatArray:
    """Logarithms of the factorials of 0 to ``most``, (most + 1,)."""
    return np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, most + 1)))])
