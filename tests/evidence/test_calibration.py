"""Calibration with own runs: scale found, outliers named, constants only with support, nonsense refused."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from checks.experiment import calibration_gain
from rich.console import Console

from layoutopt.optimizer.evidence.calibrate import calibrate
from layoutopt.optimizer.evidence.calibration import Sourced
from layoutopt.optimizer.evidence.case import Case
from layoutopt.optimizer.evidence.cases import build_case
from layoutopt.optimizer.evidence.parameters import check_values
from layoutopt.optimizer.evidence.predict import predict
from layoutopt.optimizer.report.tables.term_calibration import calibration_tables
from layoutopt.optimizer.specs.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from layoutopt.optimizer.evidence.run import MeasuredRun

LAYOUTS: tuple[dict[str, Any], ...] = (
    {"tp": 1, "pp": 1, "dp": 32},
    {"tp": 2, "pp": 1, "dp": 16},
    {"tp": 4, "pp": 1, "dp": 8},
    {"tp": 8, "pp": 1, "dp": 4},
    {"tp": 1, "pp": 2, "dp": 16},
    {"tp": 2, "pp": 2, "dp": 8},
    {"tp": 4, "pp": 2, "dp": 4},
    {"tp": 8, "pp": 2, "dp": 2},
    {"tp": 8, "pp": 4, "dp": 1},
    {"tp": 4, "pp": 4, "dp": 2},
)


@pytest.fixture
def cases(make_run: Callable[..., MeasuredRun]) -> list[Case]:
    """Ten layouts on one cluster, still without a measured time of their own."""
    rows = [make_run(id=f"run-{index}", group="g", **layout) for index, layout in enumerate(LAYOUTS)]
    return [case for row in rows if isinstance(case := build_case(row), Case)]


def measured(
    cases: Sequence[Case], factors: Sequence[float], truth: Mapping[str, float] | None = None
) -> list[Case]:
    """Give cases the times that the model with other constants predicts, times a factor each."""
    return [
        replace(case, run=replace(case.run, measured_step_s=factor * predict(case, truth).step_time_s))
        for case, factor in zip(cases, factors, strict=False)
    ]


def test_the_scale_is_found(cases: list[Case]) -> None:
    """Three runs that are all 20% slow give a scale of 1.2, no further constant, and no error after."""
    own = measured(cases[:3], [1.2] * 3)
    result = calibrate(own, own[0].cluster)
    assert result.constants == pytest.approx({"time_scale": 1.2})
    assert result.before.mape == pytest.approx(1 - 1 / 1.2)
    assert result.after.mape == pytest.approx(0, abs=1e-9)
    assert result.warnings == ()
    assert predict(
        replace(own[0], cluster=replace(own[0].cluster, calibration=result.constants))
    ).step_time_s == (pytest.approx(own[0].measured_s))


def test_a_present_calibration_is_the_start(cases: list[Case]) -> None:
    """Calibrating a calibrated cluster changes its scale by what is still missing."""
    own = measured(cases[:3], [1.2] * 3)
    cluster = replace(own[0].cluster, calibration={"time_scale": 1.1, "network_fraction.infiniband": 0.8})
    result = calibrate([replace(case, cluster=cluster) for case in own], cluster)
    assert result.constants["time_scale"] == pytest.approx(1.2, rel=0.02)


def test_one_bad_run_is_named_and_counts_less(cases: list[Case]) -> None:
    """An outlier moves the scale of four others by little and is named with its factor."""
    own = measured(cases[:5], [1.2, 1.2, 1.21, 1.19, 2.4])
    result = calibrate(own, own[0].cluster)
    assert result.constants["time_scale"] == pytest.approx(1.2, rel=0.05)
    assert [run.case.run.id for run in result.runs if run.outlier] == ["run-4"]
    assert result.runs[4].weight < 0.3
    assert any("'run-4'" in warning for warning in result.warnings)


def test_one_and_two_runs_warn(cases: list[Case]) -> None:
    """One run cannot be judged; two that disagree cannot say which is off."""
    single = calibrate(own := measured(cases[:1], [1.3]), own[0].cluster)
    assert single.constants["time_scale"] == pytest.approx(1.3)
    assert single.left_out is None
    assert "single run" in single.warnings[0]
    pair = calibrate(own := measured(cases[:2], [1.0, 1.5]), own[0].cluster)
    assert "disagree by a factor of 1.50" in pair.warnings[0]


def test_a_constant_is_taken_where_runs_support_it(cases: list[Case]) -> None:
    """A slow host shows in ten layouts of different tensor degrees and is not folded into the scale."""
    truth = {"host_layer_s.megatron": 0.0016}
    own = measured(cases, [1.0] * 10, truth)
    result = calibrate(own, own[0].cluster)
    accepted = [trial.name for trial in result.trials if trial.accepted]
    assert accepted[0] == "host_layer_s.megatron"
    assert result.values["host_layer_s.megatron"].value == pytest.approx(0.0016, rel=0.2)
    assert result.after.mape is not None and result.before.mape is not None
    assert result.after.mape < result.before.mape / 2


def test_noise_supports_no_constant(cases: list[Case]) -> None:
    """Ten runs with 3% of noise give a scale alone: left-out runs gain nothing from more."""
    draw = random.Random(7)
    own = measured(cases, [1.1 * math.exp(draw.gauss(0, 0.03)) for _ in cases])
    result = calibrate(own, own[0].cluster)
    assert set(result.constants) == {"time_scale"}
    assert result.trials and not any(trial.accepted for trial in result.trials)


def test_given_constants_are_kept_and_sourced(cases: list[Case]) -> None:
    """Values measured by collective benchmarks are taken as they are and not fitted again."""
    given = {
        "network_fraction.infiniband": Sourced(value=0.8, source="nccl-tests all_reduce_perf on 4 nodes")
    }
    own = measured(cases, [1.0] * 10, {"network_fraction.infiniband": 0.8})
    result = calibrate(own, own[0].cluster, given=given)
    assert result.values["network_fraction.infiniband"] == given["network_fraction.infiniband"]
    assert result.constants["time_scale"] == pytest.approx(1.0, abs=1e-6)
    assert "network_fraction.infiniband" not in [trial.name for trial in result.trials]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (-0.5, "network_fraction.infiniband = -0.5"),
        (math.nan, "network_fraction.infiniband = nan"),
        (math.inf, "network_fraction.infiniband = inf"),
        (7.0, "network_fraction.infiniband = 7"),
    ],
)
def test_impossible_constants_are_refused(cases: list[Case], value: float, message: str) -> None:
    """Negative, infinite and physically impossible values are errors that state the range."""
    own = measured(cases[:3], [1.0] * 3)
    with pytest.raises(InputError, match=message):
        calibrate(
            own, own[0].cluster, given={"network_fraction.infiniband": Sourced(value=value, source="x")}
        )


def test_unknown_constants_are_refused() -> None:
    """A misspelt name is an error."""
    with pytest.raises(InputError, match="unknown constant 'bandwith'"):
        check_values({"bandwith": 1.0})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"gpu": "A100-80G-SXM"}, "ran on a100-80g, the cluster has h100"),
        ({"internode_gbps": 800.0}, "ran with 800 Gbit/s per node, the cluster has 3200"),
        ({"gpus_per_node": 4}, "ran on nodes of 4 GPUs, the cluster's have 8"),
    ],
)
def test_runs_of_another_cluster_are_refused(
    make_run: Callable[..., MeasuredRun], cases: list[Case], change: dict[str, Any], message: str
) -> None:
    """A run that was not made on this cluster says nothing about it."""
    other = build_case(make_run(**change))
    assert isinstance(other, Case)
    with pytest.raises(InputError, match=message):
        calibrate([other], cases[0].cluster)


def test_runs_far_off_are_refused(cases: list[Case]) -> None:
    """A factor of five is a wrong unit or a wrong GPU, not a constant."""
    own = measured(cases[:4], [5.0] * 4)
    with pytest.raises(InputError, match="took 5 times the predicted step time"):
        calibrate(own, own[0].cluster)


def test_too_many_or_no_runs_are_refused(cases: list[Case]) -> None:
    """Calibration is for 1 to 20 timed runs."""
    with pytest.raises(InputError, match="no run with a step time"):
        calibrate([], cases[0].cluster)
    with pytest.raises(InputError, match="30 runs"):
        calibrate(measured(cases, [1.0] * 10) * 3, cases[0].cluster)


def test_a_smaller_run_calibrates_a_larger_cluster(cases: list[Case]) -> None:
    """Runs on part of the cluster are priced at their own size; more GPUs than it has are refused."""
    own = measured(cases[:3], [1.1] * 3)
    large = replace(own[0].cluster, gpu_count=1024)
    assert calibrate(own, large).constants["time_scale"] == pytest.approx(1.1)
    with pytest.raises(InputError, match="ran on 32 GPUs, the cluster has 16"):
        calibrate(own, replace(own[0].cluster, gpu_count=16))


def test_provenance_says_what_it_rests_on(cases: list[Case]) -> None:
    """The cluster file keeps every run with its weight, the errors, and what was tried."""
    own = measured(cases[:5], [1.2, 1.2, 1.2, 1.2, 2.4])
    kept = calibrate(own, own[0].cluster).provenance()
    assert [run["id"] for run in kept["runs"]] == [f"run-{index}" for index in range(5)]
    assert kept["runs"][4]["outlier"] is True
    assert set(kept["values"]) == {"time_scale"}
    assert kept["error"]["mape_after"] < kept["error"]["mape_before"]
    assert kept["tried"]


def test_three_runs_of_a_group_predict_the_rest(cases: list[Case]) -> None:
    """With one common factor and little noise, three runs bring the rest of the group to the noise."""
    draw = random.Random(3)
    own = measured(cases, [1.3 * math.exp(draw.gauss(0, 0.01)) for _ in cases])
    predicted = {index: predict(case).step_time_s for index, case in enumerate(own)}
    (gain,) = calibration_gain(own, predicted)
    assert (gain.name, gain.rows) == ("g", 10)
    assert gain.before == pytest.approx(1 - 1 / 1.3, abs=0.02)
    assert gain.after < 0.02
    assert calibration_gain(own[:3], predicted) == ()


def test_figures_stay_whole_beside_long_names(cases: list[Case]) -> None:
    """On 80 columns a run's name wraps; its seconds, errors and weights do not."""
    named = [
        replace(case, run=replace(case.run, id=f"{'long-name-' * 9}{i}")) for i, case in enumerate(cases[:3])
    ]
    found = calibrate(measured(named, [1.2] * 3), named[0].cluster)
    console = Console(width=80, color_system=None)
    with console.capture() as captured:
        console.print(calibration_tables(found))
    text = captured.get()
    for run in found.runs:
        assert f"{run.measured_s:.4g}" in text and f"{run.before_s:.4g}" in text
    assert "measured, s" in text and "weight" in text
