"""The cause that was put into a job is the first that is named, of every kind; a clean job has none.

``benchmarks/causes.py`` counts it over two hundred jobs with a fault and a hundred clean ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from checks.traced_faults import FAULTS, PLANS, clean, faulty, named

from layoutopt.optimizer.diagnose.cause import CauseKind

if TYPE_CHECKING:
    from pathlib import Path


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
