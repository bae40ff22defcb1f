"""The whole plan of a run: phases, budget, baseline, watch list."""

from __future__ import annotations

import json
from dataclasses import replace
from math import fsum
from typing import TYPE_CHECKING

import pytest

from layoutopt.optimizer.cost.budget import gpu_power_w, training_budget
from layoutopt.optimizer.plan.options import PlanOptions
from layoutopt.optimizer.plan.training_plan import make_training_plan, phase_workloads
from layoutopt.optimizer.plan.watch import slow_rank
from layoutopt.optimizer.report.json_forms import to_plain
from layoutopt.optimizer.report.tables.training import ends_words
from layoutopt.optimizer.solve.api import solve_layout
from layoutopt.optimizer.solve.plan import SolveOptions
from layoutopt.optimizer.specs.errors import InputError
from layoutopt.optimizer.specs.loading import load_cluster, load_workload
from layoutopt.optimizer.specs.units import DAY_S, rough

if TYPE_CHECKING:
    from layoutopt.optimizer.plan.training_plan import TrainingPlan
    from layoutopt.optimizer.specs.cluster import ClusterSpec
    from layoutopt.optimizer.specs.workload import Workload

OPTIONS = PlanOptions(gpu_hour_cost=2.0, solve=SolveOptions(top=1))


@pytest.fixture(scope="module")
def two_phases() -> Workload:
    """Llama 3 8B with a long-context stage."""
    base = load_workload("llama3-8b")
    long = replace(base.training, sequence_length=32768, global_batch=64, total_tokens=50e9)
    return replace(base, phases=(long,), phase_names=("long context",))


@pytest.fixture(scope="module")
def cluster() -> ClusterSpec:
    """64 H100."""
    return load_cluster("h100x64")


@pytest.fixture(scope="module")
def planned(two_phases: Workload, cluster: ClusterSpec) -> TrainingPlan:
    """Both phases solved and planned."""
    plan = solve_layout(two_phases, cluster, OPTIONS.solve)
    return make_training_plan(two_phases, cluster, plan, OPTIONS)


def test_phases_are_workloads_in_order(two_phases: Workload) -> None:
    """The main training first; no part has phases itself."""
    (first, main), (second, long) = phase_workloads(two_phases)
    assert (first, second) == ("main", "long context")
    assert main.training == two_phases.training
    assert long.training.sequence_length == 32768
    assert main.phases == long.phases == ()


def test_budgets_add_up(planned: TrainingPlan, cluster: ClusterSpec) -> None:
    """Days, GPU-hours, energy and cost of the run are the sums over its phases."""
    for name in ("tokens", "steps", "total_flops", "days", "gpu_hours", "energy_kwh", "cost"):
        parts = [getattr(phase.budget, name) for phase in planned.phases]
        assert getattr(planned.budget, name) == pytest.approx(fsum(parts))
    assert planned.budget.gpu_hours == pytest.approx(planned.budget.days * 24 * 64)
    assert planned.budget.cost == pytest.approx(planned.budget.gpu_hours * 2.0)
    watts = gpu_power_w(cluster)
    assert planned.budget.energy_kwh == pytest.approx(planned.budget.gpu_hours * watts / 1000)


def test_days_follow_from_the_predicted_mfu(planned: TrainingPlan, cluster: ClusterSpec) -> None:
    """FLOPs over (GPUs x peak x MFU) seconds, with the stated range around them."""
    phase = planned.phases[0]
    peak = cluster.gpu.dense_flops[phase.layout.precision]
    seconds = phase.budget.total_flops / (64 * peak * phase.estimate.mfu_full)
    assert phase.budget.days == pytest.approx(seconds / 86400)
    assert (phase.budget.days_low, phase.budget.days_high) == pytest.approx(
        (phase.budget.days * 0.9, phase.budget.days * 1.1)
    )


def test_failures_lengthen_the_run(planned: TrainingPlan) -> None:
    """Expected days are the exact ones of the whole run, and cost what the days cost."""
    assert planned.expected_days > planned.budget.days
    assert planned.expected_days == pytest.approx(planned.budget.days / planned.faults.best.goodput)
    assert planned.expected_cost == pytest.approx(planned.expected_days * 24 * 64 * 2.0)


def test_each_phase_has_its_baseline(planned: TrainingPlan) -> None:
    """The recipe beside the optimum, and what the optimum saves over the phase."""
    for phase in planned.phases:
        baseline = phase.baseline
        assert baseline.slower is not None
        assert baseline.slower >= -1e-9
        assert baseline.days_saved == pytest.approx(phase.budget.days * baseline.slower)
        assert baseline.cost_saved == pytest.approx((phase.budget.cost or 0) * baseline.slower)
        judged = baseline.recipe.judgement
        assert judged is not None and judged.estimate is not None
        assert baseline.slower == pytest.approx(
            judged.estimate.step_time_s / phase.estimate.step_time_s - 1, abs=1e-9
        )
    main = planned.phases[0].baseline
    assert main.vendor is not None and main.vendor.judgement.estimate is not None
    vendor_s = main.vendor.judgement.estimate.step_time_s
    assert main.vendor_slower == pytest.approx(vendor_s / planned.phases[0].estimate.step_time_s - 1)


def test_the_watch_list_expects_what_was_predicted(planned: TrainingPlan) -> None:
    """Bands around the prediction, bandwidths below the links' nominal rate, memory below capacity."""
    phase = planned.phases[0]
    watch = phase.watch
    assert watch.step_time_s[1] == phase.estimate.step_time_s
    assert watch.mfu_causal == pytest.approx(
        (phase.estimate.mfu_causal / 1.1, phase.estimate.mfu_causal, phase.estimate.mfu_causal / 0.9)
    )
    assert watch.tokens_per_s[1] == pytest.approx(watch.tokens_per_s_per_gpu * phase.layout.gpus)
    assert watch.headroom_bytes >= 0
    assert watch.device_bytes > watch.peak_bytes
    assert watch.bandwidths
    for entry in watch.bandwidths:
        assert 0 < entry.bus_bytes_per_s < 600e9
    own = [entry for entry in watch.bandwidths if entry.own]
    assert len({(entry.axis, entry.collective) for entry in own}) == len(own)


def test_bandwidth_rises_with_the_message(planned: TrainingPlan) -> None:
    """Latency matters less for larger messages."""
    probes: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for entry in planned.phases[0].watch.bandwidths:
        probes.setdefault((entry.axis, entry.collective), []).append(
            (entry.size_bytes, entry.bus_bytes_per_s)
        )
    for curve in probes.values():
        rates = [rate for _, rate in sorted(curve)]
        assert rates == pytest.approx(sorted(rates))


def test_a_slow_rank_costs_nearly_its_own_slowness(planned: TrainingPlan) -> None:
    """Everybody waits: the step grows by the slow rank's share of it, never by more than its slowness."""
    phase = planned.phases[0]
    for entry in phase.watch.slow_ranks:
        assert 0.5 * entry.slower < entry.step_slower <= entry.slower
    assert slow_rank(phase.layout, phase.estimate, 0.0).step_slower == 0


def test_replaced_nodes_leave_an_interval(planned: TrainingPlan) -> None:
    """Days that count hot restarts spread as measured steps do; an error that was stated says no share of runs."""
    shorter = replace(planned, expected_days=0.9 * planned.faults.best.wall_s / DAY_S)
    measured = replace(shorter, relative_error=None, step_ratio=(0.9, 1.2))
    ends = [rough(shorter.expected_days * ratio) for ratio in (0.9, 1.2)]
    assert ends_words(measured) == f"{ends[0]:,g} to {ends[1]:,g}"
    assert ends_words(replace(shorter, relative_error=0.1)) == ""
    assert ends_words(planned) != ""


def test_plain_data_is_json(planned: TrainingPlan) -> None:
    """Everything comes out as strict JSON with the promised keys."""
    plain = json.loads(json.dumps(to_plain(planned), allow_nan=False))
    assert [phase["name"] for phase in plain["phases"]] == ["main", "long context"]
    assert plain["phases"][0]["watch"]["mfu_causal"]["expected"] == planned.phases[0].estimate.mfu_causal
    assert plain["faults"]["schedules"][0]["waste"]["total"] > 0
    assert plain["phases"][0]["layout"]["tp"] == planned.phases[0].layout.tp


def test_the_worked_plans_budget() -> None:
    """1.412e12 tokens of 70B at 4,194,304 a step: 336,647 steps; 40% of peak on 1,024 GPUs takes about 20 days."""
    workload, machine = load_workload("llama3-70b"), load_cluster("h100-1024")
    training = replace(workload.training, total_tokens=1.412e12)
    budget = training_budget(
        workload.model, training, machine, step_time_s=5.05, gpus=1024, step_ratio=(0.9, 1.1)
    )
    assert budget.steps == pytest.approx(336_647, abs=0.5)
    assert budget.days == pytest.approx(19.68, abs=0.01)
    # The worked plan counts the input embedding too (6N): 1.29% more.
    assert budget.total_flops == pytest.approx(6.8909e23 / 1.0131, rel=2e-3)


def test_missing_tokens_are_named_before_anything_is_solved(
    two_phases: Workload, cluster: ClusterSpec
) -> None:
    """Each phase needs its length; the message says which."""

    def never(*_: object) -> object:
        raise AssertionError("solved without knowing the length")

    plan = solve_layout(two_phases, cluster, OPTIONS.solve)
    silent = replace(two_phases, phases=(replace(two_phases.phases[0], total_tokens=None),))
    with pytest.raises(InputError, match=r"phases\[0\].total_tokens: long context"):
        make_training_plan(silent, cluster, plan, OPTIONS, solve=never)  # type: ignore[arg-type]


def test_nothing_that_fits_is_bad_input() -> None:
    """Without a layout there is no plan; the reason is the solve's."""
    workload, machine = load_workload("llama3-405b"), load_cluster("h100x8")
    plan = solve_layout(workload, machine, SolveOptions(top=1))
    with pytest.raises(InputError, match="no layout to plan with: no layout fits in memory"):
        make_training_plan(workload, machine, plan, OPTIONS)
