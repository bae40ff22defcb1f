"""Plans whose weights are gathered layer by layer (ZeRO-3, FSDP): their jobs' traces give the plan's terms back."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from checks.traced_faults import NOISE, planned
from checks.traced_files import write_traces
from checks.traced_job import Job, Traffic
from checks.traced_plan import job_of
from checks.traced_run import Run

from layoutopt.optimizer.cost.components import Component
from layoutopt.optimizer.cost.estimate import estimate
from layoutopt.optimizer.cost.kernel_times import stage_times
from layoutopt.optimizer.diagnose.cause import CauseKind
from layoutopt.optimizer.diagnose.diagnosis import diagnose
from layoutopt.optimizer.interop.profiles.read import read_profiles
from layoutopt.optimizer.specs.vocabulary import Axis

if TYPE_CHECKING:
    from pathlib import Path

    from layoutopt.optimizer.diagnose.diagnosis import Diagnosis

DENSE = ("llama3-8b", "zero=3,micro_batch=1", 16, 8192)
PLANS = (
    DENSE,
    ("qwen3-30b-a3b", "ep=4,zero=3,micro_batch=1", 16, 4096),
    ("llama3-8b", "zero=3,tp=2,micro_batch=1", 8, 8192),
)


def found_of(
    plan: tuple[str, str, int, int], folder: Path, job: Job | None = None, noise: float = 0.0
) -> Diagnosis:
    """Run a plan's job, write its traces, and hold them against the plan."""
    cost, layout = planned(plan)
    job = replace(job or job_of(cost, layout), noise=noise, steps=2)
    write_traces(Run(job), folder, compress=False)
    return diagnose(read_profiles([folder]), cost, layout)


@pytest.mark.parametrize("plan", PLANS)
def test_kernels_and_price_have_the_same_gathers(plan: tuple[str, str, int, int]) -> None:
    """What stays exposed of a micro-batch's gathers and sums, block by block, is the price's component."""
    cost, layout = planned(plan)
    (times,) = stage_times(cost, layout)
    exposed = sum(one.traffic_s[Component.FSDP] for one in (times.forward, times.backward))
    priced = estimate(cost, layout).breakdown_s[Component.FSDP]
    assert priced > 0 and exposed * layout.micro_batches == pytest.approx(priced, rel=1e-6)


@pytest.mark.parametrize("plan", PLANS)
def test_terms_are_the_plans(plan: tuple[str, str, int, int], tmp_path: Path) -> None:
    """Exposed gathers, those beside the passes too, to a thousandth of the step; nothing is wrong with a noisy job."""
    found = found_of(plan, tmp_path)
    assert found.difference is not None
    step_s = found.difference.predicted_s
    for row in found.difference.rows:
        if row.component in (Component.FSDP, Component.DP):
            assert row.measured_s == pytest.approx(row.predicted_s, abs=1e-3 * step_s), row.component
    assert found.difference.measured_s == pytest.approx(step_s, rel=0.002)
    assert [cause.words for cause in found_of(plan, tmp_path, noise=NOISE).causes] == []


def test_gathers_that_nothing_hides(tmp_path: Path) -> None:
    """Without prefetching every gather is waited for: traffic over dp is not overlapped."""
    cost, layout = planned(DENSE)
    job = job_of(cost, layout)
    stages = tuple(
        replace(
            stage,
            **{
                way: tuple(
                    item._replace(us=item.us + item.hidden_us, hidden_us=0, ahead_us=0)
                    if isinstance(item, Traffic)
                    else item
                    for item in getattr(stage, way)
                )
                for way in ("forward", "backward")
            },
        )
        for stage in job.stages
    )
    first = found_of(DENSE, tmp_path, replace(job, stages=stages), NOISE).causes[0]
    assert first.kind is CauseKind.NO_OVERLAP and first.about == Axis.DP


def test_a_slow_link_under_gathers(tmp_path: Path) -> None:
    """Gathers that take four times as long: the link is named, not the overlap."""
    cost, layout = planned(DENSE)
    first = found_of(DENSE, tmp_path, replace(job_of(cost, layout), axis_factor={"dp": 4.0}), NOISE).causes[0]
    assert first.kind is CauseKind.SLOW_LINK and first.about == Axis.DP
