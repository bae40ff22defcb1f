"""Comparing a validation with a committed baseline."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from checks.baseline import TOLERANCE_POINTS, contradictions, figures, grown
from click.testing import CliRunner

from layoutopt.optimizer.evidence.run import Sharding
from layoutopt.optimizer.evidence.validate import validate

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from layoutopt.optimizer.evidence.run import MeasuredRun


@pytest.mark.parametrize(
    ("now", "worse"),
    [
        ({"mape": 5.0, "median": 4.0}, 0),
        ({"mape": 5.0 + TOLERANCE_POINTS, "median": 4.0}, 0),  # at the tolerance
        ({"mape": 5.0 + TOLERANCE_POINTS + 0.01, "median": 4.0}, 1),
        ({"mape": 9.0, "median": 9.0}, 2),
        ({"mape": 1.0, "median": 1.0}, 0),
    ],
)
def test_growth(now: dict[str, float], worse: int) -> None:
    """Errors may shrink, and grow by half a point."""
    assert len(grown({"dense": now}, {"dense": {"mape": 5.0, "median": 4.0}})) == worse


def test_a_family_without_a_baseline_counts() -> None:
    """What nobody has compared is not good."""
    figures = {"mape": 5.0, "median": 4.0}
    assert grown({"dense": figures, "new": figures}, {"dense": figures}) == ["new: not in the baseline"]


def test_a_lost_family_counts_as_grown() -> None:
    """Rows that can no longer be priced don't make a baseline pass."""
    assert len(grown({}, {"dense": {"mape": 5.0, "median": 4.0}})) == 2


def test_figures_are_percent(make_run: Callable[..., MeasuredRun]) -> None:
    """A row measured at half its prediction is 100% off."""
    predicted = validate([make_run()]).results[0].prediction.step_time_s
    report = validate([make_run(measured_step_s=predicted / 2)])
    assert figures(report)["dense 16-bit H100"]["mape"] == pytest.approx(100.0)


def test_memory_contradictions(make_run: Callable[..., MeasuredRun]) -> None:
    """A run that ran but needs more than a GPU has, and one that died though it fits, are named."""
    large = make_run(id="ran", hidden=16384, heads=128, ffn=53248, zero=Sharding(0))
    died = make_run(id="died", oom=True, measured_step_s=None)
    found = contradictions(validate([large, died]))
    assert found == ["ran ran and is judged does_not_fit", "died ran out of memory and is judged fits"]


ROOT = Path(__file__).parents[2]


@pytest.fixture
def check() -> ModuleType:
    """The benchmark that continuous integration runs."""
    spec = importlib.util.spec_from_file_location("check", ROOT / "benchmarks" / "check.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("points", "code"), [(0.0, 0), (0.6, 1)])
def test_the_benchmark_fails_when_a_family_grew(
    check: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, points: float, code: int
) -> None:
    """It passes on the committed baseline, and fails where one family was 0.6 points better in it."""
    baseline = json.loads(check.BASELINE.read_text(encoding="utf-8"))
    baseline["dense A100"]["median"] -= points
    changed = tmp_path / "baseline.json"
    changed.write_text(json.dumps(baseline), encoding="utf-8")
    monkeypatch.setattr(check, "BASELINE", changed)
    result = CliRunner().invoke(check.main, [])
    assert result.exit_code == code
    assert ("dense A100: median" in result.output) == bool(code)


def test_the_benchmark_is_part_of_continuous_integration() -> None:
    """Without it a grown error would pass."""
    assert "benchmarks/check.py" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")
