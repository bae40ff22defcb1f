"""Times of a schedule's operations for artificial terms: the textbook's third of a layer's time for each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from layoutopt.optimizer.cost.step import step_s
from layoutopt.optimizer.cost.terms import StageTerms
from layoutopt.optimizer.solve.splits import chunks
from layoutopt.optimizer.space.stages import spread
from layoutopt.optimizer.specs.vocabulary import Schedule

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from layoutopt.optimizer.cost.terms import IntArray


def operations(
    layer_s: ArrayLike, first_s: ArrayLike, last_s: ArrayLike, pp: ArrayLike, vp: ArrayLike, **changed: Any
) -> dict[str, Any]:
    """Return the columns of ``StageTerms`` that describe operations: forward, dgrad and wgrad take a third each.

    Interleaved where a rank holds several chunks; ``folded`` pipelines run ZB-V, of one distinct rank DualPipe.
    ``changed`` replaces columns.
    """
    layer = np.atleast_2d(np.asarray(layer_s, dtype=np.float64))
    first, last = (np.atleast_1d(np.asarray(end, dtype=np.float64)) for end in (first_s, last_s))
    chunked = (np.atleast_1d(pp) > 1) & (np.atleast_1d(vp) > 1)
    folded = np.broadcast_to(changed.pop("folded", False), chunked.shape)
    named = (Schedule.ONE_F_ONE_B, Schedule.INTERLEAVED, Schedule.ZB_V, Schedule.DUALPIPE)
    codes = [list(Schedule).index(schedule) for schedule in named]
    zero = np.zeros(len(layer))
    columns = {
        "schedule": np.where(
            chunked, np.where(folded, codes[2], codes[1]), np.where(folded, codes[3], codes[0])
        ),
        "forward_s": layer / 3,
        "backward_s": layer - layer / 3,
        "wgrad_s": layer / 3,
        "hidden_forward_s": np.zeros_like(layer),
        "hidden_backward_s": np.zeros_like(layer),
        "embedding_s": np.stack([first / 3, first - first / 3, first / 3], axis=1),
        "head_s": np.stack([last / 3, last - last / 3, last / 3], axis=1),
        "hop_s": zero,
        "hops_overlap": zero < 1,
        "outside_s": zero,
    }
    return columns | changed


def with_operations(**columns: Any) -> StageTerms:
    """Return terms whose operations follow from the times of blocks and ends, where ``columns`` do not hold them."""
    names = ("layer_s", "first_s", "last_s", "pp", "vp")
    given = {name: columns[name] for name in names}
    rest = operations(**given, folded=columns["folded"], outside_s=np.atleast_1d(columns["fixed_s"]))
    return StageTerms(**{**rest, **columns})


def exact_price(terms: StageTerms, counts: IntArray, blocks: IntArray, again: IntArray) -> float:
    """Return the exact step of a row's stages given per rank, (P, K): cut and spread as layouts are written."""
    ranks = int(terms.pp[0])
    vp = int(terms.vp[0])
    cut = chunks(blocks.sum(axis=1)[None], terms).kinds(counts)[0, :vp, :ranks]
    return float(step_s(terms, 0, cut[None], spread(cut, again[:ranks])[None])[0])
