"""The validation report: what counts where, JSON keys, memory verdicts, published runs where present."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from checks.published import NEWER, read_runs

from layoutopt.optimizer.cost.components import Component
from layoutopt.optimizer.evidence.assumptions import built_in, parse_assumptions
from layoutopt.optimizer.evidence.case import Case
from layoutopt.optimizer.evidence.cases import build_case, build_cases
from layoutopt.optimizer.evidence.memory import compare_memory, verdict_of
from layoutopt.optimizer.evidence.predict import Prediction, predict
from layoutopt.optimizer.evidence.profile import prepare, step_times_s
from layoutopt.optimizer.evidence.validate import validate
from layoutopt.optimizer.report.json_forms import validation_to_plain
from layoutopt.optimizer.specs.vocabulary import Verdict

if TYPE_CHECKING:
    from collections.abc import Callable

    from layoutopt.optimizer.evidence.run import MeasuredRun


def case_of(run: MeasuredRun) -> Case:
    """Build a case that must exist."""
    case = build_case(run)
    assert isinstance(case, Case), case
    return case


@pytest.fixture
def runs(make_run: Callable[..., MeasuredRun], make_moe_run: Callable[..., MeasuredRun]) -> list[MeasuredRun]:
    """A made-up table: a group of layouts, then a partial, an assumed, a MoE, a skipped and a dead row."""
    group = [make_run(id=f"g{b}", group="g", micro_batch=b, measured_step_s=4.0 + b) for b in (1, 2, 4)]
    return [
        *group,
        make_run(id="partial", zero=None),
        make_run(id="assumed", vp=None),
        make_moe_run(id="experts", mem_gb=60.0, mem_kind="allocated"),
        make_run(id="skipped", method="distillation"),
        make_run(id="dead", measured_step_s=None, oom=True),
    ]


def test_who_counts_where(runs: list[MeasuredRun]) -> None:
    """Partial rows are in the headline but in no family; assumed and untimed rows in their own figures."""
    rules = parse_assumptions("rows: [{ids: [assumed], set: {vp: 1}, why: a test}]")
    report = validate(runs, rules)
    assert report.rows == 8
    assert [skip.run.id for skip in report.skipped] == ["skipped"]
    assert report.step_time.rows == 5
    assert (report.partial.rows, report.assumed.rows) == (1, 1)
    assert {name: entry.rows for name, entry in report.families.items()} == {
        "MoE": 1,
        "dense 16-bit H100": 3,
    }
    assert sum(entry.rows for entry in report.by["framework"].values()) == report.step_time.rows
    assert (report.ranking.groups, report.memory.died, report.memory.summary.rows) == (1, 1, 1)
    assert report.by["kind"]["moe"].rows == 1


def test_errors_are_against_the_measured_time(runs: list[MeasuredRun]) -> None:
    """Halving every measured time turns an error e into 1 + 2 e."""
    halved = [run if run.oom else replace(run, measured_step_s=(run.step_s or 0) / 2) for run in runs]
    before, after = validate(runs), validate(halved)
    assert before.step_time.bias is not None
    assert after.step_time.bias == pytest.approx(1 + 2 * before.step_time.bias)


def test_json_keys(runs: list[MeasuredRun]) -> None:
    """The keys that programs read, with finite numbers; errors are fractions."""
    plain = validation_to_plain(validate(runs), worst=2)
    json.dumps(plain, allow_nan=False)
    assert {
        "rows",
        "skipped",
        "step_time",
        "memory",
        "ranking",
        "by",
        "per_row",
        "families",
        "assumed",
    } <= set(plain)
    assert set(plain["skipped"][0]) == {"id", "reason"}
    assert {"mape", "median_ape", "p90_ape", "bias"} <= set(plain["step_time"])
    assert {"mape", "bias", "rows"} <= set(plain["memory"])
    ranking = (
        "groups",
        "kendall_tau",
        "pairs_over_10pct",
        "top1_regret_mean",
        "top1_regret_median",
        "top3_regret_mean",
    )
    assert set(ranking) <= set(plain["ranking"])
    assert set(plain["by"]) == {"framework", "gpu", "precision", "kind"}
    assert {"id", "measured_s", "predicted_s", "ape"} <= set(plain["per_row"][0])
    assert len(plain["worst"]) == 2
    worst = plain["worst"][0]
    assert sum(worst["breakdown_s"].values()) == pytest.approx(worst["predicted_s"])
    assert worst["ape"] == max(row["ape"] for row in plain["per_row"] if row["ape"] is not None)


def test_an_empty_report_has_no_figures(make_run: Callable[..., MeasuredRun]) -> None:
    """When every row is skipped the figures are null, not zero."""
    plain = validation_to_plain(validate([make_run(method="distillation")]))
    assert plain["step_time"]["mape"] is None
    assert plain["ranking"]["kendall_tau"] is None
    assert plain["per_row"] == []


def test_progress_is_reported(runs: list[MeasuredRun]) -> None:
    """Callers can show how far pricing is."""
    seen: list[tuple[int, int]] = []
    validate(runs, progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (len(seen), len(seen))


def test_prepared_cases_price_as_single_ones(runs: list[MeasuredRun]) -> None:
    """Pricing in batches is the same function as pricing one by one."""
    cases, _ = build_cases(runs)
    batched = step_times_s(prepare(cases), len(cases), {})
    single = [predict(case).step_time_s for case in cases]
    assert batched.tolist() == pytest.approx(single, rel=1e-12)


def test_values_replace_constants(make_run: Callable[..., MeasuredRun]) -> None:
    """A time scale multiplies the step and every part of it; a lower cap makes the step longer."""
    case = case_of(make_run())
    base, scaled = predict(case), predict(case, {"time_scale": 1.5})
    assert scaled.step_time_s == pytest.approx(1.5 * base.step_time_s)
    assert scaled.breakdown_s[Component.FORWARD] == pytest.approx(1.5 * base.breakdown_s[Component.FORWARD])
    assert predict(case, {"gemm_cap.hopper": 0.5}).step_time_s > base.step_time_s
    assert predict(case, {"host_step_s.megatron": 1.0}).step_time_s > base.step_time_s
    assert predict(case, {"host_step_s.torchtitan": 1.0}).step_time_s == base.step_time_s


@pytest.mark.parametrize(
    ("allocated", "verdict"),
    [
        (94.0, Verdict.FITS),
        (95.5, Verdict.BORDERLINE),
        (100.0, Verdict.BORDERLINE),
        (100.1, Verdict.DOES_NOT_FIT),
    ],
)
def test_verdicts(allocated: float, verdict: Verdict) -> None:
    """Borderline is 95 to 100% of usable memory."""
    assert verdict_of(prediction(allocated)) is verdict


def prediction(allocated: float) -> Prediction:
    """A made-up prediction of a GPU with 100 usable bytes."""
    return Prediction(
        step_time_s=1.0,
        breakdown_s={},
        allocated_bytes=allocated,
        reserved_bytes=2 * allocated,
        device_bytes=3 * allocated,
        capacity_bytes=100.0,
        borderline_bytes=95.0,
    )


@pytest.mark.parametrize(
    ("cells", "predicted", "expected"),
    [
        ({"mem_kind": "allocated"}, 50.0, 50.0),
        ({"mem_kind": "reserved"}, 50.0, 100.0),
        ({"mem_kind": "nvidia-smi"}, 50.0, 150.0),
        ({"mem_kind": None}, 50.0, 100.0),
    ],
)
def test_memory_is_compared_in_kind(
    make_run: Callable[..., MeasuredRun], cells: dict[str, Any], predicted: float, expected: float
) -> None:
    """Tensors against tensors, the pool against the pool, the device against the device."""
    case = case_of(make_run(mem_gb=1.0, **cells))
    (row,) = compare_memory([(case, prediction(predicted))]).rows
    assert row.predicted_bytes == expected
    assert row.measured_bytes == (2**30 if cells["mem_kind"] == "nvidia-smi" else 1e9)


def test_memory_verdicts_that_contradict_runs(make_run: Callable[..., MeasuredRun]) -> None:
    """A dead run that fits and a finished run that does not are named; borderline contradicts neither."""
    dead, ran = case_of(make_run(id="dead", measured_step_s=None, oom=True)), case_of(make_run(id="ran"))
    wrong = compare_memory([(dead, prediction(50.0)), (ran, prediction(120.0))])
    assert (wrong.died_but_fits, wrong.ran_but_does_not_fit) == (("dead",), ("ran",))
    fine = compare_memory([(dead, prediction(97.0)), (ran, prediction(97.0))])
    assert (fine.died_but_fits, fine.ran_but_does_not_fit) == ((), ())


def test_published_runs_are_read_and_priced() -> None:
    """Every published row is priced or skipped with a reason; a sample is priced within a factor of three."""
    runs = read_runs()
    cases, skipped = build_cases(runs, built_in("reference"))
    assert len(runs) == 886  # and 48 of both tables that train adapters (``test_adapter_runs``)
    assert len(cases) + len(skipped) == len(runs)
    assert len(cases) >= 820
    assert sum(bool(case.assumed) and case.assumed != ("offload",) for case in cases) == 4
    assert all(skip.reason for skip in skipped)
    sample = [case for case in cases[::25] if case.measured_s and case.family.value != "nanotron"]
    ratios = [predict(case).step_time_s / (case.measured_s or 1.0) for case in sample]
    assert all(1 / 3 < ratio < 3 for ratio in ratios)


def test_newer_runs_are_read_and_priced() -> None:
    """Rows that no constant was fitted to are priced or skipped with a reason, too."""
    runs = read_runs([NEWER])
    cases, skipped = build_cases(runs, built_in("reference"))
    assert len(runs) == len(cases) + len(skipped) == 146
    assert cases
    assert all(skip.reason for skip in skipped)
    assert all(predict(case).step_time_s > 0 for case in cases[::10])
