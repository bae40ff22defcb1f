"""Long stacks whose kinds alternate, as stacks of one mean kind: blocks in a row are nearly as many mean blocks.

With ``d`` the most by which blocks in a row fall short of their number of mean blocks or exceed it, in seconds or bytes,
a rank of ``v`` chunks is off by ``v d`` at most. Time outside the pipeline and memory make up for that once for all, so
that whatever holds for the mean kind is a floor under the step of the stack.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.solve.search.capacity import mixes
from layoutopt.optimizer.solve.search.floors import PLAIN, runs
from layoutopt.optimizer.space.stages import kinds_before

if TYPE_CHECKING:
    from layoutopt.optimizer.cost.batch import IntArray
    from layoutopt.optimizer.cost.terms import FloatArray, StageTerms
    from layoutopt.optimizer.solve.search.cases import Cases

COARSE = 8
"""Numbers of a kind that a mix stands for from which on it says less of a rank than mean blocks do."""


def is_long(order: tuple[int, ...], counts: IntArray) -> bool:
    """Whether so many blocks of kinds (K,) alternate that their numbers are told apart in coarse steps alone."""
    if not order:
        return False
    found = mixes(counts)
    return bool((found.high - found.low + 1 >= COARSE).any())


def mean_blocks(
    terms: StageTerms, counts: IntArray, order: tuple[int, ...], *, anywhere: bool
) -> tuple[StageTerms, IntArray]:
    """Return terms and counts (1,) of one kind, whose bounds are true of blocks of kinds (K,) that alternate in an order.

    ``anywhere``: a rank recomputes any of its blocks, not the first ones of each chunk.
    """
    off = _deviations(order, len(counts))
    share = counts / counts.sum()

    def mean(value: FloatArray) -> FloatArray:
        """Return what a block takes in the mean of all kinds, (n, 1) of (n, K)."""
        result: FloatArray = (value @ share)[:, None]
        return result

    def error(value: FloatArray) -> FloatArray:
        """The most that blocks in a row differ from mean ones, (n,)."""
        each = value @ off.T
        result: FloatArray = each.max(axis=1) - each.min(axis=1)
        return result

    real = counts > 0
    plain, both = runs(terms, PLAIN), terms.forward_s + terms.backward_s
    saved = terms.layer_activation_bytes - terms.recomputed_activation_bytes
    again_s, saves = terms.recompute_s[:, real].min(axis=1), saved[:, real].max(axis=1)
    again_off, saved_off = np.zeros(len(terms)), np.zeros(len(terms))
    if not anywhere:
        again_s, saves = mean(terms.recompute_s)[:, 0], mean(saved)[:, 0]
        again_off, saved_off = error(terms.recompute_s), error(saved)
    off_s = np.where(plain, error(both) + error(terms.forward_s), error(terms.layer_s)) + again_off
    off_bytes = error(terms.layer_state_bytes)
    off_bytes += terms.in_flight.max(axis=1) * (error(terms.layer_activation_bytes) + saved_off)
    # on the way past other ranks an interleaved path meets a block or two of each: it may be any kind
    slowest_s = (terms.forward_s + terms.hidden_forward_s)[:, real].max(axis=1)[:, None]
    least_s = both[:, real].min(axis=1)[:, None]
    forward_s = np.where(plain[:, None], mean(terms.forward_s), slowest_s)
    activation = mean(terms.layer_activation_bytes)
    return (
        replace(
            terms,
            layer_s=mean(terms.layer_s),
            forward_s=forward_s,
            backward_s=np.where(plain[:, None], mean(both), least_s) - forward_s,
            wgrad_s=mean(terms.wgrad_s),
            hidden_forward_s=np.zeros_like(forward_s),
            hidden_backward_s=np.zeros_like(forward_s),
            recompute_s=again_s[:, None],
            layer_state_bytes=mean(terms.layer_state_bytes),
            layer_activation_bytes=activation,
            recomputed_activation_bytes=activation - saves[:, None],
            capacity_bytes=terms.capacity_bytes + terms.vp * off_bytes,
            # once per micro-batch on the rank of a path, and on every other rank that recomputes
            outside_s=terms.outside_s
            - terms.micro_batches * terms.vp * off_s
            - terms.pp * terms.vp * again_off,
        ),
        counts.sum(keepdims=True),
    )


def shortened(terms: StageTerms, counts: IntArray, cases: Cases) -> tuple[StageTerms, IntArray, Cases]:
    """Put one mean kind in the place of alternating ones of ``counts`` (K,) where these are many."""
    if not is_long(cases.order, counts):
        return terms, counts, cases
    terms, counts = mean_blocks(terms, counts, cases.order, anywhere=bool(cases.free.any()))
    return terms, counts, replace(cases, order=())


@lru_cache(maxsize=8)
def _deviations(order: tuple[int, ...], kinds: int) -> FloatArray:
    """Return by how many blocks of each kind the first blocks of the stack differ from as many mean ones, (d, K)."""
    before, number = kinds_before(order, kinds), len(order)
    # in whole numbers, so that what repeats is told once
    apart = np.unique(before * number - np.arange(number + 1)[:, None] * before[-1], axis=0)
    result: FloatArray = apart / number
    return result
