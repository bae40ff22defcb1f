"""Constants from measured terms: the ones that a job was run with come back, and what a term does not tell stays."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from checks.traced_files import write_traces
from checks.traced_plan import job_of, launched_late
from checks.traced_run import Run
from click.testing import CliRunner

from layoutopt import load_cluster
from layoutopt.cli import main
from layoutopt.optimizer.ask.planned import load_planned
from layoutopt.optimizer.diagnose.constants import TermCalibration, calibrate_terms
from layoutopt.optimizer.diagnose.diagnosis import diagnose
from layoutopt.optimizer.diagnose.outlook import Outlook
from layoutopt.optimizer.diagnose.predicted import expectation
from layoutopt.optimizer.interop.profiles.read import read_profiles
from layoutopt.optimizer.report.tables.term_calibration import outlook_lines

if TYPE_CHECKING:
    from pathlib import Path

TRUTH = {
    "gemm_cap.hopper": 0.63, "attention_speed.megatron": 0.85, "hbm_fraction.hopper": 0.7, "nvlink_fraction.hopper": 0.72,
    "host_step_s.megatron": 0.08,
}  # fmt: skip


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a solved plan of eight GPUs."""
    file = tmp_path_factory.mktemp("plan") / "plan.json"
    fixed = (
        "tp=2",
        "pp=2",
        "cuda_graph=none",
        "tp_overlap=0",
    )  # so that the host and every call take their time
    words = ["solve", "llama3-8b", "h100x8", "--batch", "16", "-q", "-o", str(file)]
    words += [word for one in fixed for word in ("--fix", one)]
    assert CliRunner().invoke(main, words).exit_code == 0
    return file


def traces(
    plan: Path, folder: Path, constants: dict[str, float], pause_us: int = 0, late_us: int = 0
) -> Path:
    """Run the plan's job on a machine of other constants, its host pausing or late, and write its traces."""
    planned = load_planned(plan)
    job = job_of(planned.repriced(constants), planned.layout, noise=0.03)
    job = replace(job, host_us=job.host_us + pause_us)
    job = launched_late(job, late_us) if late_us else job
    write_traces(Run(replace(job, steps=2)), folder)
    return folder


def calibrated(plan: Path, folder: Path) -> TermCalibration:
    """Calibrate with the traces in a folder."""
    planned = load_planned(plan)
    found = diagnose(read_profiles([folder]), planned.cost, planned.layout)
    framework = planned.question.options.framework
    return calibrate_terms(
        found, lambda values: expectation(planned.repriced(values), planned.layout), framework, {}
    )


def test_constants_come_back(plan: Path, tmp_path: Path) -> None:
    """Those of kernels within 2%, all within two deviations that they state, the step within 2% instead of 8% off."""
    found = calibrated(plan, traces(plan, tmp_path, TRUTH))
    fits = {fit.name: fit for fit in found.fits if fit.taken}
    for name, value in TRUTH.items():
        off = abs(math.log(fits[name].value / value))
        assert off < (2 * fits[name].sigma if name.startswith("nvlink") else 0.02), name
        assert 0.03 <= fits[name].sigma < 0.1
        assert fits[name].present != fits[name].value
    # what was read conditions the posterior: each constant within what it was read, and the step as a whole
    spreads = {name: one.spread for one in found.observations for name in one.slopes if not one.shares}
    assert spreads == {name: pytest.approx(fit.sigma, rel=1e-2) for name, fit in fits.items()}
    assert found.step.ratio == pytest.approx(found.measured_s / found.after_s, rel=1e-3) and found.step.shares
    assert not fits.keys() & found.step.slopes.keys()
    assert abs(found.after_s / found.measured_s - 1) < 0.02 < abs(found.before_s / found.measured_s - 1)


@pytest.mark.parametrize("host", [{"pause_us": 400_000}, {"late_us": 300}], ids=["pauses", "stalls"])
def test_a_host_that_pauses_or_stalls_is_said(plan: Path, tmp_path: Path, host: dict[str, int]) -> None:
    """Its time becomes a constant only with a warning that names cause and constant."""
    found = calibrated(plan, traces(plan, tmp_path, {}, **host))
    taken = [fit.name for fit in found.fits if fit.taken and fit.name.startswith("host_")]
    said = [warning for warning in found.warnings if "the host" in warning]
    assert taken and said
    assert all(taken[0] in warning and "profile again" in warning for warning in said)
    assert {f"Warning: {warning}." for warning in said} <= set(found.lines)


def test_a_clean_host_is_no_warning(plan: Path, tmp_path: Path) -> None:
    """Noise alone says nothing of the host."""
    assert not [one for one in calibrated(plan, traces(plan, tmp_path, {})).warnings if "host" in one]


def test_what_a_term_does_not_tell_stays(plan: Path, tmp_path: Path) -> None:
    """Within one node nothing crosses the network, and a host that is never waited for has no time to read."""
    names = {fit.name for fit in calibrated(plan, traces(plan, tmp_path, {})).fits if fit.taken}
    assert not {name for name in names if name.startswith(("network_fraction", "host_layer_s"))}


def test_command_writes_cluster_trace_and_page(plan: Path, tmp_path: Path) -> None:
    """The cluster file loads and states the constants, Perfetto's trace holds both steps, the page its charts."""
    folder = tmp_path / "traces"
    folder.mkdir()
    traces(plan, folder, TRUTH)
    cluster, trace, report = (tmp_path / name for name in ("cluster.yaml", "both.json", "page.html"))
    words = ("diagnose", str(plan), str(folder), "--calibrate", str(cluster), "--trace", str(trace), "--json")
    result = CliRunner().invoke(main, [*words, "--report", str(report)])
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["calibration"]["values"]["gemm_cap.hopper"]["value"] == pytest.approx(0.63, rel=0.02)
    assert set(found["outlook"]) >= {"layout", "best_s", "runs_s", "saving", "error", "worth_it"}
    # the search stays within what the plan fixed, and says so
    fixed = ["tp=2", "pp=2", "cuda_graph=none", "tp_overlap=0"]
    assert sorted(found["outlook"]["fixed"]) == sorted(fixed)
    ahead = Outlook(layout=None, runs_s=1.0, best_s=1.0, error=0.03, fixed=tuple(fixed))
    within = f", within the plan's --fix {' '.join(fixed)}"
    assert outlook_lines(ahead) == [f"no layout fits under these constants{within}"]
    assert outlook_lines(replace(ahead, fixed=())) == ["no layout fits under these constants"]
    # and what it would be without them, which tells whether they are worth keeping
    free = found["outlook"]["free"]
    assert free["fixed"] == [] and free["best_s"] < found["outlook"]["best_s"]
    layout = load_planned(plan).layout
    lines = outlook_lines(
        replace(ahead, layout=layout, free=replace(ahead, layout=layout, best_s=0.9, fixed=()))
    )
    assert lines[0].endswith(within) and lines[2].startswith("without --fix it would be tp=2")
    assert "10.0% less than the layout that ran" in lines[2] and lines[3].startswith(
        "that is more than the 3.0%"
    )
    assert found["outlook"]["best_s"] <= found["outlook"]["runs_s"] * 1.0001
    assert load_cluster(cluster).calibration["hbm_fraction.hopper"] == pytest.approx(0.7, rel=0.02)
    events = json.loads(trace.read_text())["traceEvents"]
    named = {event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert {"rank 0 measured", "rank 7 measured", "stage 0 predicted", "stage 1 predicted"} <= named
    predicted_us = sum(event["dur"] for event in events if event["ph"] == "X" and event["pid"] == 1_000_000)
    assert predicted_us == pytest.approx(found["predicted_step_s"] * 1e6)
    page = report.read_text()
    for key in ("bars", "waterfall", "ranks", "time"):
        assert f'id="{key}-figure"' in page
