"""How far predictions may be off: the error of a model's family on measured runs, shipped with the package."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from layoutopt.optimizer.evidence.cases import family_of
from layoutopt.optimizer.evidence.predict import TIME_SCALE
from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.specs.document import packaged

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from layoutopt.optimizer.specs.cluster import ClusterSpec
    from layoutopt.optimizer.specs.vocabulary import Precision
    from layoutopt.optimizer.specs.workload import Workload

SHARES = ("50", "80", "95")
"""Percent of runs that intervals are stated for."""

Span = tuple[float, float]
"""A lower and an upper end."""

ALL = "all"
"""Stands in for a family without measured runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """Errors of one family of runs as shares of the measured step time.

    ``rows`` measured runs state everything that decides their price; 0 for a family without any, and where the question is
    ``outside`` what was measured (which of GPU, node size, fabric and frozen parts no run has): figures are then the wider
    ones of the family and of all. ``median_ape``, ``p90_ape`` and ``bias`` are with constants fitted to all
    runs, ``unseen_*`` with the run's own publication left out of the fit: what to expect of a new cluster.
    ``indistinct`` is the relative distance of two predictions from which on nine of ten pairs of layouts are
    expected in the right order. ``ratios`` are measured over predicted between which 50, 80 and 95% of runs of
    publications that the fit had not seen are expected, ``seen_ratios`` those of a cluster that three own runs calibrated.
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
    ratios: Mapping[str, Span]
    seen_ratios: Mapping[str, Span]

    @property
    def kinds(self) -> str:
        """Whose runs the figures are."""
        if self.rows:
            return f"this kind ({self.family})"
        return (
            f"{self.family} or all kinds (the wider)" if self.family in bands()["families"] else "all kinds"
        )

    def intervals_s(self, step_time_s: float, *, calibrated: bool) -> dict[str, Span]:
        """Return the lower and upper step time (seconds) between which 50, 80 and 95% of such runs are expected."""
        return scaled(step_time_s, self.seen_ratios if calibrated else self.ratios)


def scaled(value: float, ratios: Mapping[str, Span]) -> dict[str, Span]:
    """Return the intervals around a predicted value: it times measured over predicted."""
    return {name: (low * value, high * value) for name, (low, high) in ratios.items()}


def error_band(
    workload: Workload,
    cluster: ClusterSpec,
    precision: Precision,
    *,
    framework: Framework = Framework.ANY,
) -> Band:
    """Return the error band of the family that a workload on a cluster belongs to.

    Parameters
    ----------
    workload
        Dense and mixture-of-experts models are families of their own; parts that are not trained are in no measured run.
    cluster
        Its GPU's generation decides the family of a dense model.
    precision
        8-bit training on Hopper is a family of its own.
    framework
        nanotron's runs are a family of their own.
    """
    model = workload.model
    family = family_of(model, cluster.gpu, precision, framework).value
    families: Mapping[str, Mapping[str, float]] = bands()["families"]
    outside = "models with frozen parts" if workload.training.frozen else unmeasured(cluster)
    # A family's runs say nothing of a GPU or fabric that none of them had, so that their figures would be a boast there;
    # those of all rows would be one of a family that is predicted worse than the rest, as experts are.
    named = [family] if family in families else []
    names = named if named and not outside else [ALL, *named]
    return Band(
        family=family,
        outside=outside,
        rows=int(families[family]["rows"]) if names == [family] else 0,
        median_ape=_largest("median_ape", names),
        p90_ape=_largest("p90_ape", names),
        bias=_largest("bias", names),
        unseen_median_ape=_largest("unseen_median_ape", names),
        unseen_p90_ape=_largest("unseen_p90_ape", names),
        indistinct=bands()["indistinct"]["moe" if model.is_moe else "dense"],
        ratios=_widest("step", names, "unseen"),
        seen_ratios=_widest("step", names, "seen"),
    )


def calibrated_by_runs(cluster: ClusterSpec) -> bool:
    """Tell whether own runs stand behind a cluster's constants: what is stated or benchmarked alone tells no step."""
    return any(one.shares for one in cluster.observations) or TIME_SCALE in cluster.calibration


def memory_ratios(framework: Framework) -> dict[str, Span]:
    """Return measured over predicted peak memory between which 50, 80 and 95% of a trainer's runs lie.

    A trainer without a run that reports its memory has the figures of all.
    """
    name = framework.value if framework.value in intervals()["memory"] else ALL
    return _widest("memory", [name], "unseen")


def _largest(error: str, names: Sequence[str]) -> float:
    """Return the error of the families named that is furthest from 0."""
    return max((float(bands()["families"][name][error]) for name in names), key=abs)


def _widest(quantity: str, names: Sequence[str], kind: str) -> dict[str, Span]:
    """Return the spans that hold those of every family named."""
    tables: list[Mapping[str, Span]] = [intervals()[quantity][name][kind] for name in names]
    return {
        share: (min(table[share][0] for table in tables), max(table[share][1] for table in tables))
        for share in tables[0]
    }


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
    # Node size decides which traffic leaves the node, the fabric what it meets there: either may be new beside known chips.
    if cluster.gpus_per_node not in {run["gpus_per_node"] for run in own}:
        return f"nodes of {cluster.gpus_per_node} {cluster.gpu.name}"
    generation = cluster.gpu.generation.name
    fabrics = {run["fabric"] for run in runs if run["generation"] == generation}
    return "" if cluster.fabric.value in fabrics else f"{cluster.fabric.value} between {generation} GPUs"


def bands() -> Mapping[str, Any]:
    """Read the package's table: families, indistinct distances, spread of constants."""
    table: Mapping[str, Any] = packaged("evidence", "bands")
    return table


def intervals() -> Mapping[str, Any]:
    """Read the package's table of measured over predicted: step times by family, memory by trainer."""
    table: Mapping[str, Any] = packaged("evidence", "intervals")
    return table
