"""How far measured peaks of memory were above predicted ones, and the room that a chance of running out asks for."""

from __future__ import annotations

from functools import cache
from importlib import resources
from math import ceil
from statistics import NormalDist, fmean, stdev

from layoutopt.optimizer.specs.document import plain_yaml
from layoutopt.optimizer.specs.errors import input_error

LEAST_RISK = 1e-6
"""Smaller chances are not told apart by some tens of runs."""


@cache
def peak_ratios() -> tuple[float, ...]:
    """Return measured over predicted peaks of allocated memory, in order, of runs that state all that decides them."""
    text = (
        resources.files("layoutopt.optimizer.evidence")
        .joinpath("peak_ratios.yaml")
        .read_text(encoding="utf-8")
    )
    return tuple(sorted(map(float, plain_yaml(text)["ratios"])))


def reserve_of_risk(risk: float) -> float:
    """Return the share of usable memory to leave free for a chance of at most ``risk`` of running out of it.

    The measured peak is above the predicted one by no more than the order statistic that leaves so much of n + 1 equally
    likely places above it, and by no more than a normal error of their mean and spread: the larger of the two counts.
    Raises ``InputError`` for a risk below ``LEAST_RISK`` or not below 1.
    """
    if not LEAST_RISK <= risk < 1:
        raise input_error(
            f"{risk:.3g} is no chance", f"{LEAST_RISK:g} up to below 1, e.g. 1%", key="oom_risk"
        )
    ratios = peak_ratios()
    place = min(max(ceil((len(ratios) + 1) * (1 - risk)), 1), len(ratios))
    normal = NormalDist(fmean(ratios), stdev(ratios)).inv_cdf(1 - risk)
    return max(1 - 1 / max(ratios[place - 1], normal), 0.0)
