"""Calibrated clusters as files: read back unchanged, with constants, sources and what they rest on."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from layoutopt.optimizer.evidence.calibration import Calibration, Sourced
from layoutopt.optimizer.evidence.cluster_text import calibrated_cluster_text
from layoutopt.optimizer.evidence.metrics import summarize
from layoutopt.optimizer.specs.loading import load_cluster

if TYPE_CHECKING:
    from pathlib import Path


def calibration(**values: float) -> Calibration:
    """A made-up result."""
    return Calibration(
        values={name: Sourced(value=value, source="made up: by a test") for name, value in values.items()},
        runs=(),
        before=summarize([0.1]),
        after=summarize([0.01]),
        left_out=None,
        trials=(),
        warnings=("made up",),
    )


@pytest.mark.parametrize("name", ["h100-1024", "h100x64", "gb200x144", "a100-40gx16"])
def test_a_cluster_survives(name: str, tmp_path: Path) -> None:
    """Everything but the name and the constants reads back equal."""
    cluster = load_cluster(name)
    text = calibrated_cluster_text(cluster, calibration(time_scale=1.1), name="mine")
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    back = load_cluster(str(path))
    assert back.name == "mine"
    assert back.calibration == {"time_scale": 1.1}
    assert replace(back, name=cluster.name, calibration={}) == cluster


def test_an_own_gpu_is_written_out(tmp_path: Path) -> None:
    """A GPU that differs from the catalog's is written in full."""
    cluster = load_cluster("h100x16")
    own = replace(cluster, gpu=replace(cluster.gpu, hbm_bytes_per_s=3.1e12))
    path = tmp_path / "own.yaml"
    path.write_text(calibrated_cluster_text(own, calibration(time_scale=0.9), name="own"))
    assert load_cluster(str(path)).gpu == own.gpu


def test_older_constants_stay() -> None:
    """A constant that the cluster had stays where the calibration has no new value; the new one is written once."""
    cluster = replace(load_cluster("h100x16"), calibration={"network_fraction": 0.8, "time_scale": 1.3})
    text = calibrated_cluster_text(cluster, calibration(time_scale=1.1), name="own")
    assert "network_fraction: 0.8" in text
    assert text.count("time_scale") == 1
    assert "made up: by a test" in text and "# Warning: made up." in text
