"""What an answer says beside its optimum: a roomier layout, its chance among near-ties, who else is in the band."""

from __future__ import annotations

from dataclasses import replace

import pytest

from layoutopt.optimizer.evidence.honesty import assess
from layoutopt.optimizer.report.commands.solve import with_band
from layoutopt.optimizer.report.tables.honesty import choice_line, robust_line
from layoutopt.optimizer.report.tables.plan import Shown, next_lines
from layoutopt.optimizer.solve.api import solve_layout
from layoutopt.optimizer.solve.plan import SolveOptions
from layoutopt.optimizer.specs.loading import load_cluster, load_workload
from layoutopt.optimizer.specs.vocabulary import Verdict


def test_the_layouts_of_the_band_are_asked_for_and_found() -> None:
    """llama3-405b on 16,384 H100s: runners-up beyond 2% but inside the band are compared, and no sentence denies them."""
    workload, cluster = load_workload("llama3-405b"), load_cluster("h100-16384")
    options = with_band(SolveOptions(), workload, cluster)
    plan = solve_layout(workload, cluster, options)
    honesty = assess(plan, workload, cluster, options, robust=True)
    assert honesty is not None and honesty.robust is not None and honesty.choice is not None
    inside = [one for one in plan.alternatives if one.slower <= honesty.band.indistinct]
    assert len(inside) >= 3 and max(one.slower for one in inside) > 0.02
    assert len(honesty.robust.layouts) == 1 + len(inside)
    assert "only layout" not in robust_line(honesty.robust)
    assert 0 < honesty.choice.chance_best <= 1 and honesty.choice.expected_loss >= 0
    assert f"{honesty.choice.draws} sets of constants" in choice_line(honesty.choice)
    assert honesty.robust.mean_regret[honesty.robust.chosen] == min(honesty.robust.mean_regret)


@pytest.mark.parametrize("model", ["llama3-8b", "llama3-70b"])
def test_memory_to_spare_is_told_at_its_price(model: str) -> None:
    """Near-ties and the answer's own stages with memory free may cost a tenth more; what is told is near the proof."""
    workload, cluster = load_workload(model), load_cluster("h100x16" if model == "llama3-8b" else "h100x128")
    plan = solve_layout(workload, cluster)
    asked = solve_layout(workload, cluster, replace(SolveOptions(), reserve=0.05, top=1))
    assert plan.verdict is Verdict.BORDERLINE and plan.comfortable is not None
    assert asked.estimate is not None and plan.estimate is not None
    told, proven = plan.comfortable.estimate.step_time_s, asked.estimate.step_time_s
    assert proven * (1 - 1e-9) <= told <= max(1.005 * proven, 1.02 * plan.estimate.step_time_s)


def test_a_borderline_answer_names_a_roomier_layout() -> None:
    """llama3-70b on 64 H100s: the roomy layout is as good as what a search with 5% free proves."""
    workload, cluster = load_workload("llama3-70b"), load_cluster("h100x64")
    plan = solve_layout(workload, cluster)
    assert plan.verdict is Verdict.BORDERLINE and plan.comfortable is not None and plan.estimate is not None
    asked = solve_layout(workload, cluster, replace(SolveOptions(), reserve=0.05, top=1))
    assert asked.estimate is not None
    assert plan.comfortable.estimate.step_time_s == pytest.approx(asked.estimate.step_time_s, rel=2e-3)
    assert plan.comfortable.estimate.memory.peak_bytes <= plan.estimate.memory.borderline_bytes
    lines = "\n".join(next_lines(plan, None, "megatron", Shown()))
    assert plan.comfortable.estimate.step_time_s >= asked.estimate.step_time_s * (1 - 1e-9)
    assert f"5% of memory free at most {plan.comfortable.slower:+.1%}" in lines and "--reserve 5%" in lines
    assert asked.comfortable is None
