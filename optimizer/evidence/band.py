"""How far predictions may be off: the error of a model's family on measured runs, shipped with the package."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from layoutopt.optimizer.evidence.cases import family_of
from layoutopt.optimizer.frameworks.registry import Framework

if TYPE_CHECKING:
    from collections.abc import Mapping

    from layoutopt.optimizer.specs.cluster import ClusterSpec
    from layoutopt.optimizer.specs.model import ModelSpec
    from layoutopt.optimizer.specs.vocabulary import Precision

NINE_TENTHS = 1.645
"""Standard deviations within which nine tenths of normal errors lie."""

SHARES = {"50": 0.674, "80": 1.282, "95": 1.960}
"""Standard deviations within which these percent of normal errors lie."""

ALL = "all"
"""Stands in for a family without measured runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """Errors of one family of runs as shares of the measured step time.

    ``rows`` measured runs state everything that decides their price; 0 for a family without any, and where the cluster
    is ``outside`` what was measured (which of GPU, node size and fabric no run has): figures are then those of all
    families. ``median_ape``, ``p90_ape`` and ``bias`` are with constants fitted to all
    runs, ``unseen_*`` with the run's own publication left out of the fit: what to expect of a new cluster.
    ``indistinct`` is the relative distance of two predictions from which on nine of ten pairs of layouts are
    expected in the right order.
    """

    family: str
    outside: str = ""
    rows: int
    median_ape: float
    p90_ape: float
    bias: float
    unseen_median_ape: float
    unseen_p90_ape: float
    indistinct: float

    def deviation(self, *, calibrated: bool) -> float:
        """Return the standard deviation of a normal error whose nine tenths lie within the band.

        A cluster calibrated with own runs is one that the fit has seen.
        """
        return (self.p90_ape if calibrated else self.unseen_p90_ape) / NINE_TENTHS

    def intervals_s(self, step_time_s: float, *, calibrated: bool) -> dict[str, tuple[float, float]]:
        """Return the lower and upper step time (seconds) between which 50, 80 and 95% of such runs are expected."""
        spread = self.deviation(calibrated=calibrated)
        return {
            name: (step_time_s * max(1 - width * spread, 0.0), step_time_s * (1 + width * spread))
            for name, width in SHARES.items()
        }


def error_band(
    model: ModelSpec, cluster: ClusterSpec, precision: Precision, *, framework: Framework = Framework.ANY
) -> Band:
    """Return the error band of the family that a model on a cluster belongs to.

    Parameters
    ----------
    model
        Dense and mixture-of-experts models are families of their own.
    cluster
        Its GPU's generation decides the family of a dense model.
    precision
        8-bit training on Hopper is a family of its own.
    framework
        nanotron's runs are a family of their own.
    """
    family = family_of(model, cluster.gpu, precision, framework).value
    families: Mapping[str, Mapping[str, float]] = bands()["families"]
    outside = unmeasured(cluster)
    known = family in families and not outside
    entry = families[family] if known else families[ALL]
    return Band(
        family=family,
        outside=outside,
        rows=int(entry["rows"]) if known else 0,
        median_ape=entry["median_ape"],
        p90_ape=entry["p90_ape"],
        bias=entry["bias"],
        unseen_median_ape=entry["unseen_median_ape"],
        unseen_p90_ape=entry["unseen_p90_ape"],
        indistinct=bands()["indistinct"]["moe" if model.is_moe else "dense"],
    )


def unmeasured(cluster: ClusterSpec) -> str:
    """Name what of a cluster no measured run has: its GPU, nodes of this size of it, its fabric with GPUs of its kind.

    Empty where all was measured. A job inside one node needs neither node size nor fabric.
    """
    runs = bands()["measured"]
    own = [run for run in runs if run["gpu"] == cluster.gpu.name]
    if not own:
        return f"GPU {cluster.gpu.name}"
    if cluster.gpu_count <= cluster.gpus_per_node:
        return ""
    if cluster.gpus_per_node not in {run["gpus_per_node"] for run in own}:
        return f"nodes of {cluster.gpus_per_node} {cluster.gpu.name}"
    generation = cluster.gpu.generation.name
    fabrics = {run["fabric"] for run in runs if run["generation"] == generation}
    return "" if cluster.fabric.value in fabrics else f"{cluster.fabric.value} between {generation} GPUs"


@cache
def bands() -> Mapping[str, Any]:
    """Read the package's table: families, indistinct distances, spread of constants."""
    import yaml

    text = resources.files("layoutopt.optimizer.evidence").joinpath("bands.yaml").read_text(encoding="utf-8")
    table: Mapping[str, Any] = yaml.safe_load(text)
    return table
