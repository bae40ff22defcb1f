"""Error bands, near-ties that cannot be told apart, and the robust choice among them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from checks.published import read_runs

from layoutopt.optimizer.cost.components import Component
from layoutopt.optimizer.cost.factory import CostKind
from layoutopt.optimizer.evidence.band import ALL, Band, bands, error_band, intervals
from layoutopt.optimizer.evidence.case import RunFamily
from layoutopt.optimizer.evidence.cases import build_cases
from layoutopt.optimizer.evidence.choice import choose_robust
from layoutopt.optimizer.evidence.honesty import assess
from layoutopt.optimizer.evidence.parameters import known_parameters
from layoutopt.optimizer.evidence.posterior import draw_posterior
from layoutopt.optimizer.evidence.ties import find_ties, separating_measurement
from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.report.tables.honesty import band_lines
from layoutopt.optimizer.solve.api import solve_layout
from layoutopt.optimizer.solve.plan import SolveOptions
from layoutopt.optimizer.specs.loading import load_cluster, load_workload, override_training
from layoutopt.optimizer.specs.vocabulary import NetworkFabric, Precision

if TYPE_CHECKING:
    from layoutopt.optimizer.solve.plan import Plan
    from layoutopt.optimizer.specs.workload import Workload

CLUSTER = load_cluster("h100x8")


@pytest.fixture(scope="module")
def workload() -> Workload:
    """A question that is solved in a fraction of a second."""
    return override_training(load_workload("llama3-8b"), global_batch=64)


@pytest.fixture(scope="module")
def plan(workload: Workload) -> Plan:
    """Its answer with several runners-up."""
    return solve_layout(workload, CLUSTER, SolveOptions(top=6, near=None))


def band(indistinct: float) -> Band:
    """A made-up band."""
    return Band(
        family="made up",
        rows=1,
        median_ape=0.1,
        p90_ape=0.2,
        bias=0.0,
        unseen_median_ape=0.2,
        unseen_p90_ape=0.3,
        indistinct=indistinct,
        ratios=dict.fromkeys(("50", "80", "95"), (0.8, 1.2)),
        seen_ratios=dict.fromkeys(("50", "80", "95"), (0.9, 1.1)),
    )


@pytest.mark.parametrize(
    ("model", "cluster", "precision", "framework", "family"),
    [
        ("llama3-70b", "h100x64", Precision.BF16, Framework.ANY, RunFamily.DENSE_HOPPER_16),
        ("llama3-70b", "h100x64", Precision.FP8, Framework.ANY, RunFamily.DENSE_HOPPER_8),
        ("llama3-70b", "a100x64", Precision.BF16, Framework.ANY, RunFamily.DENSE_A100),
        ("llama3-70b", "gb200x72", Precision.MXFP8, Framework.ANY, RunFamily.DENSE_BLACKWELL),
        ("deepseek-v3", "h100x64", Precision.FP8, Framework.ANY, RunFamily.MOE),
        ("llama3-8b", "h100x64", Precision.BF16, Framework.NANOTRON, RunFamily.NANOTRON),
    ],
)
def test_families(
    model: str, cluster: str, precision: Precision, framework: Framework, family: RunFamily
) -> None:
    """Experts, GPU generation, precision and nanotron decide the family; every one has measured runs."""
    found = error_band(load_workload(model), load_cluster(cluster), precision, framework=framework)
    assert found.family == family.value
    assert found.rows > 0
    assert 0 < found.median_ape <= found.p90_ape < 1
    assert found.median_ape <= found.unseen_p90_ape


def test_a_family_without_runs_says_so() -> None:
    """AMD GPUs have no measured runs: no rows, and the figures of all families."""
    found = error_band(load_workload("llama3-70b"), load_cluster("mi300xx64"), Precision.BF16)
    assert found.rows == 0
    assert found.median_ape == bands()["families"][ALL]["median_ape"]
    assert found.ratios["80"] == tuple(intervals()["step"][ALL]["unseen"]["80"])


def test_the_shipped_table_names_known_constants() -> None:
    """Spreads belong to constants that a calibration may name."""
    assert set(bands()["constants"]) <= set(known_parameters())
    assert set(bands()["families"]) <= {ALL, *(family.value for family in RunFamily)}


def test_ties_follow_the_band(plan: Plan) -> None:
    """Alternatives inside the band are marked and name a measurement, those outside are not."""
    limit = plan.alternatives[1].slower
    ties = find_ties(plan, band(limit))
    assert len(ties) == len(plan.alternatives)
    for tie, alternative in zip(ties, plan.alternatives, strict=True):
        assert tie.distinguishable is (alternative.slower > limit)
        assert bool(tie.measurement) is not tie.distinguishable


def test_the_measurement_is_of_the_part_that_differs(plan: Plan) -> None:
    """Only tensor-parallel traffic differs: the measurement is of the tensor-parallel group."""
    assert plan.layout is not None and plan.estimate is not None
    parts = {**plan.estimate.breakdown_s, Component.TP: plan.estimate.breakdown_s[Component.TP] + 1.0}
    other = replace(plan.estimate, breakdown_s=parts)
    text = separating_measurement((plan.layout, plan.estimate), (plan.layout, other))
    assert "all_gather" in text and f"on {plan.layout.tp} GPUs" in text


def test_a_group_of_one_rank_is_not_measured(plan: Plan) -> None:
    """Beside a layout without tensor parallelism the other one's group alone has anything to measure."""
    assert plan.layout is not None and plan.estimate is not None
    parts = {**plan.estimate.breakdown_s, Component.TP: 1.0}
    other = replace(plan.estimate, breakdown_s=parts)
    pair = (replace(plan.layout, tp=1), plan.estimate), (replace(plan.layout, tp=2), other)
    assert separating_measurement(*pair) == "all_gather of nccl-tests on 2 GPUs of a node"


def test_draws_are_seeded_and_inside_bounds() -> None:
    """A seed decides the draws; they stay inside physical bounds and leave calibrated constants alone."""
    own = replace(CLUSTER, calibration={"gemm_cap.hopper": 0.6})
    one, same, other = (draw_posterior(own, samples=5, seed=seed) for seed in (1, 1, 2))
    assert one == same != other
    known = known_parameters()
    for values in one:
        assert "gemm_cap.hopper" not in values
        assert all(known[name].bounds[0] <= value <= known[name].bounds[1] for name, value in values.items())


def test_the_robust_choice_loses_least_in_the_mean(plan: Plan, workload: Workload) -> None:
    """The chosen layout has the smallest mean regret of those in the band; alone in the band it loses nothing."""
    options = SolveOptions(seed=3)
    found = choose_robust(plan, workload, CLUSTER, options, band(1.0), samples=6)
    assert found is not None
    assert len(found.layouts) == 1 + len(plan.alternatives)
    assert found.mean_regret[found.chosen] == min(found.mean_regret)
    assert found.layout == found.layouts[found.chosen]
    alone = choose_robust(plan, workload, CLUSTER, options, band(0.0), samples=2)
    assert alone is not None and alone.mean_regret == alone.worst_regret == (0.0,)
    assert alone.layout == plan.layout


def test_the_simple_model_has_no_band(plan: Plan, workload: Workload) -> None:
    """Errors are recorded of the full cost model alone."""
    assert assess(plan, workload, CLUSTER, SolveOptions(cost=CostKind.SIMPLE)) is None
    full = assess(plan, workload, CLUSTER, SolveOptions())
    assert full is not None and full.robust is None
    assert full.band.family == "dense 16-bit H100"


@pytest.mark.parametrize(
    ("cluster", "outside"),
    [
        ("h100x64", ""),
        ("a100x64", ""),
        ("h100-80g-pcie", "GPU h100-80g-pcie"),
        ("a100-80g-pcie", "GPU a100-80g-pcie"),
        ("h200", "GPU h200"),
        ("nodes of 4", "nodes of 4 h100"),
        ("slingshot", "slingshot between hopper GPUs"),
        ("one node of 4", ""),
    ],
)
def test_clusters_without_a_run_say_so(cluster: str, outside: str) -> None:
    """A GPU, a node size or a fabric that no row has: no rows are claimed, and the figures are the wider ones."""
    h100 = load_cluster("h100x64")
    changed = {
        "nodes of 4": replace(h100, gpus_per_node=4),
        "one node of 4": replace(h100, gpus_per_node=4, gpu_count=4),
        "slingshot": replace(h100, fabric=NetworkFabric.SLINGSHOT),
    }
    given = changed.get(cluster) or load_cluster(cluster if "x" in cluster else f"{cluster}x64")
    found = error_band(load_workload("llama3-70b"), given, Precision.BF16)
    assert found.outside == outside
    assert (found.rows == 0) == bool(outside)
    if outside:
        assert found.unseen_p90_ape == bands()["families"][ALL]["unseen_p90_ape"]
        assert f"none on {outside}" in band_lines(found)[0]
        assert band_lines(found)[0].startswith("no measured run of this kind")


@pytest.mark.parametrize(
    "model", ["mixtral-8x7b", "deepseek-v3", "llama3-70b"], ids=lambda name: f"unmeasured {name}"
)
def test_an_unmeasured_cluster_is_never_surer_than_a_measured_one(model: str) -> None:
    """On a GPU, node size or fabric that no run has, no figure is narrower than the same family's or that of all runs."""
    asked, h100 = load_workload(model), load_cluster("h100x64")
    unknown = [
        load_cluster(name) for name in ("l40sx16", "h200x64", "h20x64", "mi300xx64", "a100-80g-pciex64")
    ]
    unknown += [replace(h100, gpus_per_node=4), replace(h100, fabric=NetworkFabric.SLINGSHOT)]
    every = bands()["families"][ALL]
    for cluster in unknown:
        found = error_band(asked, cluster, Precision.BF16)
        assert found.outside and found.rows == 0, cluster.name
        own = bands()["families"].get(found.family, every)
        for error in ("median_ape", "p90_ape", "unseen_median_ape", "unseen_p90_ape"):
            assert getattr(found, error) == max(own[error], every[error]), (cluster.name, error)
        assert abs(found.bias) == max(abs(own["bias"]), abs(every["bias"]))
        steps = intervals()["step"]
        for kind, spans in (("unseen", found.ratios), ("seen", found.seen_ratios)):
            for name in {ALL, found.family} & set(steps):
                for share, (low, high) in steps[name][kind].items():
                    assert spans[share][0] <= low <= high <= spans[share][1], (cluster.name, kind, share)


def test_what_was_measured_is_what_the_tables_hold() -> None:
    """The shipped list of GPUs, node sizes and fabrics is counted again from the rows that state everything."""
    cases, _ = build_cases(read_runs())
    counts = Counter(
        (one.cluster.gpu.name, one.cluster.gpus_per_node, one.cluster.fabric.value)
        for one in cases
        if one.measured_s is not None and one.complete and not one.assumed
    )
    shipped = {(run["gpu"], run["gpus_per_node"], run["fabric"]): run["rows"] for run in bands()["measured"]}
    assert shipped == counts
