"""Traces of simulated jobs, read back: every term of every rank is what was put in to half a percent, totals exactly."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from checks.traced_files import write_traces
from checks.traced_job import Job, Kernel, Stage, Traffic
from checks.traced_run import Run

from layoutopt.optimizer.cost.orders import Pipeline
from layoutopt.optimizer.diagnose.parts import Activity
from layoutopt.optimizer.diagnose.peers import match
from layoutopt.optimizer.diagnose.terms import rank_terms
from layoutopt.optimizer.interop.profiles.kineto import read_kineto
from layoutopt.optimizer.interop.profiles.options import ProfileOptions
from layoutopt.optimizer.specs.vocabulary import Axis, Schedule

if TYPE_CHECKING:
    from pathlib import Path

    from layoutopt.optimizer.diagnose.terms import RankTerms

TP = (Traffic("tp", "reduce_scatter", 30, 1 << 22), Traffic("tp", "all_gather", 35, 1 << 22))
MIXER = (
    Kernel(Activity.NORM, 20, 1),
    Kernel(Activity.GEMM, 100, 1),
    Kernel(Activity.ATTENTION, 60, 2),
    Kernel(Activity.GEMM, 50, 1),
)
DENSE = (
    *MIXER,
    TP[0],
    Kernel(Activity.NORM, 20, 1, late_us=15),
    TP[1],
    Kernel(Activity.GEMM, 200, 1),
    Kernel(Activity.ACTIVATION, 20, 1),
)
DISPATCH = Traffic("ep", "all_to_all", 45, 1 << 23)
EXPERTS = (
    *MIXER, Kernel(Activity.PERMUTE, 30, 1), DISPATCH, Kernel(Activity.EXPERTS, 150, 1), Kernel(Activity.ACTIVATION, 12, 1),
    DISPATCH, Kernel(Activity.PERMUTE, 25, 1),
)  # fmt: skip
LONG = (
    MIXER[0],
    MIXER[1],
    Traffic("cp", "all_gather", 80, 1 << 22),
    *MIXER[2:],
    Kernel(Activity.GEMM, 180, 2),
)
SHARDED = (Traffic("fsdp", "all_gather", 90, 1 << 24), *MIXER, Kernel(Activity.GEMM, 170, 1))
GATHER = Traffic("fsdp", "all_gather", 40, 1 << 24, hidden_us=70)
SUM = Traffic("fsdp", "reduce_scatter", 30, 1 << 25, hidden_us=150)
STREAMED = Stage(
    forward=(GATHER, *MIXER, Kernel(Activity.GEMM, 170, 1)) * 3,
    backward=(
        GATHER,
        Kernel(Activity.GEMM, 300, 1),
        Kernel(Activity.ATTENTION, 160, 2),
        Kernel(Activity.GEMM, 280, 1),
        SUM,
    )
    * 3,
    again=(*MIXER, Kernel(Activity.GEMM, 170, 1)) * 3,
)
"""Layers whose weights are gathered while the layer before computes, and whose gradients are reduced beside the next."""

DGRAD = (
    Kernel(Activity.GEMM, 300, 1),
    TP[0],
    Kernel(Activity.ATTENTION, 160, 2),
    Kernel(Activity.NORM, 30, 1),
)
WGRAD = (Kernel(Activity.GEMM, 280, 1), Kernel(Activity.ELEMENTWISE, 12, 1))
GRADIENTS: dict[str, Any] = {
    "reduce_us": 2000,
    "reduce_exposed_us": 300,
    "reduce_bytes": 1 << 26,
    "gather_us": 200,
    "host_us": 500,
}


SUMMED_LATE = {**GRADIENTS, "reduce_exposed_us": 2000, "gather_us": 0}
"""What is left of a step's sums runs behind the last backward kernel."""


def stage(forward: tuple[Kernel | Traffic, ...], *, again: bool = False) -> Stage:
    """Two layers of a kind."""
    backward = tuple(item for item in DGRAD if isinstance(item, Kernel) or item in forward)
    return Stage(
        forward=forward * 2, backward=backward * 2, wgrad=WGRAD * 2, again=forward * 2 if again else ()
    )


def pipeline(schedule: Schedule, pp: int = 1, vp: int = 1, micro_batches: int = 4) -> Pipeline:
    """A pipeline by its sizes."""
    return Pipeline(schedule=schedule, pp=pp, vp=vp, micro_batches=micro_batches)


JOBS = {
    "dense": Job(pipeline=pipeline(Schedule.NONE), stages=(stage(DENSE),), tp=2, dp=2, **GRADIENTS),
    "recomputed, without overlap": Job(
        pipeline=pipeline(Schedule.NONE), stages=(stage(DENSE, again=True),), tp=2, dp=2, overlaps=False, **GRADIENTS
    ),
    "experts": Job(
        pipeline=pipeline(Schedule.ONE_F_ONE_B, 2), stages=(stage(EXPERTS),) * 2, dp=4, ep=2, expert_factor=(1.0, 1.3),
        **GRADIENTS,
    ),
    "long": Job(pipeline=pipeline(Schedule.ONE_F_ONE_B, 2), stages=(stage(LONG),) * 2, cp=2, dp=2, **GRADIENTS),
    "sharded": Job(pipeline=pipeline(Schedule.NONE), stages=(stage(SHARDED),), dp=4, **SUMMED_LATE),
    "fsdp": Job(pipeline=pipeline(Schedule.NONE), stages=(STREAMED,), dp=4, **SUMMED_LATE),
    "fsdp in stages": Job(pipeline=pipeline(Schedule.ONE_F_ONE_B, 2), stages=(STREAMED,) * 2, dp=2, tp=2, **SUMMED_LATE),
    "fsdp, a slow link": Job(
        pipeline=pipeline(Schedule.NONE), stages=(STREAMED,), dp=4, axis_factor={"dp": 2.5}, **SUMMED_LATE
    ),
    "gpipe": Job(pipeline=pipeline(Schedule.GPIPE, 4), stages=(stage(DENSE),) * 4, tp=2, data_stall_us=400),
    "interleaved": Job(pipeline=pipeline(Schedule.INTERLEAVED, 2, 2), stages=(stage(DENSE),) * 4, tp=2, dp=2, **GRADIENTS),
    "zb-h1": Job(
        pipeline=pipeline(Schedule.ZB_H1, 4, micro_batches=8), stages=(stage(DENSE),) * 4, dp=2, checkpoint_us=5000
    ),
    "zb-v": Job(pipeline=pipeline(Schedule.ZB_V, 2, 2), stages=(stage(LONG),) * 4, cp=2, rank_factor={1: 1.1}),
}  # fmt: skip


def measured(run: Run, folder: Path) -> list[RankTerms]:
    """Write the traces of a job and read them as a user does."""
    files = write_traces(run, folder)
    profiles = [read_kineto(file, ProfileOptions()) for file in files]
    staged, sharded = run.job.pipeline.pp > 1, isinstance(run.job.stages[0].forward[0], Traffic)
    found = zip(profiles, match(profiles), strict=True)
    return [rank_terms(profile, matched, sharded=sharded, staged=staged) for profile, matched in found]


@pytest.mark.parametrize("name", JOBS)
def test_every_term_is_what_was_put_in(name: str, tmp_path: Path) -> None:
    """Clocks of two hosts apart, times with noise: labels of every rank within 0.5%, the sum to the nanosecond."""
    run = Run(replace(JOBS[name], noise=0.03, gpus_per_node=4, skew_us=(0, 1700), steps=2))
    for terms in measured(run, tmp_path):
        truth = run.truth(terms.rank)
        assert sum(terms.labels_ns.values()) == terms.steps_ns == round(1000 * sum(truth.values()))
        for label in {*truth, *terms.labels_ns}:
            expected, found = truth.get(label, 0.0), terms.labels_ns.get(label, 0) / 1e3
            assert found == pytest.approx(expected, rel=0.005, abs=1.0), (terms.rank, label.words)


def test_traffic_has_its_bytes_and_what_hides_it(tmp_path: Path) -> None:
    """Bytes of every call are counted, hidden buckets are hidden, and only the exposed ones add to the step."""
    run = Run(JOBS["dense"])
    terms = measured(run, tmp_path)[0]
    by_axis = {(one.axis, one.kind): one for one in terms.traffic}
    gathers = by_axis[Axis.TP, "all_gather"]
    assert gathers.calls == 3 * 4 * 2 and gathers.bytes == gathers.calls << 22
    assert gathers.exposed_ns == gathers.busy_ns and gathers.ranks == 2
    sums = by_axis[Axis.DP, "reduce_scatter"]
    assert sums.bytes == pytest.approx(3 * (1 << 26), rel=1e-3)
    assert sums.exposed_ns / sums.busy_ns == pytest.approx(300 / 2000, abs=0.05)


def test_measures_can_be_wrong(tmp_path: Path) -> None:
    """A term that was not put in would be seen: the check can fail."""
    plain, slower = (
        measured(Run(job), tmp_path)[0] for job in (JOBS["dense"], replace(JOBS["dense"], host_us=600))
    )
    assert slower.steps_ns - plain.steps_ns == 3 * 100 * 1000
