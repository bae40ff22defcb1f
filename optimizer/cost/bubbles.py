"""Idle time of pipeline schedules with even stages, in closed form.

Each function returns the step's length beyond m times the time of a rank, in seconds, for ``n`` pipelines.
None grows with m. Where backwards are split, the length of the step is the longest of several chains of
operations: the formula is the maximum over those chains, a linear form in the times of forward, dgrad and
wgrad. The chains were read off the critical paths of the schedules' own operation orders; tests compare them
with the event simulation over pp, m and ratios of the three times, and they agree exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipelines:
    """``n`` pipelines: ranks, chunks per rank, micro-batches and Megatron-LM's microbatch group size, (n,).

    Whole numbers, kept as floats because everything computed from them is.
    """

    pp: FloatArray
    vp: FloatArray
    micro_batches: FloatArray
    group: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitTimes:
    """Seconds of one micro-batch on one rank, each (n,). ``pair_s``: a forward and a whole backward run
    together.
    """

    forward_s: FloatArray
    dgrad_s: FloatArray
    wgrad_s: FloatArray
    pair_s: FloatArray

    @property
    def apart_s(self) -> FloatArray:
        """A forward and a whole backward one after the other."""
        return self.forward_s + self.dgrad_s + self.wgrad_s


def no_bubble(pipelines: Pipelines, times: UnitTimes) -> FloatArray:
    """One rank: never idle."""
    return np.zeros(len(pipelines.pp))


def one_f_one_b(pipelines: Pipelines, times: UnitTimes) -> FloatArray:
    """1F1B and GPipe (Narayanan et al. 2021, arXiv:2104.04473, section 2.2.1): (pp-1) micro-batches."""
    return (pipelines.pp - 1) * times.apart_s


def interleaved(pipelines: Pipelines, times: UnitTimes) -> FloatArray:
    """Interleaved 1F1B (same paper, section 2.2.2): (pp-1)/vp micro-batches, for every group size from pp to
    m.

    With fewer micro-batches than ranks (PyTorch allows it) each chunk also waits for the last rank: (pp-m)
    more.
    """
    few = np.minimum(pipelines.micro_batches, pipelines.pp)
    return (pipelines.pp - few + (few - 1) / pipelines.vp) * times.apart_s


def zb_h1(pipelines: Pipelines, times: UnitTimes) -> FloatArray:
    """ZB-H1: (pp-1) * max(F, D, F+D-W) once m >= pp.

    F+D-W is the handcrafted schedule's figure (Qi et al. 2024, arXiv:2401.10241, table 1, where B means D);
    with W > F or W > D the delayed weight gradients no longer fill the gap and F or D remains.
    """
    f, d, w = times.forward_s, times.dgrad_s, times.wgrad_s
    q, missing = pipelines.pp - 1, np.maximum(pipelines.pp - pipelines.micro_batches, 0)
    return _longest(q * (f + d) - (q - missing) * w, missing * f + q * d, q * f + missing * d)


def zb_v(pipelines: Pipelines, times: UnitTimes) -> FloatArray:
    """ZB-V in PyTorch's order (``ScheduleZBVZeroBubble``), from a step's first operation to its last.

    The paper's zero (Qi et al. 2024, section 6) counts each rank from its own first operation; a step that
    ends with a global gradient norm waits for all ranks, so even F = D = W leave (pp-1) forwards of a chunk.
    """
    enough = _zb_v_many(pipelines, times)
    return np.where(pipelines.micro_batches > pipelines.pp, enough, _zb_v_few(pipelines, times))


def _zb_v_few(pipelines: Pipelines, times: UnitTimes) -> FloatArray:
    """ZB-V with m <= pp."""
    f, d, w = times.forward_s / 2, times.dgrad_s / 2, times.wgrad_s / 2
    q, missing, more = pipelines.pp - 1, pipelines.pp - pipelines.micro_batches, pipelines.micro_batches - 1
    return _longest(
        2 * missing * f + 2 * q * d,
        (q + missing) * (f + d),
        2 * q * f + 2 * missing * d - 2 * more * w,
    )


def _zb_v_many(pipelines: Pipelines, times: UnitTimes) -> FloatArray:
    """ZB-V with m > pp; nothing changes any more from m = 2*pp-1 on."""
    f, d, w = times.forward_s / 2, times.dgrad_s / 2, times.wgrad_s / 2
    q = pipelines.pp - 1
    j = np.clip(pipelines.micro_batches - pipelines.pp, 0, q)
    rest = q - j
    return _longest(
        2 * q * d - 2 * j * w,
        2 * q * f - (2 * q + 1) * w,
        (rest + 1) * d + (j - 1) * w,
        (rest + 1) * f + (j - 1) * w,
        (q + rest) * d - rest * w,
        2 * rest * d,
        rest * (f + d),
        (q + j) * f + (rest - j) * d - np.minimum(j, rest + 1) * w,
        (q + j - 1) * f - (j - 1) * d,
        (q + j - 1) * f + (rest - j + 1) * d - rest * w,
        (q + j - 1) * f + (rest + 1) * d - 2 * j * w,
        (q + j) * f + rest * d - (2 * j + 1) * w,
    )


def dualpipe(pipelines: Pipelines, times: UnitTimes) -> FloatArray:
    """DualPipe: ranks meet in the middle, so half of them decide (``_dual`` in times of a stage)."""
    return _dual(pipelines.pp / 2, times)


def dualpipe_v(pipelines: Pipelines, times: UnitTimes) -> FloatArray:
    """DualPipeV: ``_dual`` over all ranks, in times of a chunk, half of a rank's."""
    return _dual(pipelines.pp, times) / 2


def _dual(ranks: FloatArray, times: UnitTimes) -> FloatArray:
    """Bubble of the eight steps that DualPipe and DualPipeV share, m >= 2 * pp, relative to m pairs.

    With q = ranks-1 and pairs that hide nothing it is max(q(F+2D-W) - F, q(2F+D-W), 2qF, q(F+D) - F); the
    published (pp/2-1)(F&B + B - 3W) (DualPipe README, B = D + W) is the first of them without the last F,
    hence exact for F = D = W. Forwards and backwards outside pairs hide nothing, so hidden communication
    lengthens the bubble.
    """
    f, d, w, pair = times.forward_s, times.dgrad_s, times.wgrad_s, times.pair_s
    q, whole = ranks - 1, times.apart_s
    saved = whole - pair
    bare = (
        q * (f + 2 * d - w) - f,
        q * (2 * f + d - w),
        2 * q * f,
        q * (f + d) - f,
    )
    # Chains through the last rank, which runs the fewest operations outside pairs, and those that leave it.
    through = _longest(*bare) + (q + 3) * saved
    aside = _longest(q * (2 * d - w - f) - f, q * (d - w), np.zeros_like(f), q * (d - f) - f)
    away = _longest(q * (d - f - w), -q * f)
    return _longest(
        through, aside + (3 * q + 3) * saved, np.where(q > 0, away + (4 * q + 2) * saved, through)
    )


def _longest(*chains: FloatArray) -> FloatArray:
    return reduce(np.maximum, chains)
