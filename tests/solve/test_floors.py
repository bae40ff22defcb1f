"""A rank's floor is the length of a path through the schedule: no stages that it allows are faster."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from checks.operations import with_operations
from hypothesis import given, settings
from hypothesis import strategies as st

from layoutopt.optimizer.cost.orders import HopOverlap
from layoutopt.optimizer.cost.step import step_s
from layoutopt.optimizer.solve.search.chunk_sizes import balanced, with_end
from layoutopt.optimizer.solve.search.floors import HeldBlocks, rank_floors

if TYPE_CHECKING:
    from layoutopt.optimizer.cost.terms import StageTerms

ENDS = ("embedding_s", "head_s", "first_s", "last_s", "outside_s", "hidden_forward_s", "hidden_backward_s")


def _terms(rng: np.random.Generator, pp: int, vp: int, m: int, kinds: int) -> StageTerms:
    """Draw times of every operation apart, and how transfers overlap."""
    both = rng.uniform(0.0, 1.0, (2, 1, kinds))
    hidden = rng.choice([0.0, 0.3], (2, 1, kinds))
    ends = rng.choice([0.0, 1.0], (2, 1, 1)) * rng.uniform(0.0, 2.0, (2, 1, 3))
    zero, none = np.zeros(1), np.zeros((1, kinds))
    return with_operations(
        pp=np.array([pp]), vp=np.array([vp]), micro_batches=np.array([m]), layer_s=both.sum(axis=0) + hidden.sum(axis=0),
        forward_s=both[0], backward_s=both[1], wgrad_s=both[1] / 2, hidden_forward_s=hidden[0],
        hidden_backward_s=hidden[1], embedding_s=ends[0], head_s=ends[1], first_s=ends[0, :, :2].sum(axis=1),
        last_s=ends[1, :, :2].sum(axis=1), recompute_s=rng.uniform(0.0, 0.3, (1, kinds)), bubble_weight=zero,
        fixed_s=rng.uniform(0.0, 1.0, 1), hop_s=rng.uniform(0.0, 0.2, 1),
        hops_overlap=np.array([int(rng.choice(list(HopOverlap)))]), layer_state_bytes=none,
        layer_activation_bytes=none, recomputed_activation_bytes=none, first_bytes=zero, last_bytes=zero,
        common_bytes=zero, flight_bytes=zero, recompute_transient_bytes=zero, capacity_bytes=np.array([np.inf]),
        in_flight=np.ones((1, pp)), may_recompute=np.array([True]), folded=np.array([False]),
    )  # fmt: skip


def _sizes(rng: np.random.Generator, rank: int, pp: int, vp: int) -> np.ndarray:
    """Draw the chunks of a rank as the search lists them."""
    totals = np.array([int(rng.integers(vp, 4 * vp + 1))])
    listed = with_end(vp, totals, first=rank == 0) if rank in (0, pp - 1) else balanced(vp, totals)
    drawn: np.ndarray = listed[int(rng.integers(len(listed)))]
    return drawn


@pytest.mark.parametrize("vp", [1, 2, 3, 5])
@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_no_stages_are_faster_than_a_floor(vp: int, seed: int) -> None:
    """Random chunks, kinds, recomputation, ends, transfers and micro-batches; floors know the blocks of every rank."""
    rng = np.random.default_rng(seed)
    pp, kinds = int(rng.integers(2, 7)), int(rng.integers(1, 3))
    m = int(rng.integers(1, 5)) * pp + int(rng.choice([0, 0, 1]))
    terms = _terms(rng, pp, vp, m, kinds)
    sizes = np.stack([_sizes(rng, rank, pp, vp) for rank in range(pp)], axis=1)
    blocks = np.zeros((1, vp, pp, kinds), dtype=np.int64)
    share = rng.integers(0, sizes + 1) if kinds == 2 else sizes
    blocks[0, ..., 0] = share
    blocks[0, ..., -1] += sizes - share if kinds == 2 else 0
    again = rng.integers(0, blocks + 1)
    if rng.random() < 0.5:
        again = blocks * int(rng.integers(2))
    held, repeated = blocks.sum(axis=1)[0], again.sum(axis=1)[0]
    exact_s = step_s(terms, 0, blocks, again)[0]
    total = held.sum(axis=1)[None].astype(float)
    every = np.array([bool((again == blocks).all())])
    alike = np.array([kinds == 1 and (every[0] or not again.any())])
    loose = rng.integers(0, 3, (2, 1, pp))
    for known in (
        None,
        HeldBlocks(fewest=total, most=total, every=every, alike=alike),
        HeldBlocks(fewest=np.maximum(total - loose[0], 0), most=total + loose[1], every=every, alike=alike),
        HeldBlocks(fewest=np.zeros((1, pp)), most=total, every=every, alike=alike),
    ):
        floors = rank_floors(terms, held.sum(axis=0), known)
        each_s = np.einsum("pk,kp->p", held, floors.layer_s[0]) + np.einsum(
            "pk,kp->p", repeated, floors.again_s[0]
        )
        floor_s = (
            m * (each_s + floors.base_s[0]) + floors.all_again[0] * (repeated @ terms.recompute_s[0]).sum()
        )
        assert (floor_s <= exact_s * (1 + 1e-12)).all()


def test_floors_count_the_way_to_the_last_rank() -> None:
    """Equal ranks of large chunks: a floor counts the chunks before a rank, or those behind it less what it skips."""
    terms = _terms(np.random.default_rng(0), 4, 3, 8, 1)
    blocks = np.full((1, 3, 4, 1), 20)
    for name in (*ENDS, "hop_s"):
        getattr(terms, name)[:] = 0.0
    terms.forward_s[:], terms.backward_s[:], terms.layer_s[:] = 1.0, 2.0, 3.0
    sixty, every = np.full((1, 4), 60.0), np.zeros(1, dtype=bool)
    alike = ~every
    floors = rank_floors(
        terms, np.array([240]), HeldBlocks(fewest=sixty, most=sixty, every=every, alike=alike)
    )
    floor_s = 8 * (60 * floors.layer_s[0, 0] + floors.base_s[0])
    busy_s, chunk_s = 8 * 60 * 3, 20 * 3
    assert step_s(terms, 0, blocks, np.zeros_like(blocks))[0] == pytest.approx(busy_s + 3 * chunk_s)
    # the first rank's first chunk and the last rank's last one may be empty
    assert floor_s[3] == pytest.approx(busy_s + 2 * chunk_s)
    # rank 1: on to rank 2 and back, less four forwards, three of a last chunk of at most 20 2/3 blocks, one of a first
    assert floor_s[1] == pytest.approx(max(busy_s + chunk_s - (3 * 20 + 2) - 20, busy_s))


def test_ranks_together_hold_more_than_each_must() -> None:
    """Of 62 blocks on 8 ranks with at most 8 each one rank may hold 6, all of them together two fewer than their most."""
    terms = _terms(np.random.default_rng(0), 8, 4, 16, 1)
    for name in (*ENDS, "hop_s"):
        getattr(terms, name)[:] = 0.0
    terms.forward_s[:], terms.backward_s[:], terms.layer_s[:] = 1.0, 2.0, 3.0
    counts, no = np.array([62]), np.zeros(1, dtype=bool)
    fewest = np.full((1, 8), 6.0)
    alone = HeldBlocks(fewest=fewest, most=np.full((1, 8), 62.0), every=no, alike=no)
    together = HeldBlocks(fewest=fewest, most=np.full((1, 8), 8.0), every=no, alike=no)
    floors = [16 * rank_floors(terms, counts, held).base_s[0] for held in (alone, together)]
    # six ranks between the first and the last: first chunks of 1 each; of 2 each, less two blocks
    assert floors[0][7] == pytest.approx(6 * 3)
    assert floors[1][7] == pytest.approx((6 * 2 - 2) * 3)
    assert (floors[1] >= floors[0]).all()


def test_waits_of_warm_up_and_cool_down_are_certain() -> None:
    """Where only the ends of an interleaved pipeline wait for transfers, a floor counts each rank's own waits."""
    terms = _terms(np.random.default_rng(0), 4, 3, 8, 1)
    for name in (*ENDS, "forward_s", "backward_s", "layer_s", "recompute_s"):
        getattr(terms, name)[:] = 0.0
    terms.hop_s[:], terms.hops_overlap[:] = 1.0, HopOverlap.STEADY
    floor_s = 8 * rank_floors(terms, np.array([12])).base_s[0]
    # two waits less one for each forward of the warm-up, (vp - 1) pp + 2 (pp - 1 - rank) of them, and the way there and back
    assert floor_s[0] >= 2 * 14 - 1
    assert floor_s[-1] == pytest.approx(2 * 8 - 2 + 2 * 3)
    blocks = np.ones((1, 3, 4, 1), dtype=np.int64)
    assert floor_s.max() <= step_s(terms, 0, blocks, np.zeros_like(blocks))[0]
