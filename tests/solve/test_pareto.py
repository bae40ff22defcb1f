"""The front in two goals is that of enumeration: every point is there, and none that another one dominates."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from checks.small_questions import enumerate_question, small_question
from click.testing import CliRunner

from layoutopt.cli import main
from layoutopt.optimizer.solve.pareto import pareto_front
from layoutopt.optimizer.specs.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

    from checks.small_questions import Enumerated

    from layoutopt.optimizer.solve.pareto import Front

APART = 1e-4
"""Relative distance below which the solver's rounding may join two points."""


def _front(seed: int, goals: tuple[str, str], most: int) -> tuple[Front, Enumerated]:
    question = small_question(seed)
    front = pareto_front(question.workload, question.cluster, question.options, goals, most=most)
    return front, enumerate_question(question)


@pytest.mark.parametrize(
    ("seed", "goals"),
    [
        pytest.param(1, ("days", "gpus"), id="more-days-gpus"),
        (3, ("time", "cost")),
        pytest.param(5, ("energy", "time"), id="more-energy-time"),
        pytest.param(7, ("cost", "days"), id="more-cost-days"),
        pytest.param(9, ("gpus", "days"), id="more-gpus-days"),
    ],
)
def test_the_front_is_that_of_enumeration(seed: int, goals: tuple[str, str]) -> None:
    """No layout dominates a point, and every layout that none dominates is near a point."""
    front, every = _front(seed, goals, 1000)
    first, second = (every.goals[name] for name in goals)
    assert front.complete and front.points and front.proven
    for one, other in (point.values for point in front.points):
        assert not ((first < one * (1 - APART)) & (second <= other * (1 + 1e-9))).any()
        assert not ((first <= one * (1 + 1e-9)) & (second < other * (1 - APART))).any()
    found = np.array([point.values for point in front.points])
    for one, other in zip(first.tolist(), second.tolist(), strict=True):
        assert ((found[:, 0] <= one * (1 + APART)) & (found[:, 1] <= other * (1 + APART))).any()
    assert (np.diff(found[:, 0]) > 0).all() and (np.diff(found[:, 1]) < 0).all()


def test_few_points_show_the_whole_front() -> None:
    """With fewer points than the front has, both ends are among them, all lie on it, and others are said to exist."""
    goals = ("time", "memory")
    few, every = _front(2, goals, 4)
    first, second = (every.goals[name] for name in goals)
    assert len(few.points) == 4 and few.proven and not few.complete
    assert few.points[0].values[0] == pytest.approx(first.min(), rel=APART)
    assert few.points[-1].values[1] == pytest.approx(second.min(), rel=APART)
    for one, other in (point.values for point in few.points):
        assert not ((first < one * (1 - APART)) & (second < other * (1 - APART))).any()


def test_no_layout_at_all_and_a_stopped_search() -> None:
    """A budget that nothing meets leaves a complete front without a point; a stop leaves nothing that claims a proof."""
    question = small_question(3)
    options, goals = question.options, ("time", "cost")
    none = replace(options, space=replace(options.space, require=("cost<=1e-9",)))
    front = pareto_front(question.workload, question.cluster, none, goals)
    assert front.points == () and front.complete
    stopped = pareto_front(question.workload, question.cluster, options, goals, should_stop=lambda: True)
    assert not stopped.complete and not (stopped.points and stopped.proven)


def test_a_price_of_nothing_leaves_one_point() -> None:
    """Where every layout costs the same, the front is the fastest one."""
    question = small_question(3)
    options = replace(question.options, space=replace(question.options.space, gpu_hour_cost=0.0))
    front = pareto_front(question.workload, question.cluster, options, ("days", "cost"))
    assert front.complete and len(front.points) == 1 and front.points[0].values[1] == 0.0


def test_a_front_says_how_sure_it_is(tmp_path: Path) -> None:
    """Table, page and JSON: the interval of each step and the runs behind it; none of this kind is said."""
    asked = ("pareto", "llama3-8b", "h100x8", "--batch", "16", "--of", "time,memory", "--points", "2")
    page = tmp_path / "front.html"
    told = CliRunner().invoke(main, [*asked, "--report", str(page)])
    assert told.exit_code == 0 and "measured runs of this kind" in " ".join(told.stdout.split())
    assert "measured runs of this kind" in page.read_text()
    plain = json.loads(CliRunner().invoke(main, [*asked, "--json"]).stdout)
    for point in plain["points"]:
        low, high = point["step_80_s"]
        assert low < point["estimate"]["step_time_s"] < high
        assert point["measured_runs"] == plain["error_band"]["rows"]
        interval = f"{low:.3g} to {high:.3g}"
        assert interval in told.stdout and f"{interval}<" in page.read_text()
    assert plain["error_band"]["rows"] > 20
    other = CliRunner().invoke(main, [*asked[:2], "h200x8", *asked[3:]])
    assert "?: no measured run of this kind" in " ".join(other.stdout.split()), other.output
    assert "?: no measured" not in told.stdout and " ?" in other.stdout


def test_goals_are_two_quantities() -> None:
    """One goal twice, or a statistic, is refused in one line."""
    question = small_question(0)
    for goals in (("days", "days"), ("days", "expected")):
        with pytest.raises(InputError, match=r"goal twice|no quantity"):
            pareto_front(question.workload, question.cluster, question.options, goals)
