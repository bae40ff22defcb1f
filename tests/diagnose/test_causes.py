"""The cause that was put into a job is the first that is named, of every kind; a clean job has none.

``benchmarks/causes.py`` counts it over two hundred jobs with a fault and a hundred clean ones.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from checks.traced_faults import FAULTS, PLANS, clean, faulty, named
from checks.traced_files import write_traces
from checks.traced_job import Kernel
from checks.traced_plan import mapped, slower
from checks.traced_run import Run

from layoutopt.optimizer.diagnose.cause import CauseKind
from layoutopt.optimizer.diagnose.constants import calibrate_terms
from layoutopt.optimizer.diagnose.diagnosis import diagnose
from layoutopt.optimizer.diagnose.parts import Activity
from layoutopt.optimizer.diagnose.predicted import expectation
from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.interop.profiles.read import read_profiles

if TYPE_CHECKING:
    from pathlib import Path

    from checks.traced_faults import Case


@pytest.mark.parametrize("seed", range(len(FAULTS)))
def test_the_fault_is_named_first(seed: int, tmp_path: Path) -> None:
    """Traces with 3% noise and one fault: its cause comes first, with seconds, evidence and what to try."""
    case = faulty(seed)
    found = named(case, tmp_path)
    assert found and found[0].kind is case.expected, (case.name, [cause.words for cause in found])
    assert found[0].seconds > 0 and found[0].evidence and found[0].remedy


@pytest.mark.parametrize("seed", range(len(PLANS)))
def test_a_clean_job_has_no_cause(seed: int, tmp_path: Path) -> None:
    """Noise alone names nothing."""
    assert [cause.words for cause in named(clean(seed), tmp_path)] == []


def test_twelve_kinds() -> None:
    """The faults are of twelve kinds, each a cause of its own."""
    kinds = {faulty(seed).expected for seed in range(len(FAULTS))}
    assert len(kinds) == len(FAULTS) == 12 and kinds < set(CauseKind)


def with_another_kernel(case: Case, part: Activity, share: float) -> Case:
    """Return a case whose attention kernels are each followed by one of another kind, a share of their time."""

    def followed(item: Kernel) -> tuple[Kernel, ...]:
        """Follow attention."""
        if item.part is not Activity.ATTENTION:
            return (item,)
        return item, Kernel(part, max(round(share * item.us), 1), item.gap_us)

    return replace(case, job=mapped(case.job, followed))


def test_dropout_that_nobody_chose(tmp_path: Path) -> None:
    """A default of the trainer's shows as kernels that the plan has none of, with the flag that ends it."""
    found = named(with_another_kernel(clean(0), Activity.DROPOUT, 0.5), tmp_path)
    assert found[0].kind is CauseKind.DROPOUT and "a default that was not chosen" in found[0].words
    assert "fused_dropout" in found[0].evidence[0] and "--hidden-dropout 0" in found[0].remedy


def test_a_routers_softmax_is_no_unfused_attention(tmp_path: Path) -> None:
    """A softmax over experts hides neither slow multiplications nor the constants of kernels."""
    case = with_another_kernel(clean(5), Activity.SCORES, 0.03)
    case = replace(case, job=slower(case.job, Activity.GEMM, 1.4))
    write_traces(Run(case.job), tmp_path, compress=False)
    found = diagnose(read_profiles([tmp_path]), case.cost, case.layout)
    assert [(cause.kind, cause.about) for cause in found.causes] == [(CauseKind.SLOW_KERNELS, "gemm")]
    told = calibrate_terms(found, lambda _: expectation(case.cost, case.layout), Framework.MEGATRON, {})
    assert {fit.name.partition(".")[0] for fit in told.fits} >= {"gemm_cap", "attention_speed"}
