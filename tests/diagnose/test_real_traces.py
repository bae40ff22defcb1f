"""Traces that PyTorch's profiler wrote of a job on CPUs (docs/examples/cpu_job.py), against what the job measured itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from layoutopt.optimizer.cost.components import Component
from layoutopt.optimizer.diagnose.parts import Activity
from layoutopt.optimizer.diagnose.peers import match
from layoutopt.optimizer.diagnose.terms import rank_terms
from layoutopt.optimizer.interop.profiles.kineto import read_kineto
from layoutopt.optimizer.interop.profiles.options import ProfileOptions

DATA = Path(__file__).parents[1] / "data" / "profiles"
JOBS = {"cpu_pp2_dp2": True, "cpu_dp2": False}


@pytest.fixture(scope="module", params=JOBS)
def job(request: pytest.FixtureRequest) -> tuple[str, list[Any], list[Any]]:
    """Return a job's name with the terms and the own record of every rank."""
    folder = DATA / request.param
    profiles = [read_kineto(file, ProfileOptions()) for file in sorted(folder.glob("*trace.json.gz"))]
    terms = [
        rank_terms(profile, matched, sharded=False, staged=JOBS[request.param])
        for profile, matched in zip(profiles, match(profiles), strict=True)
    ]
    records = [json.loads((folder / f"rank{profile.rank}_record.json").read_text()) for profile in profiles]
    return request.param, terms, records


def test_steps_are_as_long(job: tuple[str, list[Any], list[Any]]) -> None:
    """Two steps of every rank, as long as its own clock says, and the terms add up to them."""
    for terms, record in zip(job[1], job[2], strict=True):
        assert terms.steps == len(record) == 2
        assert terms.step_s == pytest.approx(sum(one["step_s"] for one in record) / 2, rel=0.002)
        assert sum(terms.labels_ns.values()) == terms.steps_ns


def test_ranks_are_as_busy(job: tuple[str, list[Any], list[Any]]) -> None:
    """What is neither traffic nor waiting for a peer is the time that the job did not spend in its calls."""
    for terms, record in zip(job[1], job[2], strict=True):
        busy = terms.step_s - terms.seconds(part=Activity.TRANSFER) - terms.seconds(part=Activity.PEER)
        assert busy == pytest.approx(sum(one["busy_s"] for one in record) / 2, rel=0.005)


def test_bytes_are_those_of_the_tensors(job: tuple[str, list[Any], list[Any]]) -> None:
    """Bytes by kind of call are what the job sent."""
    for terms, record in zip(job[1], job[2], strict=True):
        expected = {kind: sum(one["bytes"][kind] for one in record) for kind in record[0]["bytes"]}
        assert {one.kind: one.bytes for one in terms.traffic} == expected


def test_recomputation_is_found(job: tuple[str, list[Any], list[Any]]) -> None:
    """Only the job that checkpoints its layers computes forward twice, about as long as the first time."""
    name, ranks, _ = job
    for terms in ranks:
        again = terms.kernel_s(Activity.GEMM, Activity.ATTENTION, Activity.NORM) - terms.kernel_s(
            Activity.GEMM, Activity.ATTENTION, Activity.NORM, phase=0
        )
        assert (terms.seconds(Component.RECOMPUTE) > 0) is (name == "cpu_pp2_dp2")
        assert again > 0


def test_multiplications_have_their_shapes(job: tuple[str, list[Any], list[Any]]) -> None:
    """Forward and backward of a layer multiply the same sizes: a weight's gradient and an input's for each product."""
    for terms in job[1]:
        shapes = {use.product for use in terms.kernels if use.product}
        assert {(one.m, one.n, one.k) for one in shapes} >= {
            (256, 768, 256),
            (256, 256, 768),
            (768, 256, 256),
        }
        rates = [use.flops_per_s for use in terms.kernels if use.product]
        assert all(rate and 1e6 < rate < 1e13 for rate in rates)
