"""Times of a schedule's operations for artificial terms: the textbook's third of a layer's time for each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from layoutopt.optimizer.cost.orders import HopOverlap
from layoutopt.optimizer.cost.schedules import SCHEDULES
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
        "hops_overlap": np.full(len(layer), HopOverlap.ALL),
        "outside_s": zero,
        "group": np.ones(len(layer), dtype=np.int64),
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
    laid = chunks(blocks.sum(axis=1)[None], terms)
    cut = laid.kinds(counts)[0, :vp, :ranks]

    def first(number: int) -> IntArray:
        return laid.kinds(counts, (), np.array(number))[0, :vp, :ranks]

    return float(step_s(terms, 0, cut[None], spread(cut, again[:ranks], first)[None])[0])


def terms_of(
    rng: np.random.Generator, schedule: Schedule, pp: int, vp: int, m: int, kinds: int, *, overlap: HopOverlap
) -> StageTerms:
    """One layout of a schedule with random times, forward and backward in any proportion."""
    model = SCHEDULES[schedule]
    ranks, chunks = pp // model.parameter_copies, vp * model.parameter_copies
    forward, wgrad = rng.uniform(0.3, 1, (1, kinds)), rng.uniform(0.2, 1, (1, kinds))
    backward = wgrad + rng.uniform(0.2, 1.2, (1, kinds))
    ends = [np.array([[f, d + w, w]]) for f, d, w in rng.uniform(0, 1.5, (2, 3))]
    share = 1 / model.parameter_copies
    whole = [end[:, :2].sum(axis=1) * share for end in ends]
    first, last = (whole[0] + whole[1], 0 * whole[0]) if model.folded else whole
    activation = rng.uniform(1, 3, (1, kinds))
    return with_operations(
        pp=np.array([ranks]), vp=np.array([chunks]), folded=np.array([model.folded]),
        micro_batches=np.array([m]), layer_s=(forward + backward) * share,
        recompute_s=rng.uniform(0.1, 0.5, (1, kinds)) * share, first_s=first, last_s=last,
        bubble_weight=np.array([0.5]), fixed_s=rng.uniform(0, 1, 1), layer_state_bytes=rng.uniform(0.5, 2, (1, kinds)),
        layer_activation_bytes=activation, recomputed_activation_bytes=activation * 0.3,
        first_bytes=rng.uniform(0, 2, 1), last_bytes=rng.uniform(0, 2, 1), common_bytes=np.zeros(1),
        flight_bytes=np.zeros(1),
        recompute_transient_bytes=rng.uniform(0, 1, 1), capacity_bytes=np.array([1e9]),
        in_flight=np.linspace(pp, 1, ranks)[None], may_recompute=np.array([True]),
        schedule=np.array([list(Schedule).index(schedule)]), forward_s=forward, backward_s=backward, wgrad_s=wgrad,
        embedding_s=ends[0], head_s=ends[1], hop_s=rng.uniform(0, 0.1, 1), hops_overlap=np.array([overlap]),
    )  # fmt: skip


def folded_terms(rng: np.random.Generator, ranks: int, kinds: int) -> StageTerms:
    """One folded row with memory between plenty and too little; the ends are both on the first rank."""
    activation = rng.uniform(1, 3, (1, kinds))
    return with_operations(
        pp=np.array([ranks]),
        vp=np.array([2]),
        folded=np.array([True]),
        micro_batches=2 * rng.integers(ranks, 20, 1),
        layer_s=rng.uniform(0.5, 3, (1, kinds)),
        recompute_s=rng.uniform(0.05, 1, (1, kinds)),
        first_s=rng.uniform(0, 3, 1),
        last_s=np.zeros(1),
        bubble_weight=rng.choice([0.0, 0.3, 1.3], 1),
        fixed_s=rng.uniform(0, 1, 1),
        layer_state_bytes=rng.uniform(0.5, 2, (1, kinds)),
        layer_activation_bytes=activation,
        recomputed_activation_bytes=activation * rng.uniform(0, 0.5),
        first_bytes=rng.uniform(0, 4, 1),
        last_bytes=np.zeros(1),
        common_bytes=rng.uniform(0, 1, 1),
        flight_bytes=rng.uniform(0, 0.2, 1),
        recompute_transient_bytes=rng.uniform(0, 2, 1),
        capacity_bytes=rng.uniform(8, 60, 1),
        in_flight=np.full((1, ranks), ranks + 0.5),
        may_recompute=np.array([rng.random() < 0.8]),
    )
