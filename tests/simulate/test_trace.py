"""The Chrome trace: valid JSON, one compute and one communication track per stage, honest durations."""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from layoutopt.optimizer.cost.orders import HopOverlap, Pipeline
from layoutopt.optimizer.simulate.engine import StageWork, simulate
from layoutopt.optimizer.simulate.trace import chrome_trace
from layoutopt.optimizer.specs.vocabulary import Schedule

if TYPE_CHECKING:
    from layoutopt.optimizer.simulate.result import SimulationResult

PIPELINES = [
    Pipeline(schedule=Schedule.ONE_F_ONE_B, pp=4, micro_batches=6),
    Pipeline(schedule=Schedule.ZB_V, pp=3, vp=2, micro_batches=6),
    Pipeline(schedule=Schedule.DUALPIPE, pp=4, micro_batches=8),
]


def run(pipeline: Pipeline) -> SimulationResult:
    """Simulate with slow, overlapping transfers so that both links of a rank are busy at times."""
    rng = np.random.default_rng(0)
    shape = (pipeline.pp, 1 if pipeline.schedule is Schedule.DUALPIPE else pipeline.vp)
    return simulate(
        pipeline,
        StageWork(
            forward_s=rng.uniform(0.5, 1.0, shape),
            dgrad_s=rng.uniform(0.5, 1.0, shape),
            wgrad_s=rng.uniform(0.5, 1.0, shape),
            activation_bytes=np.full(shape, 1e9),
            static_bytes=np.full(pipeline.pp, 5e9),
            hop_s=np.full(pipeline.pp, 0.4),
            hops_overlap=HopOverlap.ALL,
        ),
    )


def events(result: SimulationResult) -> list[dict[str, Any]]:
    """Return the trace's events after a round trip through JSON text."""
    trace = json.loads(json.dumps(chrome_trace(result)))
    assert trace["otherData"]["schedule"] == result.pipeline.schedule.value
    listed: list[dict[str, Any]] = trace["traceEvents"]
    return listed


@pytest.mark.parametrize("pipeline", PIPELINES, ids=lambda p: str(p.schedule))
def test_two_named_tracks_per_stage(pipeline: Pipeline) -> None:
    """Each stage is a process with a compute and a communication track, and nothing else has slices."""
    listed = events(run(pipeline))
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in listed if e["name"] == "thread_name"}
    assert sorted(names.values()) == ["communication"] * pipeline.pp + ["compute"] * pipeline.pp
    assert {(e["pid"], e["tid"]) for e in listed if e["ph"] == "X"} <= set(names)


@pytest.mark.parametrize("pipeline", PIPELINES, ids=lambda p: str(p.schedule))
def test_slices_of_a_track_never_overlap(pipeline: Pipeline) -> None:
    """Viewers drop slices that overlap without nesting, so there must be none."""
    tracks = defaultdict(list)
    for event in events(run(pipeline)):
        if event["ph"] == "X":
            tracks[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for slices in tracks.values():
        for (_, end), (start, _) in pairwise(sorted(slices)):
            assert start >= end - 1e-6


@pytest.mark.parametrize("pipeline", PIPELINES, ids=lambda p: str(p.schedule))
def test_durations_are_the_simulation_s(pipeline: Pipeline) -> None:
    """Compute slices add up to the busy time, each transfer to its hop, the last slice ends with the step."""
    result = run(pipeline)
    listed = events(result)
    compute = [e for e in listed if e.get("cat") == "compute"]
    busy = np.zeros(pipeline.pp)
    for event in compute:
        busy[event["pid"]] += event["dur"] / 1e6
    np.testing.assert_allclose(busy, result.busy_s)
    assert max(e["ts"] + e["dur"] for e in compute) == pytest.approx(result.makespan_s * 1e6)
    on_wire = sum(e["dur"] * len(e["args"]["transfers"]) for e in listed if e.get("cat") == "p2p")
    assert on_wire / 1e6 == pytest.approx(0.4 * len(result.transfers.source))


def test_memory_counter_follows_the_simulation() -> None:
    """The counter's largest value is the peak, its last one what stays."""
    result = run(PIPELINES[0])
    held: dict[int, dict[float, float]] = defaultdict(dict)
    for event in events(result):
        if event["ph"] == "C":
            held[event["pid"]][event["ts"]] = event["args"]["bytes"]
    for rank, values in held.items():
        assert max(values.values()) == result.peak_bytes[rank]
        assert values[max(values)] == pytest.approx(5e9)


def test_pairs_are_named_by_both_halves() -> None:
    """A DualPipe pair shows its forward and its backward."""
    names = [e["name"] for e in events(run(PIPELINES[2])) if e.get("cat") == "compute"]
    assert "F0.3 + B1.1" in names
