"""Waiting for the slowest GPU: what a job loses because its GPUs are not equally fast, growing with their number.

Parts of one kind differ in speed for good (silicon, cooling, memory). Every collective over the job waits for its slowest
rank, so a step runs at the speed of the slowest of ``n`` GPUs: the expected maximum of ``n`` normal draws. Constants are
measured on whole nodes, whose slowest GPU they contain, so a job of one node waits no longer.
"""

from __future__ import annotations

from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    FloatArray = NDArray[np.float64]
    IntArray = NDArray[np.int64]

_BLOM = 0.375
"""Plotting position of expected normal order statistics (Blom 1958): within 0.7% for the maximum of 8 and more."""


def expected_maximum(count: int) -> float:
    """Return the expected maximum of ``count`` >= 1 standard normal draws."""
    return NormalDist().inv_cdf((count - _BLOM) / (count - 2 * _BLOM + 1)) if count > 1 else 0.0


def slowest_share(gpus: IntArray, node_gpus: int, spread: float) -> FloatArray:
    """Return which share of its compute time a job of ``gpus`` GPUs, (n,), waits for its slowest one.

    ``spread`` is the standard deviation of GPUs' speeds over their mean. 0 within ``node_gpus`` GPUs.
    """
    sizes, inverse = np.unique(gpus, return_inverse=True)
    # The constants' own kernels ran on a node, and waited for its slowest GPU already.
    here = expected_maximum(node_gpus)
    shares = np.array([max(expected_maximum(int(size)) - here, 0.0) for size in sizes])
    return np.asarray(spread * shares[inverse].reshape(np.shape(gpus)))
