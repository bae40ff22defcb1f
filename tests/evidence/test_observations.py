"""What calibrate read conditions the one posterior: stated constants, constants read by themselves, and whole runs."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from checks.logged_runs import logged_job, megatron_log
from click.testing import CliRunner

from layoutopt.cli import main
from layoutopt.optimizer.ask.planned import load_planned
from layoutopt.optimizer.cost.estimate import estimate
from layoutopt.optimizer.evidence.band import calibrated_by_runs
from layoutopt.optimizer.evidence.calibrate import calibrate
from layoutopt.optimizer.evidence.case import Case
from layoutopt.optimizer.evidence.cases import build_case
from layoutopt.optimizer.evidence.cluster_text import calibrated_cluster_text
from layoutopt.optimizer.evidence.discrepancy import by_component, discrepancy
from layoutopt.optimizer.evidence.honesty import assess
from layoutopt.optimizer.evidence.next_runs import ProbeKind, next_runs
from layoutopt.optimizer.evidence.observed import constants_of, observe, under_new_constants
from layoutopt.optimizer.evidence.posterior import conditioned, draw_posterior, posterior
from layoutopt.optimizer.evidence.predict import predict
from layoutopt.optimizer.solve.api import solve_layout
from layoutopt.optimizer.solve.inputs import Question
from layoutopt.optimizer.solve.plan import SolveOptions
from layoutopt.optimizer.specs.canonical import cluster_from_plain, to_plain
from layoutopt.optimizer.specs.cluster import Observation
from layoutopt.optimizer.specs.cluster_text import cluster_text
from layoutopt.optimizer.specs.errors import InputError
from layoutopt.optimizer.specs.loading import load_cluster, load_workload, override_training

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from layoutopt.optimizer.cost.estimate import Estimate
    from layoutopt.optimizer.evidence.run import MeasuredRun
    from layoutopt.optimizer.solve.plan import Plan
    from layoutopt.optimizer.specs.layout import Layout

CLUSTER = load_cluster("h100x32")
WORKLOAD = override_training(load_workload("llama3-8b"), global_batch=64)
OPTIONS = SolveOptions(top=4, near=None)
NAMES: list[str] = posterior()["names"]
CAP, ATTENTION = NAMES.index("gemm_cap.hopper"), NAMES.index("attention_cap.hopper")


@pytest.fixture(scope="module")
def plan() -> Plan:
    """A small question with three runners-up."""
    return solve_layout(WORKLOAD, CLUSTER, OPTIONS)


def read(layout: Layout, step_s: float, name: str) -> Observation:
    """What a run of a layout that took so long says."""

    def price(values: Mapping[str, float]) -> Estimate:
        own = replace(CLUSTER, calibration=dict(values))
        return estimate(Question(workload=WORKLOAD, cluster=own, options=OPTIONS).cost(), layout)

    concerned = constants_of(CLUSTER, OPTIONS.framework)
    return observe(name, step_s, price, spread=discrepancy().repeat, concerned=concerned)


def first_and_second(plan: Plan, first: float, second: float) -> tuple[Observation, Observation]:
    """Runs of the answer and of its first runner-up, as many times slower than predicted."""
    assert plan.layout is not None and plan.estimate is not None
    other = plan.alternatives[0]
    return (
        read(plan.layout, first * plan.estimate.step_time_s, "one"),
        read(other.layout, second * other.estimate.step_time_s, "two"),
    )


def test_a_stated_constant_moves_those_it_was_fitted_with() -> None:
    """Gaussian conditioning by hand: the stated one is known, another moves by its covariance with it."""
    mean, covariance = conditioned(CLUSTER)
    value = math.exp(mean[CAP]) * 0.9
    after, left = conditioned(replace(CLUSTER, calibration={"gemm_cap.hopper": value}))
    ratio = covariance[ATTENTION, CAP] / covariance[CAP, CAP]
    assert after[CAP] == pytest.approx(math.log(value), abs=1e-4) and left[CAP, CAP] < 1e-7
    assert after[ATTENTION] - mean[ATTENTION] == pytest.approx(ratio * math.log(0.9), rel=1e-3)
    assert left[ATTENTION, ATTENTION] == pytest.approx(
        covariance[ATTENTION, ATTENTION] - ratio * covariance[ATTENTION, CAP], rel=1e-3
    )


def test_a_constant_read_by_itself_is_known_as_well_as_it_was_read() -> None:
    """An observation of it alone says within what; one as wide as what was known before moves half the way."""
    mean, covariance = conditioned(CLUSTER)
    spread = math.sqrt(covariance[CAP, CAP])
    alone = Observation(name="a profile", ratio=1.0, spread=spread, slopes={"gemm_cap.hopper": 1.0})
    stated = replace(
        CLUSTER, calibration={"gemm_cap.hopper": 0.9 * math.exp(mean[CAP])}, observations=(alone,)
    )
    after, left = conditioned(stated)
    assert after[CAP] - mean[CAP] == pytest.approx(math.log(0.9) / 2, rel=1e-3)
    assert left[CAP, CAP] == pytest.approx(covariance[CAP, CAP] / 2, rel=1e-3)


def test_runs_condition_the_constants(plan: Plan) -> None:
    """Two runs at once are Gaussian conditioning with all that the cost model errs beside its constants as noise."""
    runs = first_and_second(plan, 1.1, 0.95)
    mean, covariance = conditioned(CLUSTER)
    after, left = conditioned(replace(CLUSTER, observations=runs))
    slopes = np.array([[one.slopes.get(name, 0.0) for name in NAMES] for one in runs])
    noise = discrepancy().covariance([by_component(one.shares) for one in runs])
    readings = slopes @ covariance @ slopes.T + noise + discrepancy().repeat ** 2 * np.eye(2)
    gain = covariance @ slopes.T @ np.linalg.inv(readings)
    assert after == pytest.approx(mean + gain @ np.log([one.ratio for one in runs]), abs=1e-9)
    assert np.diag(left) == pytest.approx(np.diag(covariance - gain @ slopes @ covariance), rel=1e-6)
    assert runs[0].ratio == pytest.approx(1.1, rel=1e-5) and runs[0].slopes["gemm_cap.hopper"] < -0.5
    # what a stated constant says is no longer the run's to say
    both = replace(CLUSTER, observations=runs, calibration={"gemm_cap.hopper": math.exp(mean[CAP])})
    assert conditioned(both)[1][CAP, CAP] < 1e-7


def test_what_solve_draws_is_conditioned(plan: Plan) -> None:
    """Sets of constants for expected, quantile and regret follow what was read; without it they are as before."""
    runs = first_and_second(plan, 1.3, 1.3)
    before = draw_posterior(CLUSTER, samples=64)
    after = draw_posterior(replace(CLUSTER, observations=runs), samples=64)
    logs = [np.mean([math.log(one["gemm_cap.hopper"]) for one in drawn]) for drawn in (before, after)]
    assert logs[1] < logs[0]
    assert draw_posterior(replace(CLUSTER, observations=runs), samples=64, after_runs=False) == before


def test_calibrated_runs_and_readings_make_the_same_choice(plan: Plan) -> None:
    """Two runs that enter by the cluster turn --robust, the chance of the answer and next-runs as readings of them do."""
    runs = first_and_second(plan, 1.2, 0.9)
    own = replace(CLUSTER, observations=runs)
    first, second = (one.predicted_s or 0.0 for one in runs)
    told = next_runs(plan, WORKLOAD, own, OPTIONS, budget=2, samples=8)
    readings = {0: 1.2 * first, 1: 0.9 * second}
    said = next_runs(plan, WORKLOAD, CLUSTER, OPTIONS, budget=2, samples=8, readings=readings)
    assert told is not None and said is not None
    assert told.chosen == said.chosen == 1
    assert told.chances == pytest.approx(said.chances, abs=0.03)
    measured = {0, 1}
    assert not [
        one for one in told.suggestions if one.probe.kind is ProbeKind.RUN and one.probe.layout in measured
    ]
    judged = [assess(plan, WORKLOAD, cluster, OPTIONS, robust=True) for cluster in (CLUSTER, own)]
    robust = [one.robust for one in judged if one is not None and one.robust is not None]
    assert [one.chosen for one in robust] == [0, 1]
    chances = [one.choice.chance_best for one in judged if one is not None and one.choice is not None]
    assert chances[0] > 0.3 > 0.01 > chances[1]


def test_a_plan_carries_them(plan: Plan) -> None:
    """Plain data and a cluster file read back the same; a cluster without any is written as before."""
    own = replace(CLUSTER, observations=first_and_second(plan, 1.2, 0.9))
    assert cluster_from_plain(json.loads(json.dumps(to_plain(own)))) == own
    assert "observations" not in to_plain(CLUSTER) and "observations" not in cluster_text(CLUSTER)


@pytest.fixture
def cases(make_run: Callable[..., MeasuredRun]) -> list[Case]:
    """Three layouts on one cluster, 20% slower than predicted, the last 30%."""
    rows = [make_run(id=f"run-{tp}", group="g", tp=tp, pp=1, dp=32 // tp) for tp in (1, 2, 4)]
    built = [case for row in rows if isinstance(case := build_case(row), Case)]
    return [
        replace(case, run=replace(case.run, measured_step_s=factor * predict(case).step_time_s))
        for case, factor in zip(built, (1.2, 1.2, 1.3), strict=True)
    ]


def test_calibrate_writes_what_it_read(cases: list[Case], tmp_path: Path) -> None:
    """Each run beside the common scale, less sure where it counts less; the file reads back, and intervals become those
    of calibrated clusters.
    """
    cluster = cases[0].cluster
    found = calibrate(cases, cluster)
    ratios = {one.name: one.ratio for one in found.observations}
    assert ratios["run-4"] / ratios["run-1"] == pytest.approx(1.3 / 1.2, rel=1e-4)
    assert ratios["run-1"] == pytest.approx(1.2 / found.constants["time_scale"], rel=1e-4)
    assert found.observations[2].spread > found.observations[0].spread
    path = tmp_path / "own.yaml"
    path.write_text(calibrated_cluster_text(cluster, found, name="own"))
    back = load_cluster(str(path))
    assert back.observations == found.observations
    assert calibrated_by_runs(back) and not calibrated_by_runs(cluster)
    assert not calibrated_by_runs(replace(cluster, calibration={"network_fraction.infiniband": 0.8}))


def test_calibrating_again_counts_each_run_once(cases: list[Case]) -> None:
    """Runs of before stay under the new scale, a run that comes again replaces its reading."""
    cluster = cases[0].cluster
    once = calibrate(cases[:2], cluster)
    first = replace(cluster, calibration=once.constants, observations=once.observations)
    again = calibrate(cases[1:], first)
    held = under_new_constants(first, again.constants, again.observations)
    assert [one.name for one in held] == ["run-1", "run-2", "run-4"]
    ratios = {one.name: one.ratio for one in held}
    assert ratios["run-4"] / ratios["run-1"] == pytest.approx(1.3 / 1.2, rel=1e-3)
    assert ratios["run-2"] / ratios["run-1"] == pytest.approx(1.0, rel=1e-3)


def test_runs_of_two_evenings_calibrate_as_runs_of_one(cases: list[Case]) -> None:
    """One run after the other, or all at once: one scale, each run weighed once, in whatever order they come."""
    cluster = cases[0].cluster
    at_once = calibrate(cases, cluster)
    scales = []
    for order in (cases, cases[::-1]):
        held = cluster
        for case in order:
            found = calibrate([case], held)
            observations = under_new_constants(held, found.constants, found.observations)
            held = replace(
                held, calibration={**held.calibration, **found.constants}, observations=observations
            )
        scales.append(held.calibration["time_scale"])
        assert found.values["time_scale"].source == "robust mean of 3 own runs"
    assert scales == pytest.approx([at_once.constants["time_scale"]] * 2, rel=1e-4)


def test_only_whole_runs_tell_the_scale(cases: list[Case]) -> None:
    """A constant that was read by itself is no run: it enters no scale, and intervals stay those of strangers."""
    cluster = cases[0].cluster
    alone = Observation(name="a benchmark", ratio=1.5, spread=0.01, slopes={"gemm_cap.hopper": 1.0})
    read = replace(cluster, observations=(alone,))
    assert calibrate(cases, read).constants == calibrate(cases, cluster).constants
    assert not calibrated_by_runs(read)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"slopes": {"gem_cap.hopper": -0.5}}, "gemm_cap.hopper"),
        ({"slopes": {"gemm_cap.ampere": -0.5}}, "prices nothing on h100"),
        ({"slopes": {"network_hop_s.ethernet": 0.1}}, "prices nothing on h100"),
        ({"slopes": {"gemm_cap.hopper": -50.0}}, "no slope of a time"),
        ({"shares": {"forwards": 1.0}}, "forward"),
        ({"shares": {"forward": -0.5}}, "no parts of a step"),
        ({"shares": {"forward": 0.9, "backward": 0.9}}, "sum to 1.8"),
        ({"shares": {"forward": 0.0}}, "sum to 0"),
        ({"ratio": -1.0}, "not above 0"),
        ({"spread": 0.0}, "below 0.0001"),
        ({"spread": 1e-300}, "below 0.0001"),
        ({"slopes": {"gemm_cap.hopper": "fast"}}, "not a finite number"),
        ({"slopes": [1.0]}, "not a mapping"),
        ({"speed": 1.0}, "speed"),
    ],
)
def test_forged_readings_are_refused(wrong: dict[str, Any], words: str, tmp_path: Path) -> None:
    """What no calibration writes is one line, with what would be valid."""
    entry = {"name": "run", "ratio": 1.0, "spread": 0.03, "shares": {"forward": 1.0}} | wrong
    path = tmp_path / "own.yaml"
    path.write_text(json.dumps({"base": "h100x32", "observations": [entry]}))
    result = CliRunner().invoke(main, ["next-runs", "llama3-8b", str(path)])
    assert result.exit_code == 2 and words in result.stderr, result.output


def test_too_many_readings_are_refused(tmp_path: Path) -> None:
    """A list without end is refused before anything is weighed."""
    entry = {"name": "run", "ratio": 1.0, "spread": 0.03, "shares": {"forward": 1.0}}
    path = tmp_path / "own.yaml"
    path.write_text(json.dumps({"base": "h100x32", "observations": [entry] * 1000}))
    with pytest.raises(InputError, match="1000 of them"):
        load_cluster(str(path))
    path.write_text(json.dumps({"base": "h100x32", "observations": [entry] * 2}))
    with pytest.raises(InputError, match="is there before"):
        load_cluster(str(path))


def test_a_table_in_another_unit_is_no_reading(plan: Plan, cases: list[Case]) -> None:
    """Milliseconds for seconds are refused wherever they enter: no choice is made of them."""
    wrong = [
        replace(one, run=replace(one.run, measured_step_s=1e3 * (one.measured_s or 0.0))) for one in cases
    ]
    with pytest.raises(InputError, match="times the predicted step time"):
        next_runs(plan, WORKLOAD, CLUSTER, OPTIONS, budget=1, samples=2, measured=wrong)


def test_an_experiment_enters_and_the_choice_is_made_again(tmp_path: Path) -> None:
    """The folder's launches run, the first slower than expected and the second faster: their logs turn the choice."""

    def run(*words: object) -> str:
        result = CliRunner().invoke(main, [str(word) for word in words])
        assert result.exit_code == 0, result.output
        return result.stdout

    asked = ("--batch", "64", "--top", "3", "--budget", "2")
    run("next-runs", "llama3-8b", "h100x32", *asked, "-o", tmp_path)
    page, cluster = (tmp_path / "README.md").read_text(), Path("h100x32")
    for place, factor in ((1, 1.15), (2, 0.95)):
        launch, log, own = (
            tmp_path / name for name in (f"{place}-run/launch.sh", f"{place}.log", f"{place}.yaml")
        )
        assert f"--profile {place}-run/LOG --plan {place}-run/launch.sh -o own-{place}.yaml" in page
        job = logged_job(load_planned(str(launch), cluster="h100x32"))
        log.write_text(megatron_log(job.scaled(forward=factor, backward=factor)))
        run("calibrate", "--cluster", cluster, "--profile", log, "--plan", launch, "-o", own)
        cluster = own
    again = json.loads(run("next-runs", "llama3-8b", cluster, *asked, "--json"))
    assert again["chosen"] == 1 and again["chances"][1] > 0.8 > 0.05 > again["chances"][0]
    steps = [one for one in load_cluster(str(cluster)).observations if one.shares]
    assert steps[0].ratio / steps[1].ratio == pytest.approx(1.15 / 0.95, rel=0.02)
    assert load_cluster(str(cluster)).name == "h100x32-calibrated"
