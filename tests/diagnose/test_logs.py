"""Logs of trainers held against the plan that ran: what timers tell comes back, causes are named, constants are read."""

from __future__ import annotations

import gzip
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from checks.logged_runs import deepspeed_log, logged_job, megatron_log, nanotron_log, torchtitan_log
from click.testing import CliRunner, Result

from layoutopt import InputError, diagnose
from layoutopt.cli import main
from layoutopt.optimizer.ask.planned import load_planned
from layoutopt.optimizer.diagnose.cause import CauseKind
from layoutopt.optimizer.diagnose.log_diagnosis import LogDiagnosis, diagnose_log
from layoutopt.optimizer.diagnose.logged import LoggedSpan
from layoutopt.optimizer.interop.profiles.read import read_log
from layoutopt.optimizer.specs.loading import load_cluster

if TYPE_CHECKING:
    from checks.logged_runs import LoggedJob

FORMATS = Path(__file__).parents[1] / "interop" / "samples"
WRITERS: dict[str, Any] = {
    "megatron": megatron_log,
    "deepspeed": deepspeed_log,
    "torchtitan": torchtitan_log,
    "nanotron": nanotron_log,
}


def run(*words: str) -> Result:
    """Run the command line."""
    return CliRunner(env={"COLUMNS": "110"}).invoke(main, list(words))


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a plan on eight GPUs with a pipeline."""
    file = tmp_path_factory.mktemp("plan") / "plan.json"
    fixed = ("--fix", "tp=2", "--fix", "pp=2", "--fix", "zero=1")
    assert run("solve", "llama3-8b", "h100x8", "--batch", "8", *fixed, "-q", "-o", str(file)).exit_code == 0
    return file


@pytest.fixture(scope="module")
def job(plan: Path) -> LoggedJob:
    """Return the run that the plan predicts."""
    return logged_job(load_planned(plan))


def held(text: str, job: LoggedJob, folder: Path) -> LogDiagnosis:
    """Read a log and hold it against the plan."""
    file = folder / "train.log"
    file.write_text(text)
    return diagnose_log(read_log(file), job.planned.cost, job.planned.layout)


def seconds(found: LogDiagnosis) -> dict[str, tuple[float, float]]:
    """Return predicted and measured seconds by words."""
    return {row.words: (row.predicted_s, row.measured_s) for row in found.difference.rows}


def test_megatron_timers_come_back_term_by_term(job: LoggedJob, tmp_path: Path) -> None:
    """Level 2: every span alone, what was put in, and the step is their sum; nothing stands out of a clean run."""
    found = held(megatron_log(job), job, tmp_path)
    assert [row.spans for row in found.difference.rows] == [
        (span,) for span in LoggedSpan if job.spans_s[span]
    ]
    for row in found.difference.rows:
        assert row.measured_s == pytest.approx(job.spans_s[row.spans[0]], abs=2e-4)
        assert row.predicted_s == pytest.approx(job.spans_s[row.spans[0]], abs=1e-9)
    assert sum(row.measured_s for row in found.difference.rows) == pytest.approx(found.step_s)
    assert found.causes == () and found.notes == (
        "median of 3 logged steps; the first, which compiles and warms up, is left out",
    )


def test_prefixes_of_launchers(job: LoggedJob, tmp_path: Path) -> None:
    """Lines behind a rank in brackets, and lines of other systems' ends, tell the same."""
    text = megatron_log(job)
    plain = seconds(held(text, job, tmp_path))
    for prefix in ("[default7]:", "[rank0]:"):
        lines = "\r\n".join(prefix + line for line in text.splitlines())
        assert seconds(held(lines, job, tmp_path)) == plain


def test_fewer_timers_tell_sums(job: LoggedJob, tmp_path: Path) -> None:
    """Level 1 sums the passes, level 0 everything, and one line says what is not told apart."""
    one = held(megatron_log(job, level=1), job, tmp_path)
    words = "forward passes, backward passes, pipeline sends and bubble"
    assert seconds(one)[words][1] == pytest.approx(
        sum(job.spans_s[span] for span in (LoggedSpan.FORWARD, LoggedSpan.BACKWARD, LoggedSpan.PIPELINE)),
        abs=2e-4,
    )
    assert f"does not tell apart: {words}. Traces" in one.notes[-1]
    none = held(megatron_log(job, level=0), job, tmp_path)
    assert len(none.difference.rows) == 1 and none.difference.rows[0].measured_s == pytest.approx(
        job.step_s, abs=1e-4
    )


@pytest.mark.parametrize("writer", WRITERS)
def test_every_trainer_tells_the_step(writer: str, job: LoggedJob, tmp_path: Path) -> None:
    """The step comes from a time, from tokens a second and GPU, or from samples a second; terms sum to both steps."""
    found = held(WRITERS[writer](job), job, tmp_path)
    assert found.profile.trainer == writer and found.step_s == pytest.approx(job.step_s, rel=5e-3)
    assert sum(row.predicted_s for row in found.difference.rows) == pytest.approx(
        found.difference.predicted_s
    )
    assert sum(row.measured_s for row in found.difference.rows) == pytest.approx(found.step_s)
    assert found.causes == ()


def test_deepspeed_timers(job: LoggedJob, tmp_path: Path) -> None:
    """Passes are told, gathers of weights not from the optimizer; without rates the timers are the step."""
    found = held(deepspeed_log(job), job, tmp_path)
    told = seconds(found)
    assert told["forward passes"][1] == pytest.approx(job.spans_s[LoggedSpan.FORWARD], abs=1e-4)
    assert told["backward passes"][1] == pytest.approx(job.spans_s[LoggedSpan.BACKWARD], abs=1e-4)
    assert (
        "gradient sums and weight gathers, optimizer" in told
        and "deepspeed does not tell apart" in found.notes[-1]
    )
    bare = held(deepspeed_log(job, rates=False), job, tmp_path)
    timed = (LoggedSpan.FORWARD, LoggedSpan.BACKWARD, LoggedSpan.GRADIENTS, LoggedSpan.OPTIMIZER)
    assert bare.step_s == pytest.approx(sum(job.spans_s[span] for span in timed), abs=2e-4)


def test_deepspeed_sums_and_optimizer_are_blamed_apart(job: LoggedJob, tmp_path: Path) -> None:
    """Where the sums of gradients have a timer, each cause has its own seconds; what is told as a sum is called one."""
    slow = job.added(gradients=2.0, rest=0.5)  # half of it sums, half gathers within the optimizer's timer
    found = held(deepspeed_log(slow), slow, tmp_path).causes
    causes = {cause.words.split(" take ")[0].split(" took ")[0]: cause for cause in found}
    sums, update = causes["gradient sums"], causes["the optimizer with gathers of weights"]
    assert sums.seconds == pytest.approx(1.0, rel=0.02) and update.seconds == pytest.approx(1.0, rel=0.02)
    assert "longer than all of that traffic" in sums.words
    assert causes["pipeline sends and bubble, rest of the step"].seconds == pytest.approx(0.5, rel=0.1)
    slow = job.scaled(optimizer=6.0)
    (only,) = held(deepspeed_log(slow), slow, tmp_path).causes
    assert only.words.startswith("the optimizer with gathers of weights took")


FAULTS: dict[str, tuple[Any, str]] = {
    "batches": (lambda job: job.added(data=0.1), "batches take"),
    "recomputation": (lambda job: job.added(backward=0.9 * job.spans_s[LoggedSpan.FORWARD]), "recomputation"),
    "slow passes": (
        lambda job: job.scaled(forward=1.2, backward=1.2),
        "forward and backward passes take 1.20 times",
    ),
    "no overlap": (lambda job: job.added(gradients=0.014), "they are not overlapped"),
    "slow link": (lambda job: job.added(gradients=2.0), "longer than all of that traffic"),
    "optimizer": (lambda job: job.scaled(optimizer=6.0), "the optimizer took"),
    "between timers": (lambda job: job.added(rest=0.2), "what lies between the timers"),
    "slow rank": (lambda job: replace(job, slow_rank=(5, 1.3)), "forward passes of one rank take 1.3"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_the_fault_is_named_first(name: str, job: LoggedJob, tmp_path: Path) -> None:
    """One fault each, with seconds, evidence and what to try."""
    change, words = FAULTS[name]
    found = held(megatron_log(change(job)), job, tmp_path)
    assert found.causes and words in found.causes[0].words, [cause.words for cause in found.causes]
    assert found.causes[0].seconds > 0 and found.causes[0].evidence and found.causes[0].remedy


def test_all_ranks_name_the_slow_one(job: LoggedJob, tmp_path: Path) -> None:
    """``--timing-log-option all`` lists every rank's timers."""
    found = held(megatron_log(replace(job, slow_rank=(5, 1.3)), option="all"), job, tmp_path)
    assert found.causes[0].about == "rank 5"


def test_calibration_reads_what_the_log_tells(job: LoggedJob, plan: Path, tmp_path: Path) -> None:
    """One scale from the passes, the optimizer from its timer; the new step is the measured one."""
    log, out = tmp_path / "train.log", tmp_path / "calibrated.yaml"
    passes = job.scaled(forward=1.1, backward=1.1, pipeline=1.1, gradients=1.1, rest=1.1, optimizer=1.6)
    log.write_text(megatron_log(passes))
    result = run("diagnose", str(plan), str(log), "--calibrate", str(out), "--json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    fits = {fit["name"]: fit for fit in found["calibration"]["fits"]}
    assert fits["time_scale"]["value"] == pytest.approx(1.1, rel=0.01) and fits["time_scale"]["taken"]
    assert fits["optimizer_hbm_fraction"]["value"] < fits["optimizer_hbm_fraction"]["present"]
    assert found["calibration"]["after_s"] == pytest.approx(passes.step_s, rel=0.01)
    assert found["outlook"]["best_s"] > 0 and "time_scale" in out.read_text()
    assert run("solve", "llama3-8b", str(out), "--batch", "8", "-q").exit_code == 0


def test_calibrate_takes_the_same_door(job: LoggedJob, plan: Path, tmp_path: Path) -> None:
    """``calibrate --profile`` reads the constants that ``diagnose --calibrate`` does, and needs the plan."""
    log, one, other = tmp_path / "train.log", tmp_path / "one.yaml", tmp_path / "other.yaml"
    log.write_text(megatron_log(job.scaled(forward=1.1, backward=1.1)))
    assert run("diagnose", str(plan), str(log), "--calibrate", str(one)).exit_code == 0
    words = ("calibrate", "--cluster", "h100x8", "--profile", str(log), "-o", str(other))
    result = run(*words, "--plan", str(plan))
    assert result.exit_code == 0 and "time_scale" in result.stdout, result.stderr
    assert load_cluster(other).calibration == load_cluster(one).calibration != {}
    refused = run(*words)
    assert refused.exit_code == 2 and "--plan: missing" in refused.stderr
    nothing = run("calibrate", "--cluster", "h100x8", "-o", str(other))
    assert nothing.exit_code == 2 and "nothing to calibrate with" in nothing.stderr
    wrong = run(
        "calibrate", "--cluster", "b200x8", "--profile", str(log), "-o", str(other), "--plan", str(plan)
    )
    assert wrong.exit_code == 2 and "ran on h100, the cluster has b200" in wrong.stderr
    assert len(wrong.stderr.splitlines()) == 1


def test_command_page_and_python(job: LoggedJob, plan: Path, tmp_path: Path) -> None:
    """Tables, JSON, page and the call from Python; a log has no trace to write; gzip is read."""
    log, page = tmp_path / "train.log.gz", tmp_path / "page.html"
    log.write_bytes(gzip.compress(megatron_log(job.added(data=0.2)).encode()))
    result = run("diagnose", str(plan), str(log), "--report", str(page))
    assert result.exit_code == 0, result.stderr
    assert "1. batches take 200 ms" in result.stdout and "(log of megatron, 4 steps)" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 110
    assert "Measured above predicted" in page.read_text() and "From predicted to measured" in page.read_text()
    found = json.loads(run("diagnose", str(plan), str(log), "--json").stdout)
    assert sum(term["measured_s"] for term in found["terms"]) == pytest.approx(found["measured_step_s"])
    assert found["log"]["trainer"] == "megatron" and found["terms"][0]["spans"] == ["forward"]
    called = diagnose(plan, log)
    assert called.causes[0].about == "data loader" and called.step_s == pytest.approx(
        job.step_s + 0.2, rel=1e-3
    )
    refused = run("diagnose", str(plan), str(log), "--trace", str(tmp_path / "x.json"))
    assert refused.exit_code == 2 and "a log does not say when a kernel ran" in refused.stderr


BAD: dict[str, tuple[Any, str]] = {
    "truncated": (lambda job: gzip.compress(megatron_log(job).encode())[:-200], "the file is truncated"),
    "cut before a step": (lambda job: megatron_log(job)[:250].encode(), "no Megatron iteration lines"),
    "merged": (
        lambda job: (megatron_log(job) + megatron_log(replace(job, changed={"tp": 4, "dp": 1}))).encode(),
        "holds the logs of 2 jobs",
    ),
    "foreign": (lambda job: b"Epoch 1: loss 0.3\nEpoch 2: loss 0.2\n", "tells of no steps"),
    "another layout": (
        lambda job: megatron_log(replace(job, changed={"tp": 4, "dp": 1})).encode(),
        "is of a run with tp 4, dp 1",
    ),
    "two trainers": (
        lambda job: (megatron_log(job) + torchtitan_log(job)).encode(),
        "holds lines of torchtitan-log and megatron-log",
    ),
    "timers of another run": (
        lambda job: re.sub(r"\(ms\): [\d.]+ \|", "(ms): 10.0 |", megatron_log(job)).encode(),
        "has timers that add up to",
    ),
    "no time at all": (
        lambda job: re.sub(r": [\d.]+", ": 0.0", deepspeed_log(job, rates=False)).encode(),
        "states no step time",
    ),
    "zero steps": (
        lambda job: re.sub(r"\(ms\): [\d.]+", "(ms): 0.0", megatron_log(job, level=0)).encode(),
        "states no step time",
    ),
    "a rank too many": (
        lambda job: megatron_log(job, option="all").replace("rank  7", "rank 4096").encode(),
        "has timers of rank 4096, the plan has 8 GPUs",
    ),
    "binary": (lambda job: bytes(range(256)) * 40, "no"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_logs(name: str, job: LoggedJob, plan: Path, tmp_path: Path) -> None:
    """One line each."""
    log = tmp_path / "train.log"
    log.write_bytes(BAD[name][0](job))
    result = run("diagnose", str(plan), str(log))
    assert result.exit_code == 2 and BAD[name][1] in result.stderr, result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_gaps_are_in_the_unit_of_their_size(job: LoggedJob, plan: Path, tmp_path: Path) -> None:
    """A gap of milliseconds is not written in seconds beside times in milliseconds."""
    log = tmp_path / "train.log"
    log.write_text(megatron_log(job.added(data=0.1)))
    result = run("diagnose", str(plan), str(log))
    assert result.exit_code == 0 and re.search(r"[+-]\d+(\.\d+)? ms", result.stdout)
    assert not re.search(r"[+-]0\.\d+ s\b", result.stdout)


def test_a_log_stands_alone(job: LoggedJob, plan: Path, tmp_path: Path) -> None:
    """Two logs, or a log among traces, are refused."""
    log = tmp_path / "train.log"
    log.write_text(megatron_log(job))
    result = run("diagnose", str(plan), str(log), str(log))
    assert result.exit_code == 2 and "is a log, which stands alone" in result.stderr


def test_steps_of_years_are_refused(job: LoggedJob, tmp_path: Path) -> None:
    """No step and no timer lasts longer than a day: one line."""
    text = re.sub(r"(elapsed time per iteration \(ms\): )[\d.]+", r"\g<1>99999999999.0", megatron_log(job))
    with pytest.raises(InputError, match=r"tells of 3\.17 years in a step \(a day at most\)"):
        held(text, job, tmp_path)


def test_two_steps_and_one(job: LoggedJob, tmp_path: Path) -> None:
    """The first of two steps may be a warm-up and does not count; of one that is said."""
    text = megatron_log(job)
    parts = text.split(" [2026")
    found = held(" [2026".join(parts[:3]), job, tmp_path)
    assert found.profile.steps == 2 and found.step_s == pytest.approx(job.step_s, abs=1e-3)
    assert found.notes[0] == "the last of two logged steps: the first may be a warm-up"
    one = held(" [2026".join(parts[:2]), job, tmp_path)
    assert one.profile.steps_words == "1 step" and "it may be a warm-up" in one.notes[0]


@pytest.mark.parametrize("word", ["inf", "-900.0", "nan"])
def test_lines_without_a_time_are_said(word: str, job: LoggedJob, tmp_path: Path) -> None:
    """Steps whose time is no positive number are left out, and counted."""
    text = re.sub(r"(iteration +[34]/.*?\(ms\): )[\d.]+", rf"\g<1>{word}", megatron_log(job))
    found = held(text, job, tmp_path)
    assert found.profile.steps == 2
    assert found.notes[1] == "2 lines of steps are left out: no readable time or rate"


def test_lines_of_timers_are_steps(job: LoggedJob, tmp_path: Path) -> None:
    """DeepSpeed's timers alone, with those of micro-steps between: each line of whole steps counts once."""
    text = deepspeed_log(job, rates=False)
    lines = sum(" fwd: " in line for line in text.splitlines())
    small = "[INFO] [Rank 0] time (ms) | fwd_microstep: 90.00 | bwd_microstep: 180.00\n" * 7
    found = held(small + text, job, tmp_path)
    assert found.profile.steps == lines > 1 and "lines of timers" in found.notes[0]


def test_a_whole_step_is_one(job: LoggedJob, tmp_path: Path) -> None:
    """The sentence about a log of whole steps alone is in the singular."""
    found = held(megatron_log(job.scaled(forward=2, backward=2), level=0), job, tmp_path)
    assert found.causes[0].words.startswith("whole step takes")


def test_a_log_faster_than_predicted(job: LoggedJob, plan: Path, tmp_path: Path) -> None:
    """The term that carries it is named, with what to check; above the hardware's peak the log is refused."""
    found = held(megatron_log(job.scaled(backward=0.7)), job, tmp_path)
    assert found.causes[0].kind is CauseKind.FASTER and found.causes[0].about == "backward passes"
    assert "0.70 times" in found.causes[0].words and "layers and GPU" in found.causes[0].remedy
    log = tmp_path / "fast.log"
    log.write_text(megatron_log(job.scaled(**{span.value: 0.01 for span in LoggedSpan})))
    result = run("diagnose", str(plan), str(log))
    assert result.exit_code == 2 and "times the peak of h100" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_python_refuses_what_is_missing(plan: Path, tmp_path: Path) -> None:
    """No profiles, and an axis that is none: InputError, as the command line says it."""
    with pytest.raises(InputError, match="profiles: nothing to diagnose"):
        diagnose(plan)
    with pytest.raises(InputError, match=r"axes: 'zz' is none .*tp"):
        diagnose(plan, tmp_path, axes={"all_reduce": "zz"})
