"""Traces as nobody should write them: what can be read is, what was left out is said, and all else is one clear line."""

from __future__ import annotations

import copy
import gzip
import json
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from checks.traced_faults import planned
from checks.traced_files import trace_of
from checks.traced_plan import job_of
from checks.traced_run import Run

from layoutopt import InputError
from layoutopt.optimizer.diagnose.constants import calibrate_terms
from layoutopt.optimizer.diagnose.diagnosis import diagnose
from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.interop.profiles.options import ProfileOptions
from layoutopt.optimizer.interop.profiles.read import read_profiles

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from layoutopt.optimizer.diagnose.diagnosis import Diagnosis

    Trace = dict[str, Any]

PLAN = ("llama3-8b", "tp=2,pp=2,zero=1,micro_batch=1", 4, 8192)
OTHER = ("llama3-8b", "tp=4,zero=1,micro_batch=1", 4, 8192)


def job_trace(plan: tuple[str, str, int, int]) -> Trace:
    """Return rank 0's trace of a plan's job."""
    job = replace(job_of(*planned(plan)), steps=2)
    return trace_of(job, Run(job).ranks[0])


@pytest.fixture(scope="module")
def trace() -> Trace:
    """Return a trace as it should be."""
    return job_trace(PLAN)


def held(file: Path, **options: Any) -> Diagnosis:
    """Hold a file against the plan."""
    return diagnose(read_profiles([file], ProfileOptions(**options)), *planned(PLAN))


def of_category(plain: Trace, *names: str) -> list[dict[str, Any]]:
    """Return the events of some categories."""
    return [event for event in plain["traceEvents"] if event.get("cat") in names]


def steps_of(plain: Trace) -> list[dict[str, Any]]:
    """Return the marks of steps."""
    return [event for event in plain["traceEvents"] if event["name"].startswith("ProfilerStep#")]


def without_steps(plain: Trace) -> None:
    """Leave out the marks of steps and of optimizer calls."""
    marks = ("ProfilerStep#", "Optimizer.step#")
    plain["traceEvents"] = [event for event in plain["traceEvents"] if not event["name"].startswith(marks)]


def huge_numbers(plain: Trace) -> None:
    """Give processes and threads numbers of more than 64 bits."""
    for event in plain["traceEvents"]:
        event["pid"], event["tid"] = event["pid"] + 2**70, event["tid"] + 2**66


def words_for_numbers(plain: Trace) -> None:
    """Name processes and threads."""
    for event in plain["traceEvents"]:
        event["pid"], event["tid"] = f"python {event['pid']}", f"stream {event['tid']}"


def without_args(plain: Trace) -> None:
    """Leave out what events say beside their name and time."""
    for event in plain["traceEvents"]:
        event.pop("args", None)


def odd_args(plain: Trace) -> None:
    """Put other types into what events say, and into the file's own lists."""
    odd: Trace = {"correlation": "7", "stream": None, "Collective name": 5, "Process Group Ranks": "[0,1,", "dtype": [],
           "In msg nelems": -3, "Group size": "x"}  # fmt: skip
    for event in plain["traceEvents"]:
        event["args"] = {key: odd.get(key, value) for key, value in event["args"].items()}
    plain |= {
        "deviceProperties": 7,
        "distributedInfo": {"rank": 0, "pg_config": {"a": 1}},
        "baseTimeNanoseconds": "later",
    }


def far_base(plain: Trace) -> None:
    """Count times from a moment that no clock has."""
    plain["baseTimeNanoseconds"] = 10**30


def since_1970(plain: Trace) -> None:
    """Count times from 1970, as releases before 2.3 do."""
    plain.pop("baseTimeNanoseconds", None)
    for event in plain["traceEvents"]:
        event["ts"] += 1.75e15


READ: dict[str, Callable[[Trace], None]] = {
    "huge numbers of processes": huge_numbers,
    "words for numbers": words_for_numbers,
    "no args": without_args,
    "odd args": odd_args,
    "a far base": far_base,
    "times since 1970": since_1970,
}


@pytest.mark.parametrize("name", READ)
def test_read_all_the_same(name: str, trace: Trace, tmp_path: Path) -> None:
    """Numbers and words beside the times do not change a step."""
    plain = copy.deepcopy(trace)
    READ[name](plain)
    file = tmp_path / "rank0_trace.json"
    file.write_text("\ufeff" + json.dumps(plain), encoding="utf-8")
    found = held(file)
    assert found.difference is not None
    assert found.difference.measured_s == pytest.approx(found.difference.predicted_s, rel=0.02)


def spoil(plain: Trace, **values: Any) -> int:
    """Spoil every ninth kernel's fields and return how many."""
    chosen = of_category(plain, "kernel")[4::9]
    for event in chosen:
        event.update(values)
    return len(chosen)


@pytest.mark.parametrize(
    "values",
    [
        {"dur": -5.0},
        {"dur": 1e15},
        {"ts": float("nan")},
        {"ts": 1e300},
        {"ts": "soon"},
        {"dur": float("inf")},
        {"name": None},
    ],
)
def test_impossible_events_are_left_out(values: Trace, trace: Trace, tmp_path: Path) -> None:
    """Negative, endless and missing times: the rest is read, and a note counts them."""
    plain = copy.deepcopy(trace)
    count = spoil(plain, **values)
    file = tmp_path / "rank0_trace.json"
    file.write_text(json.dumps(plain))
    notes = held(file).notes
    assert notes == (f"rank0_trace.json: {count:,} events without a name or a possible time are left out",)


def longer_steps(plain: Trace) -> None:
    """Let every step last into the next one."""
    for event in steps_of(plain):
        event["dur"] *= 2.5


def steps_at_once(plain: Trace) -> None:
    """Let all steps begin at one time."""
    for event in steps_of(plain):
        event["ts"] = steps_of(plain)[0]["ts"]


def a_step_of_no_length(plain: Trace) -> None:
    """Let the first step end where it begins."""
    steps_of(plain)[0]["dur"] = 0


def a_far_member(plain: Trace) -> None:
    """Say of a group that it has a rank which the plan has not."""
    for event in of_category(plain, "kernel", "cpu_op"):
        if "Process Group Ranks" in event.get("args", {}):
            event["args"]["Process Group Ranks"] = "[0, 9]"
    for group in plain["distributedInfo"].get("pg_config", []):
        group["ranks"] = [0, 9]


def all_twice(plain: Trace) -> None:
    """List every event twice."""
    plain["traceEvents"] *= 2


def no_kernel_has_a_time(plain: Trace) -> None:
    """Put every kernel where no clock is."""
    for event in of_category(plain, "kernel"):
        event["ts"] = -1e300


def of_a_larger_job(plain: Trace) -> None:
    """Say that the job has twice as many ranks."""
    plain["distributedInfo"]["world_size"] *= 2


def of_a_far_rank(plain: Trace) -> None:
    """Say that it is of a rank that no job has."""
    plain["distributedInfo"]["rank"] = 10**30


REFUSED: dict[str, tuple[Callable[[Trace], None], str]] = {
    "no steps": (without_steps, "marks no step"),
    "steps overlap": (longer_steps, "has steps that overlap"),
    "steps at one time": (steps_at_once, "has steps that overlap"),
    "a step of no length": (a_step_of_no_length, "marks a step of no length"),
    "a far member of a group": (a_far_member, "names rank 9 in a group, the plan has 8 GPUs"),
    "events twice": (all_twice, "marks ProfilerStep#5 twice"),
    "no kernel has a time": (no_kernel_has_a_time, "no kernel with a possible time"),
    "another job": (of_a_larger_job, "is of a job of 16 GPUs, the plan has 8"),
    "a far rank": (of_a_far_rank, "the plan has 8 GPUs"),
}


def refused(file: Path, message: str, **options: Any) -> None:
    """Check that a file is refused in one line that names it."""
    with pytest.raises(InputError, match=message) as caught:
        held(file, **options)
    assert len(str(caught.value).splitlines()) == 1 and str(caught.value).startswith(str(file))


@pytest.mark.parametrize("name", REFUSED)
def test_one_line(name: str, trace: Trace, tmp_path: Path) -> None:
    """What cannot be a profile of the plan's job is refused."""
    plain = copy.deepcopy(trace)
    change, message = REFUSED[name]
    change(plain)
    file = tmp_path / "trace.json"
    file.write_text(json.dumps(plain))
    refused(file, message)


def test_a_rank_that_the_file_denies(trace: Trace, tmp_path: Path) -> None:
    """``--rank`` tells what a profile leaves open: its own rank stands."""
    file = tmp_path / "trace.json"
    file.write_text(json.dumps(trace))
    assert held(file, rank=0).ranks[0].rank == 0
    refused(file, "--rank: is 1, and the profile says it is of rank 0", rank=1)


def test_sizes_that_no_gpu_holds_are_left_out(trace: Trace, tmp_path: Path) -> None:
    """More elements than a GPU's memory: the size is not known, and a note says so."""
    plain = copy.deepcopy(trace)
    for event in plain["traceEvents"]:
        if "In msg nelems" in event.get("args", {}):
            event["args"] |= {"In msg nelems": 10**30, "Out msg nelems": 2**60}
    file = tmp_path / "trace.json"
    file.write_text(json.dumps(plain))
    found = held(file)
    assert "trace.json: sizes of collectives that no GPU's memory holds are left out" in found.notes
    assert found.overlaps and all(one.bytes is None for one in found.overlaps)


def test_the_trace_of_another_gpu(trace: Trace, tmp_path: Path) -> None:
    """The GPU is said; of another model than the plan's nothing is calibrated."""
    plain = copy.deepcopy(trace)
    file = tmp_path / "trace.json"
    file.write_text(json.dumps(plain))
    found = held(file)
    assert found.devices == ("NVIDIA H100 80GB HBM3",) and not found.other_gpu
    plain["deviceProperties"][0]["name"] = "NVIDIA\n A100-SXM4-80GB"
    file.write_text(json.dumps(plain))
    found, said = held(file), "profiles are of NVIDIA A100-SXM4-80GB, the plan is of h100"
    assert found.notes[0] == said
    with pytest.raises(InputError, match=said):
        calibrate_terms(found, lambda _: pytest.fail("priced"), Framework.MEGATRON, {})


def test_the_trace_of_another_plan(tmp_path: Path) -> None:
    """As many GPUs, but other groups."""
    file = tmp_path / "trace.json"
    file.write_text(json.dumps(job_trace(OTHER)))
    refused(file, "is of a job of tp=4, the plan has tp=2")


def test_more_steps_than_events(trace: Trace, tmp_path: Path) -> None:
    """``--steps`` is checked where no mark tells."""
    plain = copy.deepcopy(trace)
    without_steps(plain)
    file = tmp_path / "trace.json"
    file.write_text(json.dumps(plain))
    assert held(file, steps=2).ranks[0].steps == 2
    refused(file, "too few for 100,000 steps", steps=100_000)


def test_files_that_never_end_or_begin(trace: Trace, tmp_path: Path) -> None:
    """A pipe without a writer, a link to itself, cut and damaged archives, a nest of lists."""
    pipe, link, nest = tmp_path / "pipe.json", tmp_path / "link.json", tmp_path / "nest.json"
    os.mkfifo(pipe)
    link.symlink_to(link)
    nest.write_text('{"traceEvents": ' + "[" * 100_000)
    refused(pipe, "is no regular file")
    refused(link, "cannot be read")
    refused(nest, "is nested too deeply|is truncated")
    packed = gzip.compress(json.dumps(trace).encode(), 1)
    for place, content in enumerate((packed[: len(packed) // 2], packed[:3], packed + b"more")):
        cut = tmp_path / f"{place}_trace.json.gz"
        cut.write_bytes(content)
        refused(cut, "the file is truncated")
