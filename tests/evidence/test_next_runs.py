"""What to measure next: beliefs about step times, the worth of a measurement, proxies, and the command."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from checks.choosing_text import lines
from click.testing import CliRunner, Result

from layoutopt.cli import main
from layoutopt.optimizer.cost.components import Component
from layoutopt.optimizer.evidence.belief import Belief, suggest
from layoutopt.optimizer.evidence.discrepancy import discrepancy
from layoutopt.optimizer.evidence.next_runs import LEAST_GAIN, ProbeKind, next_runs
from layoutopt.optimizer.evidence.proxy import proxy_of
from layoutopt.optimizer.report.experiment import experiment_files
from layoutopt.optimizer.solve.api import solve_layout
from layoutopt.optimizer.solve.plan import SolveOptions
from layoutopt.optimizer.specs.loading import load_cluster, load_workload, override_training
from layoutopt.optimizer.specs.vocabulary import NetworkFabric

if TYPE_CHECKING:
    from layoutopt.optimizer.solve.plan import Plan

BASELINE = json.loads(
    (Path(__file__).parents[2] / "benchmarks" / "next_runs_baseline.json").read_text(encoding="utf-8")
)
CLUSTER = load_cluster("h100x32")
WORKLOAD = override_training(load_workload("llama3-8b"), global_batch=64)
OPTIONS = SolveOptions(top=4, near=None)


@pytest.fixture(scope="module")
def plan() -> Plan:
    """A small question with three runners-up."""
    return solve_layout(WORKLOAD, CLUSTER, OPTIONS)


def run(*arguments: str) -> Result:
    """Run the command line in this process."""
    return CliRunner().invoke(main, arguments)


def belief(mean: list[float], covariance: list[list[float]], noise: float = 1e-9) -> Belief:
    """A belief about layouts alone."""
    return Belief(layouts=len(mean), mean=np.array(mean), covariance=np.array(covariance), noise=noise)


def test_three_suggested_runs_find_the_fastest_layout() -> None:
    """On measured groups of six layouts and more the choice after three suggested runs loses at most 1% in the mean."""
    runs = BASELINE["runs"]
    assert BASELINE["groups"]["of 6"] >= 15
    assert runs["suggested"][3] <= 0.01 < runs["random"][3]


def test_robust_chooses_as_the_best_of_the_ways_to_choose() -> None:
    """Over measured groups of three and more the mean regret, which --robust takes, loses no more than any other way.

    Wanted: 2%. What is believed of the errors promises no less than the committed figure, and four groups carry the rest.
    """
    choice, carried = BASELINE["choice"], BASELINE["carried by"]
    assert BASELINE["groups"]["of 3"] >= 30
    assert choice["mean regret"]["mean"] <= min(one["mean"] for one in choice.values()) + 1e-9
    assert choice["mean regret"]["median"] == 0
    assert (
        0.005
        < BASELINE["attainable"]["repeats alone"]
        < BASELINE["attainable"]["expected by the belief"]
        < 0.03
    )
    assert len(carried["worst"]) == 4 and carried["mean of the others"] <= 0.02
    counted = sum(number for number, _ in carried["by publication"].values())
    assert counted == BASELINE["groups"]["of 3"]


def test_the_choice_loses_two_percent_where_times_are_those_of_a_job_that_runs() -> None:
    """Without groups timed over a job's first iterations: at most 2% in the mean, by mean regret no more than by time."""
    settled = BASELINE["choice, first iterations out"]
    assert BASELINE["groups"]["of 3, first iterations out"] >= 20
    assert settled["mean regret"]["mean"] <= settled["time"]["mean"] <= 0.02


@pytest.mark.parametrize("apart", [0.0, 0.02, 0.1])
def test_the_worth_of_one_run_is_the_closed_form(apart: float) -> None:
    """Of two independent layouts: s f(d/s) with f(z) = pdf(z) - z cdf(-z) (Frazier, Powell and Dayanik 2009)."""
    one = belief([0.0, apart], [[0.01, 0.0], [0.0, 0.0]])
    z = apart / 0.1
    density, below = math.exp(-(z**2) / 2) / math.sqrt(2 * math.pi), math.erfc(z / math.sqrt(2)) / 2
    assert one.gain((0,)) == pytest.approx(0.1 * (density - z * below), rel=0.02)
    assert one.gain((1,)) == 0.0


def test_a_reading_moves_what_errs_alike() -> None:
    """Gaussian conditioning by hand; perfectly correlated layouts keep their distance."""
    prior = belief([0.0, 0.1], [[0.04, 0.02], [0.02, 0.05]], noise=0.1)
    after = prior.observed(0, 0.5)
    assert after.mean == pytest.approx([0.4, 0.1 + 0.02 / 0.05 * 0.5])
    assert after.covariance[1, 1] == pytest.approx(0.05 - 0.02**2 / 0.05)
    alike = belief([0.0, 0.1], [[1.0, 1.0], [1.0, 1.0]], noise=1e-6).observed(0, 3.0)
    assert alike.mean[1] - alike.mean[0] == pytest.approx(0.1)
    assert alike.gain((1,)) == pytest.approx(0.0, abs=1e-6)


def test_an_error_that_all_share_needs_two_runs() -> None:
    """One reading says nothing of the order, two do; the pair is suggested, and with a single run nothing."""
    shared = belief([0.0, 0.01], [[1.0025, 1.0], [1.0, 1.0025]])
    hours = np.ones(2)
    assert shared.gain((0,)) < LEAST_GAIN < shared.gain((0, 1))
    assert suggest(shared, hours, runs=2, least=LEAST_GAIN) == (0, 1)
    assert suggest(shared, hours, runs=1, least=LEAST_GAIN) == ()
    certain = belief([0.0, 0.5], [[1e-6, 0.0], [0.0, 1e-6]])
    assert suggest(certain, hours, runs=3, least=LEAST_GAIN) == ()


def test_the_cheaper_of_two_equal_measurements() -> None:
    """Items that read the same are worth the same: the one with fewer GPU-hours is named."""
    same = Belief(
        layouts=2,
        mean=np.array([0.0, 0.01, 0.0]),
        covariance=np.array([[0.01, 0.0, 0.01], [0.0, 0.0, 0.0], [0.01, 0.0, 0.01]]),
        noise=0.01,
    )
    assert suggest(same, np.array([2.0, 2.0, 1.0]), runs=1, least=LEAST_GAIN) == (2,)
    assert suggest(same, np.array([1.0, 2.0, 2.0]), runs=1, least=LEAST_GAIN) == (0,)


def test_chances_and_loss() -> None:
    """Two equal layouts share the chance; a certain one has it all and loses nothing."""
    even = belief([0.0, 0.0], [[0.01, 0.0], [0.0, 0.01]])
    assert even.regrets() == pytest.approx([even.expected_loss()] * 2, rel=0.05)
    assert even.chances() == pytest.approx([0.5, 0.5], abs=0.03)
    assert even.expected_loss() == pytest.approx(0.1 * math.sqrt(2) / math.sqrt(2 * math.pi), rel=0.15)
    sure = belief([0.0, 1.0], [[1e-6, 0.0], [0.0, 1e-6]])
    assert sure.chances().tolist() == [1.0, 0.0] and sure.expected_loss() == 0.0
    assert sure.regrets()[1] == pytest.approx(math.e - 1, rel=0.01)


def test_errors_of_components_are_shared(plan: Plan) -> None:
    """Layouts of equal breakdowns differ by their own error alone; traffic weighs as much as its share."""
    errors = discrepancy()
    assert plan.estimate is not None
    parts = plan.estimate.breakdown_s
    covariance = errors.covariance([parts, parts])
    assert covariance[0, 0] - covariance[0, 1] == pytest.approx(errors.layout**2)
    alone = errors.loadings({Component.TP: 1.0})
    assert np.linalg.norm(alone) == pytest.approx(errors.traffic)
    assert alone @ errors.reading(Component.TP) == pytest.approx(errors.network**2)
    assert alone @ errors.reading(Component.DP) == 0.0


def test_a_reading_turns_the_choice(plan: Plan) -> None:
    """A runner-up that ran much faster than predicted beside the first becomes the choice; the order of layouts stays."""
    before = next_runs(plan, WORKLOAD, CLUSTER, OPTIONS, budget=2, samples=8)
    assert before is not None and before.chosen == 0
    assert sum(before.chances) == pytest.approx(1.0)
    first, second = before.step_time_s[:2]
    after = next_runs(
        plan, WORKLOAD, CLUSTER, OPTIONS, budget=2, samples=8, readings={0: 1.2 * first, 1: 0.9 * second}
    )
    assert after is not None and after.chosen == 1
    assert after.layouts == before.layouts
    assert after.expected_loss < before.expected_loss


def test_nothing_to_measure_where_nothing_would_change(plan: Plan) -> None:
    """All layouts read, the first far ahead: the answer is to stop."""
    readings = {0: 1.0, 1: 2.0, 2: 2.0, 3: 2.0}
    found = next_runs(plan, WORKLOAD, CLUSTER, OPTIONS, budget=3, samples=8, readings=readings)
    assert found is not None and found.enough and found.suggestions == ()
    assert found.chances[0] == 1.0


def test_a_proxy_has_the_shapes_of_the_layout() -> None:
    """Degrees but dp, micro-batches and fabric are kept; layers and ranks are few; it fits and costs less."""
    cluster = replace(load_cluster("h100x512"), fabric=NetworkFabric.ROCE)
    workload = load_workload("llama3-70b")
    answer = solve_layout(workload, cluster, SolveOptions())
    assert answer.layout is not None
    found = proxy_of(answer.layout, workload, cluster, SolveOptions())
    assert found is not None
    own, machine, small = found
    for name in (
        "tp",
        "cp",
        "pp",
        "vp",
        "ep",
        "micro_batch",
        "micro_batches",
        "precision",
        "zero",
        "schedule",
    ):
        assert getattr(small, name) == getattr(answer.layout, name)
    assert small.gpus == machine.gpu_count <= answer.layout.gpus / 2
    assert own.model.layers == small.pp * small.vp < workload.model.layers
    assert machine.fabric is NetworkFabric.ROCE
    assert own.training.global_batch == small.dp * small.micro_batch * small.micro_batches
    mixed = load_workload("deepseek-v3")
    assert proxy_of(answer.layout, mixed, cluster, SolveOptions()) is None


def test_links_that_were_benchmarked_are_not_suggested_again(plan: Plan) -> None:
    """A cluster that states what its links reach has read its collectives: none is left to measure."""
    both = {"nvlink_fraction.hopper": 0.8, "network_fraction.infiniband": 0.9}
    found = [
        next_runs(plan, WORKLOAD, replace(CLUSTER, calibration=own), OPTIONS, budget=20, samples=8)
        for own in ({}, both)
    ]
    kinds = [{one.probe.kind for one in each.suggestions} for each in found if each is not None]
    assert len(kinds) == 2 and ProbeKind.BENCHMARK not in kinds[1]


def test_the_folder_holds_the_experiment(plan: Plan) -> None:
    """Every suggestion has its files, and the page says what to expect of it."""
    found = next_runs(plan, WORKLOAD, CLUSTER, OPTIONS, budget=3, samples=8)
    assert found is not None and found.suggestions
    files = experiment_files(found, OPTIONS)
    for place, one in enumerate(found.suggestions, start=1):
        assert any(name.startswith(f"{place}-{one.probe.kind.value}/") for name in files)
    assert "expected" in files["README.md"]
    # what is read enters by calibrate, and the choice is made again
    assert "layoutopt calibrate --cluster CLUSTER --profile 1-" in files["README.md"]
    assert "layoutopt calibrate --cluster own-1.yaml --profile 2-" in files["README.md"]
    assert f"layoutopt next-runs MODEL own-{len(found.suggestions)}.yaml" in files["README.md"]
    assert json.loads(files["expected.json"])["suggestions"][0]["probe"]["kind"] in set(ProbeKind)


def test_the_command(tmp_path: Path) -> None:
    """Text and JSON say the same, the folder is written, and what is wrong gets a line."""
    asked = ("next-runs", "llama3-8b", "h100x32", "--batch", "64", "--top", "4")
    told = run(*asked, "-o", str(tmp_path / "runs"))
    assert told.exit_code == 0, told.output
    assert "layout 1 is the choice" in told.stdout and "Measure next" in told.stdout
    assert (tmp_path / "runs" / "README.md").exists()
    assert "measured runs of this kind" in " ".join(told.stdout.split())
    plain = json.loads(run(*asked, "--measured", "1=9", "--json").stdout)
    low, high = plain["step_80_s"][0]
    assert f"{low:.3g} to {high:.3g}" in told.stdout
    spans = zip(plain["step_time_s"], plain["step_80_s"], strict=True)
    assert all(low < step_s < high for step_s, (low, high) in spans) and plain["error_band"]["rows"] > 20
    assert plain["chosen"] != 0 and len(plain["layouts"]) == 4
    for wrong, words in (
        ("1=x", "no step time"),
        ("9=1.0", "there is no layout 9"),
        ("1=1638", "took 1e+03 times the predicted step time"),
        ("1=1e-9", "check unit"),
        ("nowhere.csv", "nowhere.csv"),
    ):
        refused = run(*asked, "--measured", wrong)
        assert refused.exit_code == 2 and words in refused.stderr, refused.output
    twice = run(*asked, "--measured", "1=1.7", "--measured", "1=1.8")
    assert twice.exit_code == 2 and "layout 1 is given twice" in twice.stderr


def test_the_page_says_what_the_backtest_found() -> None:
    """docs/fidelity.md holds the section as it is written from the baseline."""
    page = (Path(__file__).parents[2] / "docs" / "fidelity.md").read_text(encoding="utf-8")
    assert "\n".join(lines(BASELINE)) in page
