"""Profiles of some ranks only: waiting for a rank whose profile is not given names no slow link and tells no constant."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from checks.traced_faults import PLANS, clean
from checks.traced_files import write_traces
from checks.traced_run import Run

from layoutopt.optimizer.cost.components import Component
from layoutopt.optimizer.diagnose.cause import CauseKind
from layoutopt.optimizer.diagnose.constants import calibrate_terms
from layoutopt.optimizer.diagnose.diagnosis import answers, diagnose
from layoutopt.optimizer.diagnose.predicted import expectation
from layoutopt.optimizer.diagnose.term_fit import MeasuredTerm, TermFit, fit_term
from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.interop.profiles.kineto import read_kineto
from layoutopt.optimizer.interop.profiles.options import ProfileOptions
from layoutopt.optimizer.specs.vocabulary import Axis

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from checks.traced_faults import Case

    from layoutopt.optimizer.diagnose.diagnosis import Diagnosis

PIPED = tuple(seed for seed, plan in enumerate(PLANS) if "pp=2" in plan[1])


def of_ranks(case: Case, folder: Path, *ranks: int) -> Diagnosis:
    """Run a case's job and diagnose it from the profiles of some ranks."""
    files = write_traces(Run(case.job), folder, compress=False)
    profiles = [read_kineto(files[rank], ProfileOptions()) for rank in ranks]
    return diagnose(profiles, case.cost, case.layout)


@pytest.mark.parametrize("seed", PIPED)
@pytest.mark.parametrize("rank", [0, 7])
def test_waiting_for_a_stage_that_is_not_given_is_bubble(seed: int, rank: int, tmp_path: Path) -> None:
    """A clean pipeline seen from one stage has no cause; its sends are bubble, and the missing ranks are named."""
    found = of_ranks(clean(seed), tmp_path, rank)
    assert [cause.words for cause in found.causes] == []
    assert found.ranks[0].seconds(Component.PP) == 0.0 < found.ranks[0].seconds(Component.BUBBLE)
    assert all(one.bytes_per_s is None for one in found.overlaps if one.axis is Axis.PP)
    peer = (rank + 4) % 8
    assert peer in found.matched[0].missing and any(
        line.startswith("missing: no profile of rank") for line in answers(found)
    )


def test_both_stages_tell_transfer_from_bubble(tmp_path: Path) -> None:
    """With the peer's profile sends have a rate again; the ranks that are missing still are named."""
    found = of_ranks(clean(0), tmp_path, 0, 4)
    assert found.causes == () and found.ranks[0].seconds(Component.PP) > 0
    assert all(one.bytes_per_s for one in found.overlaps if one.axis is Axis.PP)
    assert "ranks 1-3 and 5-7" in found.not_told


@pytest.mark.parametrize("seed", [2, 3, 5])
def test_a_late_peer_that_is_not_given_is_no_slow_link(seed: int, tmp_path: Path) -> None:
    """One rank waits in every collective for a slow one: from its profile alone no link is slow and nothing unhidden."""
    case = clean(seed)
    case = replace(case, job=replace(case.job, rank_factor={1: 1.5, 4: 1.5}))
    found = of_ranks(case, tmp_path, 0)
    assert {cause.kind for cause in found.causes} & {CauseKind.SLOW_LINK, CauseKind.NO_OVERLAP} == set()


@pytest.mark.parametrize("seed", [0, 2])
def test_traffic_without_an_overlap_is_seen_from_one_rank(seed: int, tmp_path: Path) -> None:
    """What runs alone within its price is not overlapped, whoever is missing."""
    case = clean(0)
    found = of_ranks(replace(case, job=replace(case.job, overlaps=False, seed=seed)), tmp_path, 0)
    assert [cause.kind for cause in found.causes] == [CauseKind.NO_OVERLAP]


def test_calls_of_missing_peers_tell_no_constant(tmp_path: Path) -> None:
    """Of one rank no constant of traffic is read and a warning says so; those of kernels are as of all ranks."""
    case = clean(0)

    def fits(*ranks: int) -> tuple[dict[str, TermFit], tuple[str, ...]]:
        """Calibrate with the profiles of some ranks."""
        found = of_ranks(case, tmp_path, *ranks)
        told = calibrate_terms(found, lambda _: expectation(case.cost, case.layout), Framework.MEGATRON, {})
        return {fit.name: fit for fit in told.fits}, told.warnings

    one, warned = fits(0)
    every, _ = fits(*range(8))
    assert {name for name in every if "nvlink" in name} and not {name for name in one if "nvlink" in name}
    assert any("such calls decide no constant" in line and "rank" in line for line in warned)
    assert any(name.startswith("gemm_cap") for name in one)


def fit_of(measured: Sequence[float], power: float) -> TermFit:
    """Fit a term that follows its constant with a power, one second predicted, of ranks that took these seconds."""
    term: MeasuredTerm[float] = MeasuredTerm(
        name="gemm_cap.hopper",
        words="a term",
        measured_s=lambda taken: taken,
        predicted_s=lambda expected, taken: expected.step_s**-power,
    )

    def reprice(values: Any) -> Any:
        """Return the prediction under other constants, relative to the present one."""
        return SimpleNamespace(step_s=values["gemm_cap.hopper"] / 0.66)

    found = fit_term(term, measured, reprice, {"gemm_cap.hopper": 0.66}, reprice({"gemm_cap.hopper": 0.66}))
    assert found is not None
    return found


def test_a_constant_that_stays_says_whether_ranks_differ_or_the_term_does_not_follow() -> None:
    """Ranks at 0.65 to 1.94 of the prediction disagree; a term that does not move with its constant hardly follows it."""
    apart, flat = fit_of([1.94, 1.93, 0.65, 1.64], 1.0), fit_of([1.1, 1.1, 1.1, 1.1], 0.01)
    assert not apart.taken and "ranks differ too much (0.65 to 1.94" in apart.reason
    assert not flat.taken and "hardly follows" in flat.reason


def test_the_columns_are_of_the_middle_of_the_ranks() -> None:
    """Measured and predicted are the middle rank's, of an even number the mean of the middle two, not the first's."""
    odd, even = fit_of([1.2, 1.0, 1.1], 1.0), fit_of([0.9, 1.06, 1.02, 1.12], 1.0)
    assert odd.measured_s == pytest.approx(1.1) and even.measured_s == pytest.approx(1.04)
    assert odd.taken and odd.after_s == pytest.approx(1.1, rel=1e-3) and odd.before_s == pytest.approx(1.0)
    assert math.log(odd.value / 0.66) == pytest.approx(-math.log(1.1), abs=1e-3)
