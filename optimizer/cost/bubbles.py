"""Idle time of pipeline schedules with even stages, in closed form.

The length of a step beyond m times the time of a rank is the longest of several chains of operations, each a
linear form in the times of forward, dgrad and wgrad. None grows with m. The chains were read off the critical
paths of the schedules' own operation orders; tests compare them with the event simulation over pp, m and
ratios of the three times, and they agree exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    FloatArray = NDArray[np.float64]
    Counts = tuple[FloatArray, FloatArray, FloatArray]


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
    """Seconds of one micro-batch on one rank, each (n,).

    ``hidden_s`` of forward and dgrad is saved where a forward and a whole backward run together.
    """

    forward_s: FloatArray
    dgrad_s: FloatArray
    wgrad_s: FloatArray
    hidden_s: FloatArray

    @property
    def apart_s(self) -> FloatArray:
        """A forward and a whole backward one after the other, (n,)."""
        return self.forward_s + self.dgrad_s + self.wgrad_s


@dataclass(frozen=True, slots=True)
class Chain:
    """How often each time occurs in one chain, (n,) each, beyond those in m times the time of a rank."""

    forward: FloatArray
    dgrad: FloatArray
    wgrad: FloatArray
    hidden: FloatArray | float = 0.0

    def seconds(self, times: UnitTimes) -> FloatArray:
        """Return the chain's length, (n,)."""
        compute = self.forward * times.forward_s + self.dgrad * times.dgrad_s + self.wgrad * times.wgrad_s
        return compute + self.hidden * times.hidden_s

    def least_share(self, times: UnitTimes) -> FloatArray:
        """Return a floor under the chain over a rank's time, (n,), however much longer forward and dgrad get.

        ``times`` hold the least of each, hidden time apart. What makes a forward longer adds ``forward`` times
        that to the chain and once to the rank, so that the quotient is a mean of the quotient now and of the
        two counts; hidden time only lengthens the chain.
        """
        # Hidden time is in forward or in dgrad, unknown in which: the rarer of both is safe.
        hidden = (np.minimum(self.forward, self.dgrad) + self.hidden) * times.hidden_s
        compute = self.forward * times.forward_s + self.dgrad * times.dgrad_s + self.wgrad * times.wgrad_s
        rank = times.apart_s
        # A rank without compute (an ideal model of one kind) has no share to bound.
        now = np.divide(compute + hidden, rank, out=np.zeros_like(rank), where=rank > 0)
        return np.minimum(now, np.minimum(self.forward, self.dgrad))


def longest_s(chains: Sequence[Chain], times: UnitTimes) -> FloatArray:
    """Return the seconds of the longest chain, (n,)."""
    return reduce(np.maximum, (chain.seconds(times) for chain in chains))


def least_share(chains: Sequence[Chain], times: UnitTimes) -> FloatArray:
    """Return a floor under the longest chain over a rank's time, (n,), see ``Chain.least_share``."""
    return np.maximum(reduce(np.maximum, (chain.least_share(times) for chain in chains)), 0.0)


def no_bubble(pipelines: Pipelines) -> list[Chain]:
    """One rank: never idle."""
    return [_whole(np.zeros(len(pipelines.pp)))]


def one_f_one_b(pipelines: Pipelines) -> list[Chain]:
    """1F1B and GPipe (Narayanan et al. 2021, arXiv:2104.04473, section 2.2.1): (pp-1) micro-batches."""
    return [_whole(pipelines.pp - 1)]


def interleaved(pipelines: Pipelines) -> list[Chain]:
    """Interleaved 1F1B (same paper, section 2.2.2): (pp-1)/vp micro-batches, for every group size from pp to
    m.

    With fewer micro-batches than ranks (PyTorch allows it) each chunk also waits for the last rank: (pp-m)
    more.
    """
    few = np.minimum(pipelines.micro_batches, pipelines.pp)
    return [_whole(pipelines.pp - few + (few - 1) / pipelines.vp)]


def _whole(count: FloatArray) -> Chain:
    return Chain(count, count, count)


def zb_h1(pipelines: Pipelines) -> list[Chain]:
    """ZB-H1: (pp-1) * max(F, D, F+D-W) once m >= pp.

    F+D-W is the handcrafted schedule's figure (Qi et al. 2024, arXiv:2401.10241, table 1, where B means D);
    with W > F or W > D the delayed weight gradients no longer fill the gap and F or D remains.
    """
    q, missing = pipelines.pp - 1, np.maximum(pipelines.pp - pipelines.micro_batches, 0.0)
    none = np.zeros_like(q)
    return [Chain(q, q, missing - q), Chain(missing, q, none), Chain(q, missing, none)]


def zb_v(pipelines: Pipelines) -> list[Chain]:
    """ZB-V in PyTorch's order (``ScheduleZBVZeroBubble``), from a step's first operation to its last.

    The paper's zero (Qi et al. 2024, section 6) counts each rank from its own first operation; a step that
    ends with a global gradient norm waits for all ranks, so even F = D = W leave (pp-1) forwards of a chunk.
    """
    many = pipelines.micro_batches > pipelines.pp
    enough, few = _zb_v_many(pipelines), _zb_v_few(pipelines)
    # Repeated so that both lists pair up: the same chain once more changes no maximum.
    few += few[:1] * (len(enough) - len(few))
    # Times of a chunk are half a rank's.
    return [
        Chain(*(np.where(many, a, b) / 2 for a, b in zip(one, other, strict=True)))
        for one, other in zip(enough, few, strict=True)
    ]


def _zb_v_few(pipelines: Pipelines) -> list[Counts]:
    """ZB-V with m <= pp."""
    q, missing, more = (
        pipelines.pp - 1,
        pipelines.pp - pipelines.micro_batches,
        pipelines.micro_batches - 1,
    )
    none = np.zeros_like(q)
    return [
        (2 * missing, 2 * q, none),
        (q + missing, q + missing, none),
        (2 * q, 2 * missing, -2 * more),
    ]


def _zb_v_many(pipelines: Pipelines) -> list[Counts]:
    """ZB-V with m > pp; nothing changes any more from m = 2*pp-1 on."""
    q = pipelines.pp - 1
    # Beyond 2 pp - 1 micro-batches fill and drain no longer meet, and no chain grows.
    j = np.clip(pipelines.micro_batches - pipelines.pp, 0, q)
    rest, none = q - j, np.zeros_like(q)
    return [
        (none, 2 * q, -2 * j),
        (2 * q, none, -(2 * q + 1)),
        (none, rest + 1, j - 1),
        (rest + 1, none, j - 1),
        (none, q + rest, -rest),
        (none, 2 * rest, none),
        (rest, rest, none),
        (q + j, rest - j, -np.minimum(j, rest + 1)),
        (q + j - 1, -(j - 1), none),
        (q + j - 1, rest - j + 1, -rest),
        (q + j - 1, rest + 1, -2 * j),
        (q + j, rest, -(2 * j + 1)),
    ]


def dualpipe(pipelines: Pipelines) -> list[Chain]:
    """DualPipe: ranks meet in the middle, so half of them decide (``_dual`` in times of a stage)."""
    return _dual(pipelines.pp / 2, 1.0)


def dualpipe_v(pipelines: Pipelines) -> list[Chain]:
    """DualPipeV: ``_dual`` over all ranks, in times of a chunk, half of a rank's."""
    return _dual(pipelines.pp, 0.5)


def _dual(ranks: FloatArray, unit: float) -> list[Chain]:
    """Bubble of the eight steps that DualPipe and DualPipeV share, m >= 2 * pp, relative to m pairs.

    With q = ranks-1 and pairs that hide nothing it is max(q(F+2D-W) - F, q(2F+D-W), 2qF, q(F+D) - F); the
    published (pp/2-1)(F&B + B - 3W) (DualPipe README, B = D + W) is the first of them without the last F,
    hence exact for F = D = W. Forwards and backwards outside pairs hide nothing, so hidden communication
    lengthens the bubble.
    """
    q, none = ranks - 1, np.zeros_like(ranks)
    # Chains through the last rank, which runs the fewest operations outside pairs, and those that leave it.
    through = [(q - 1, 2 * q, -q), (2 * q, q, -q), (2 * q, none, none), (q - 1, q, none)]
    aside = [(-q - 1, 2 * q, -q), (none, q, -q), (none, none, none), (-q - 1, q, none)]
    away = [(-q, q, -q), (-q, none, none)]
    chains = [(counts, q + 3) for counts in through] + [(counts, 3 * q + 3) for counts in aside]
    chains += [(counts, np.where(q > 0, 4 * q + 2, q + 3)) for counts in away]
    return [
        Chain(unit * forward, unit * dgrad, unit * wgrad, unit * hidden)
        for (forward, dgrad, wgrad), hidden in chains
    ]
