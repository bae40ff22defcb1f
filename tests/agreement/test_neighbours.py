"""Nothing that evaluate accepts inside of the searched space is faster than what solve proves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from checks.agreement import TRAINERS, random_question
from checks.neighbours import faster_neighbour, judged_in_space

from layoutopt import load_model
from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.solve.api import solve_layout
from layoutopt.optimizer.solve.judge import judge_layout
from layoutopt.optimizer.solve.plan import SolveOptions
from layoutopt.optimizer.space.options import SpaceOptions
from layoutopt.optimizer.specs.layout import Switches
from layoutopt.optimizer.specs.loading import load_cluster, load_workload
from layoutopt.optimizer.specs.partial_layout import PartialLayout
from layoutopt.optimizer.specs.vocabulary import Dispatcher, Schedule, Verdict

if TYPE_CHECKING:
    from layoutopt.optimizer.solve.plan import Judgement


@pytest.mark.parametrize("seed", range(8))
def test_no_random_neighbour_is_faster(seed: int) -> None:
    """One to four axes changed at a time, or a layout drawn anew: evaluate finds none below the proven optimum."""
    rng = np.random.default_rng(seed)
    question = random_question(rng, TRAINERS[int(rng.integers(len(TRAINERS)))])
    space = SpaceOptions(software=question.trainer.release)
    plan = solve_layout(
        question.workload, question.cluster, SolveOptions(framework=question.trainer.framework, space=space)
    )
    if plan.layout is None or plan.estimate is None:
        assert judged_in_space(question, PartialLayout(zero=1)) is None
        return
    assert faster_neighbour(rng, question, plan.layout, plan.estimate.step_time_s, 40) is None


def judged(framework: Framework, **stated: object) -> Judgement:
    """Judge a layout of a dense model on 24 GPUs."""
    workload = load_model("llama3-8b", global_batch=480)
    return judge_layout(workload, load_cluster("h100x24"), PartialLayout(**stated), framework=framework)  # type: ignore[arg-type]


def test_a_pipeline_always_has_an_order() -> None:
    """Stages without a named order wait for each other as in the default one: they are not priced as if alone."""
    none, default = (judged(Framework.MEGATRON, pp=2, schedule=one) for one in (Schedule.NONE, None))
    assert none.layout.schedule is Schedule.ONE_F_ONE_B
    assert none.estimate and default.estimate
    assert none.estimate.step_time_s == default.estimate.step_time_s
    assert judged(Framework.DEEPSEEK_INTERNAL, schedule=Schedule.DUALPIPE).layout.schedule is Schedule.NONE


def test_dualpipe_of_an_odd_number_of_ranks_has_no_price() -> None:
    """Its ranks hold their stages in pairs; one without its partner is named, not an accident."""
    odd = judged(Framework.DEEPSEEK_INTERNAL, pp=3, schedule=Schedule.DUALPIPE)
    assert odd.verdict is Verdict.INVALID
    assert odd.estimate is None
    assert "schedule_micro_batches" in {rule.rule for rule in odd.broken}


def test_flexible_dispatchers_need_somebody_to_exchange_with() -> None:
    """Megatron asserts that expert and expert-tensor ranks are several; their fused permutation is not priced without."""
    workload, cluster = load_workload("qwen3-30b-a3b"), load_cluster("h100x8")
    for etp, broken in ((1, True), (2, False)):
        layout = PartialLayout(tp=2, etp=etp, zero=1, switches=Switches(dispatcher=Dispatcher.DEEPEP))
        found = judge_layout(workload, cluster, layout, framework=Framework.MEGATRON_BRIDGE)
        assert ("dispatcher_alone" in {rule.rule for rule in found.broken}) == broken
