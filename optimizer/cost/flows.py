"""Activations that ranks hold at the peak, and transfers that lengthen a step, by schedule.

``hold_*`` return micro-batches of a whole rank, (n, P); ``*_hops`` and ``*_waiting`` transfers, (n,): those that a step
waits for where sends run beside compute, and where a rank waits for every transfer. The table of closed forms is in
``schedules``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from layoutopt.optimizer.cost.bubbles import Pipelines

    FloatArray = NDArray[np.float64]
    IntArray = NDArray[np.int64]


def hold_one(pipelines: Pipelines, ranks: IntArray) -> FloatArray:
    """One micro-batch at a time: no pipeline, (n, P)."""
    return np.ones((len(pipelines.pp), len(ranks)))


def hold_all(pipelines: Pipelines, ranks: IntArray) -> FloatArray:
    """GPipe: every micro-batch before the first backward, (n, P)."""
    return pipelines.micro_batches[:, None] * np.ones(len(ranks))


def hold_one_f_one_b(pipelines: Pipelines, ranks: IntArray) -> FloatArray:
    """1F1B: as many as ranks follow, this one included, (n, P)."""
    held: FloatArray = np.minimum(pipelines.micro_batches[:, None], pipelines.pp[:, None] - ranks)
    return held


def hold_interleaved(pipelines: Pipelines, ranks: IntArray) -> FloatArray:
    """Interleaved 1F1B: its warm-up's chunks, in whole ranks, (n, P)."""
    vp, group = pipelines.vp[:, None], np.minimum(pipelines.group, pipelines.micro_batches)[:, None]
    chunks = 2 * (pipelines.pp[:, None] - ranks - 1) + (vp - 1) * group + 1
    held: FloatArray = np.minimum(pipelines.micro_batches[:, None] * vp, chunks) / vp
    return held


def hold_zb_h1(pipelines: Pipelines, ranks: IntArray) -> FloatArray:
    """ZB-H1: as the first rank of 1F1B, on every rank, (n, P)."""
    held: FloatArray = np.minimum(pipelines.micro_batches, pipelines.pp)[:, None] * np.ones(len(ranks))
    return held


def hold_zb_v(pipelines: Pipelines, ranks: IntArray) -> FloatArray:
    """ZB-V: both chunks of a V, each half a rank, (n, P)."""
    m, pp = pipelines.micro_batches[:, None], pipelines.pp[:, None]
    chunks: FloatArray = np.minimum(np.minimum(2 * m, 2 * pp), m + 1 + ranks)
    return chunks / 2


def hold_dualpipe(pipelines: Pipelines, ranks: IntArray) -> FloatArray:
    """DualPipe: pp + 1 on every rank, (n, P)."""
    return (pipelines.pp + 1)[:, None] * np.ones(len(ranks))


def hold_dualpipe_v(pipelines: Pipelines, ranks: IntArray) -> FloatArray:
    """DualPipe-V: as DualPipe, less half a rank, (n, P)."""
    return (pipelines.pp + 0.5)[:, None] * np.ones(len(ranks))


def no_hops(pipelines: Pipelines) -> FloatArray:
    """No transfers, (n,)."""
    return np.zeros(len(pipelines.pp))


def fill_and_drain(pipelines: Pipelines) -> FloatArray:
    """One way down and one up: the steady phase waits for none, (n,)."""
    return 2.0 * (pipelines.pp - 1)


def gpipe_waiting(pipelines: Pipelines) -> FloatArray:
    """GPipe: every transfer of each pass, one rank behind the other, (n,)."""
    return 2.0 * (pipelines.micro_batches + pipelines.pp - 2)


def one_f_one_b_hops(pipelines: Pipelines) -> FloatArray:
    """1F1B beside compute: round trips of the rounds, and filling, (n,)."""
    # A rank has only pp-s micro-batches in flight, so that each round trip to the last rank delays the next
    # one.
    return 2 * (pipelines.pp - 1) * pipelines.micro_batches / pipelines.pp + 2.0 * (pipelines.pp - 2)


def one_f_one_b_waiting(pipelines: Pipelines) -> FloatArray:
    """1F1B where ranks wait: two transfers per micro-batch, and filling, (n,)."""
    inner = 2.0 * pipelines.micro_batches + 2 * pipelines.pp - 5
    return np.where(pipelines.pp > 2, inner, pipelines.micro_batches + 1)


def interleaved_hops(pipelines: Pipelines) -> FloatArray:
    """Interleaved 1F1B beside compute: every chunk boundary once each way, (n,)."""
    return 2.0 * (pipelines.vp * pipelines.pp - 1)


def interleaved_waiting(pipelines: Pipelines) -> FloatArray:
    """Interleaved 1F1B where ranks wait: every chunk of every micro-batch, (n,)."""
    return (2.0 * pipelines.vp - 1) * pipelines.micro_batches + 2 * pipelines.pp - 3


def zb_h1_hops(pipelines: Pipelines) -> FloatArray:
    """ZB-H1 beside compute, (n,)."""
    return 4.0 * (pipelines.pp - 1)


def zb_h1_waiting(pipelines: Pipelines) -> FloatArray:
    """ZB-H1 where ranks wait, (n,)."""
    return 3.0 * pipelines.micro_batches + pipelines.pp - 3


def zb_v_hops(pipelines: Pipelines) -> FloatArray:
    """ZB-V beside compute, (n,)."""
    return 6.0 * pipelines.pp - 8


def zb_v_waiting(pipelines: Pipelines) -> FloatArray:
    """ZB-V where ranks wait, (n,)."""
    return 6.0 * pipelines.micro_batches


def dualpipe_hops(pipelines: Pipelines) -> FloatArray:
    """DualPipe beside compute: steady rounds, and filling, (n,)."""
    steady = 2 * (pipelines.pp - 1) * pipelines.micro_batches / pipelines.pp
    return steady + np.where(pipelines.pp > 2, 1.5 * pipelines.pp - 6, -1)


def dualpipe_waiting(pipelines: Pipelines) -> FloatArray:
    """DualPipe where ranks wait, (n,)."""
    inner = 2 * pipelines.micro_batches + 1.5 * pipelines.pp - 5
    return np.where(pipelines.pp > 2, inner, pipelines.micro_batches + 1)


def dualpipe_v_hops(pipelines: Pipelines) -> FloatArray:
    """DualPipe-V beside compute: twice the steady rounds of DualPipe, (n,)."""
    return 4 * (pipelines.pp - 1) * pipelines.micro_batches / pipelines.pp + 3.0 * pipelines.pp - 7


def dualpipe_v_waiting(pipelines: Pipelines) -> FloatArray:
    """DualPipe-V where ranks wait, (n,)."""
    return 4.0 * pipelines.micro_batches + np.where(pipelines.pp > 2, 3 * pipelines.pp - 12, 2)
