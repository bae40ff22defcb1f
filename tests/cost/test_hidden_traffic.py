"""Traffic that only another micro-batch hides: there where a schedule pairs passes, each way as much as is sent."""

from __future__ import annotations

from dataclasses import replace

import pytest

from layoutopt.optimizer.cost.batch import batch_of_one
from layoutopt.optimizer.cost.factory import build_cost_model
from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.specs.layout import Layout
from layoutopt.optimizer.specs.loading import load_cluster, load_workload
from layoutopt.optimizer.specs.vocabulary import Precision, Schedule


@pytest.mark.parametrize(("schedule", "vp"), [(Schedule.DUALPIPE, 2), (Schedule.ONE_F_ONE_B, 1)])
def test_paired_passes_hide_each_way_what_it_sends(schedule: Schedule, vp: int) -> None:
    """DeepSeek-V3 dispatches in 8 bits and combines in 16: a forward sends less than its backward, dense layers nothing."""
    workload, cluster = load_workload("deepseek-v3"), load_cluster("h800x2048")
    training = replace(workload.training, precision=Precision.FP8)
    layout = Layout(
        pp=16, vp=vp, dp=128, ep=64, micro_batches=120, schedule=schedule, zero=1, precision=Precision.FP8
    )
    cost = build_cost_model(workload.model, training, cluster, framework=Framework.DEEPSEEK_INTERNAL)
    terms = cost.terms(batch_of_one(layout))
    (dense, forward), (dense_back, backward) = terms.hidden_forward_s[0], terms.hidden_backward_s[0]
    assert dense == dense_back == 0.0
    if schedule is Schedule.ONE_F_ONE_B:
        assert forward == backward == 0.0
    else:  # 1 byte and 2 bytes forward, twice 2 bytes backward
        assert 0.7 * backward < forward < 0.9 * backward
        assert backward < terms.backward_s[0, 1]
