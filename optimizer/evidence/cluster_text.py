"""A calibrated cluster as a file: the whole cluster in plain units, its constants with their sources, what they rest on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutopt.optimizer.evidence.observed import under_new_constants
from layoutopt.optimizer.specs.cluster_text import cluster_mapping, dump, observations_mapping

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from layoutopt.optimizer.evidence.calibration import Calibration, Sourced
    from layoutopt.optimizer.specs.cluster import ClusterSpec, Observation


CALIBRATED = "-calibrated"


def calibrated_name(cluster: ClusterSpec) -> str:
    """Name a calibrated cluster after its own; one that was calibrated before keeps its name."""
    return f"{cluster.name.removesuffix(CALIBRATED)}{CALIBRATED}"


def calibrated_cluster_text(cluster: ClusterSpec, calibration: Calibration, *, name: str) -> str:
    """Write a cluster file with the calibration's constants.

    Parameters
    ----------
    cluster
        The cluster that was calibrated; constants it had already stay where the calibration has no new value.
    calibration
        What was found.
    name
        The cluster's name in reports.
    """
    lines = provenance_lines(calibration)
    return cluster_text(cluster, calibration.values, lines, calibration.observations, name=name)


def cluster_text(
    cluster: ClusterSpec,
    values: Mapping[str, Sourced],
    lines: Iterable[str],
    observations: Sequence[Observation],
    *,
    name: str,
) -> str:
    """Write a cluster file with constants, what was observed with them and, in comments, what they rest on."""
    data = {"name": name, **cluster_mapping(cluster)}
    # In one mapping with what the cluster stated before: a file that calibrate wrote can be calibrated again.
    kept = {key: value for key, value in cluster.calibration.items() if key not in values}
    stated = {key: {"value": entry.value, "source": entry.source} for key, entry in sorted(values.items())}
    data["calibration"] = {**kept, **stated}
    numbers = {key: entry.value for key, entry in values.items()}
    data |= observations_mapping(under_new_constants(cluster, numbers, observations))
    return "\n".join([*(f"# {line}" for line in lines), dump(data)])


def provenance_lines(calibration: Calibration) -> list[str]:
    """Say in plain lines which runs a calibration rests on, how far off it is, and what else was tried."""
    before, after, left_out = calibration.before, calibration.after, calibration.left_out
    lines = [
        f"Calibrated with {len(calibration.runs)} own runs: predictions were {_percent(before.mape)} off in the mean "
        f"and are {_percent(after.mape)} off"
        + ("." if left_out is None else f"; each run predicted from the others: {_percent(left_out)}.")
    ]
    lines += [
        f"  {run.case.run.id}: {run.measured_s:.4g} s measured, {run.before_s:.4g} s before, {run.after_s:.4g} s after"
        + (f", weight {run.weight:.2f}" if run.weight < 1 else "")
        for run in calibration.runs
    ]
    lines += [
        f"Tried {trial.name} = {trial.value:.4g}: left-out runs {_percent(trial.left_out_with)} off instead of "
        f"{_percent(trial.left_out_without)}, {'taken' if trial.accepted else 'not taken'}."
        for trial in calibration.trials
    ]
    return lines + [f"Warning: {warning}." for warning in calibration.warnings]


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f}%"
