"""Fitting constants: recovery of known ones, limits, left-out sources, and rewriting of tables."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import yaml
from checks.fit import (
    errors_by_family,
    fit,
    leave_one_source_out,
    posterior,
    refits,
    source_of,
    spreads,
)
from checks.fit_plan import FitPlan, concerns, parse_plan
from checks.fit_text import rounded, split_names, with_constants, with_preset
from checks.pricing import Pricer

from layoutopt.optimizer.evidence.case import Case
from layoutopt.optimizer.evidence.cases import build_case
from layoutopt.optimizer.evidence.parameters import parameter
from layoutopt.optimizer.evidence.predict import predict
from layoutopt.optimizer.specs.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable

    from layoutopt.optimizer.evidence.run import MeasuredRun

TRUTH = {"gemm_cap.hopper": 0.68, "nvlink_fraction.hopper": 0.6}


@pytest.fixture
def cases(make_run: Callable[..., MeasuredRun]) -> list[Case]:
    """Runs of two made-up sources whose times follow ``TRUTH``; one of them is three times too slow."""
    rows = [
        make_run(id=f"{tp}-{b}", tp=tp, pp=1, dp=32 // tp, micro_batch=b, source=f"lab-{b}", hidden=4096)
        for tp in (1, 2, 4, 8)
        for b in (1, 2, 4)
    ]
    built = [case for row in rows if isinstance(case := build_case(row), Case)]
    timed = [
        replace(case, run=replace(case.run, measured_step_s=predict(case, TRUTH).step_time_s))
        for case in built
    ]
    broken = replace(timed[0].run, measured_step_s=3 * (timed[0].measured_s or 0))
    return [replace(timed[0], run=broken), *timed[1:]]


def plan() -> FitPlan:
    """A plan of the two constants."""
    return FitPlan(parameters=tuple(parameter(name) for name in TRUTH), sigma=3.0)


def test_known_constants_are_recovered(cases: list[Case]) -> None:
    """Two constants come back from runs that follow them, in spite of a broken run."""
    with Pricer(cases) as pricer:
        result = fit(pricer, cases, plan())
    assert result.values["gemm_cap.hopper"] == pytest.approx(0.68, rel=0.02)
    assert result.values["nvlink_fraction.hopper"] == pytest.approx(0.6, rel=0.08)
    assert result.at_bounds == ()


def test_bounds_stop_a_fit(cases: list[Case]) -> None:
    """A cap that would have to exceed what physics allows ends at its bound and is named."""
    fast = [
        replace(case, run=replace(case.run, measured_step_s=(case.measured_s or 0) / 3)) for case in cases
    ]
    with Pricer(fast) as pricer:
        result = fit(pricer, fast, plan())
    assert "gemm_cap.hopper" in result.at_bounds
    assert result.values["gemm_cap.hopper"] <= parameter("gemm_cap.hopper").bounds[1] + 1e-9


def test_a_left_out_source_is_predicted_by_the_others(cases: list[Case]) -> None:
    """Each source is predicted from the rest; here they agree, so that all but the broken run are met."""
    with Pricer(cases) as pricer:
        result = fit(pricer, cases, plan())
        left_out = leave_one_source_out(pricer, cases, plan(), result)
    assert set(left_out) == {"lab-1", "lab-2", "lab-4"}
    unseen = np.full(len(cases), np.nan)
    for name, log_times in left_out.items():
        unseen[[source_of(case) == name for case in cases]] = log_times
    errors = errors_by_family(cases, unseen)
    assert errors["all"].rows == len(cases)
    assert errors["all"].median_ape is not None and errors["all"].median_ape < 0.02


def test_the_posterior_widens_with_disagreement(cases: list[Case]) -> None:
    """Where sources agree it is as wide as their rows leave it; where one differs, at least as wide as the jackknife."""
    with Pricer(cases) as pricer:
        result = fit(pricer, cases, plan())
    agreed = refits(cases, plan(), result)
    narrow = posterior(cases, plan(), result, agreed)
    assert np.allclose(narrow, narrow.T) and (np.linalg.eigvalsh(narrow) > 0).all()
    apart = {name: logs + 0.1 * index for index, (name, logs) in enumerate(agreed.items())}
    wide = posterior(cases, plan(), result, apart)
    spread = list(spreads(plan(), apart).values())
    assert (np.sqrt(np.diag(wide)) >= spread).all()
    assert (np.diag(wide) > np.diag(narrow)).all()


def test_worker_processes_give_the_same_prices(cases: list[Case]) -> None:
    """Two processes and one agree exactly; cases outside the request stay unpriced."""
    with Pricer(cases) as alone, Pricer(cases, workers=2) as pair:
        assert np.array_equal(alone.log_times(TRUTH), pair.log_times(TRUTH))
        few = pair.log_times({}, wanted=[0])
    assert np.isfinite(few[0])


@pytest.mark.parametrize(
    ("name", "gpu", "expected"),
    [
        ("network_fraction.infiniband", "H100-80G-SXM", True),
        ("gemm_cap.hopper", "H100-80G-SXM", True),
        ("gemm_cap.ampere", "H100-80G-SXM", False),
        ("nvlink_fraction.blackwell", "B200-180G", True),
        ("gemm_cap.blackwell-gb200", "B200-180G", False),
        ("host_layer_s.megatron", "H100-80G-SXM", True),
        ("host_layer_s.torchtitan", "H100-80G-SXM", False),
        ("ring_base_s.ll", "H100-80G-SXM", True),
    ],
)
def test_which_runs_a_constant_concerns(
    make_run: Callable[..., MeasuredRun], name: str, gpu: str, expected: bool
) -> None:
    """Constants of another GPU family or framework need no new prices."""
    case = build_case(make_run(gpu=gpu))
    assert isinstance(case, Case)
    assert concerns(name, case) is expected


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"global": {"gemm_cap.hoper": {}}}, "unknown constant 'gemm_cap.hoper'"),
        ({"global": {"gemm_cap.hopper": {"same": ["cap"]}}}, "unknown constant 'cap'"),
        ({"per_framework": {"speed.megatron": {"range": [1, 2]}}}, "unknown constant 'speed.megatron'"),
        (
            {"per_framework": {"host_step_s.megatrom": {"range": [1, 2]}}},
            "unknown constant 'host_step_s.megatrom'",
        ),
        ({"global": {str(index): {} for index in range(41)}}, "41 constants"),
    ],
)
def test_plans_are_limited(cases: list[Case], data: dict[str, Any], message: str) -> None:
    """A plan names known constants, at most 40."""
    with pytest.raises(InputError, match=message):
        parse_plan(data, cases)


def test_constants_without_runs_are_not_fitted(cases: list[Case]) -> None:
    """Only constants that some run depends on are in the plan."""
    data = {
        "global": {"gemm_cap.hopper": {}, "gemm_cap.ampere": {}},
        "per_framework": {
            "host_step_s.megatron": {"range": [0.01, 0.04]},
            "host_step_s.nanotron": {"range": [0.01, 0.04]},
        },
    }
    chosen = parse_plan(data, cases)
    assert chosen.names == ("gemm_cap.hopper", "host_step_s.megatron")
    low, high = parameter("gemm_cap.hopper").bounds
    assert np.exp(chosen.centre()) == pytest.approx([(low * high) ** 0.5, 0.02])
    assert chosen.sigmas() == pytest.approx([np.log(high / low) / 4, np.log(4) / 4])


def test_a_fit_does_not_depend_on_where_it_starts(cases: list[Case]) -> None:
    """With priors of their own, two starts end at the same values."""
    ends = []
    for start in (0.55, 0.75):
        item = replace(parameter("gemm_cap.hopper"), value=start)
        chosen = FitPlan(parameters=(item,), priors={"gemm_cap.hopper": 0.7}, sigma=0.1)
        with Pricer(cases) as pricer:
            ends.append(fit(pricer, cases, chosen).values["gemm_cap.hopper"])
    assert ends[0] == pytest.approx(ends[1], rel=0.01)


def test_tied_constants_take_the_fitted_value(cases: list[Case]) -> None:
    """A tied constant is written with the fitted one, and its runs count as the fitted one's."""
    data = {"global": {"gemm_cap.ampere": {"same": ["gemm_cap.hopper"]}}}
    chosen = parse_plan(data, cases)
    assert chosen.names == ("gemm_cap.ampere",)
    assert chosen.values([0.0]) == {"gemm_cap.ampere": 1.0, "gemm_cap.hopper": 1.0}


CONSTANTS = """# a comment that stays
gemm_cap.hopper:
  value: 0.66
  unit: fraction
  bounds: [0.5, 0.8]  # kept
  source: "fit"
other:
  value: 3
  unit: ratio
"""


def test_constants_are_written_in_place() -> None:
    """Only the value changes and the fit is noted; writing again replaces both."""
    once = with_constants(CONSTANTS, {"gemm_cap.hopper": 0.61234}, "12 runs")
    assert yaml.safe_load(once)["gemm_cap.hopper"]["value"] == 0.612
    assert yaml.safe_load(once)["gemm_cap.hopper"]["fit"] == "12 runs"
    assert yaml.safe_load(once)["other"] == {"value": 3, "unit": "ratio"}
    assert "# a comment that stays" in once and "# kept" in once
    twice = with_constants(once, {"gemm_cap.hopper": 0.7, "other": 4e-5}, "13 runs")
    assert twice.count("fit: ") == 2
    assert yaml.safe_load(twice)["other"]["value"] == pytest.approx(4e-5)
    with pytest.raises(InputError, match="missing"):
        with_constants(CONSTANTS, {"missing": 1.0}, "x")


def test_presets_are_written_in_place() -> None:
    """A framework's field is replaced, or added where it came from the base."""
    text = "source: x  # kept\nhost_layer_s: 0.002\nuntil:\n  v1.0:\n    host_step_s: 0.3\n"
    changed = with_preset(text, {"host_layer_s": 0.0014})
    assert changed == text.replace("0.002", "0.0014")
    added = yaml.safe_load(with_preset(text, {"host_step_s": 0.00091}))
    assert (added["host_step_s"], added["until"]) == (0.00091, {"v1.0": {"host_step_s": 0.3}})


@pytest.mark.parametrize("value", [0.612345, 8e-5, 1.5e-6, 123456.0, 1.0])
def test_written_numbers_are_read_as_numbers(value: float) -> None:
    """YAML takes 8e-05 for a string; what is written must come back as a float."""
    read = yaml.safe_load(f"x: {rounded(value)}")["x"]
    assert isinstance(read, (int, float)) and read == pytest.approx(value, rel=5e-3)


def test_fitted_names_go_to_their_tables() -> None:
    """Preset fields are separated by framework from constants."""
    parts = split_names({"gemm_cap.hopper": 0.6, "host_layer_s.megatron": 0.001}, ("host_layer_s",))
    assert parts == {"": {"gemm_cap.hopper": 0.6}, "megatron": {"host_layer_s": 0.001}}
