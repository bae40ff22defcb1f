"""Measured runs that train adapters: no constant was fitted to any of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from checks.published import adapter_runs

from layoutopt.optimizer.evidence.cases import build_cases
from layoutopt.optimizer.evidence.predict import predict, price
from layoutopt.optimizer.specs.vocabulary import AdapterTarget

if TYPE_CHECKING:
    from layoutopt.optimizer.evidence.case import Case


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    """Rows that are priced."""
    return build_cases(adapter_runs())[0]


def test_step_times(cases: list[Case]) -> None:
    """43 of 48 rows, H100 to GB300 and MI325X, 4 to 1,024 GPUs: 15% in the mean.

    Of prime-rl's rows those of 65,536 tokens are within 15%; those of 16,384 take half as long again as priced.
    """
    errors = {
        case.run.id: abs(price(case).step_time_s / case.measured_s - 1)
        for case in cases
        if case.measured_s is not None
    }
    assert len(errors) == 43
    assert np.mean(list(errors.values())) < 0.15
    for start, most in (("mlp", 0.15), ("mb2606-", 0.17), ("primerl-", 0.22)):
        assert np.mean([error for name, error in errors.items() if name.startswith(start)]) < most, start


def test_memory(cases: list[Case]) -> None:
    """The 9 rows that state a peak, reserved memory by prime-rl's own word: each within 10%; offloaded rows are apart."""
    errors = {
        case.run.id: predict(case).reserved_bytes / (1e9 * case.memory_gb) - 1
        for case in cases
        if case.memory_gb is not None
    }
    assert len(errors) == 9
    assert max(map(abs, errors.values())) < 0.1
    assert np.mean([abs(error) for error in errors.values()]) < 0.05


def test_what_is_not_priced_says_why() -> None:
    """A GPU that is not in the catalog, and activations that go to the host."""
    skipped = build_cases(adapter_runs())[1]
    assert len(skipped) == 5
    assert {row.reason.split(" is not ")[-1] for row in skipped} == {"in the catalog", "modelled"}


def test_notes_say_what_is_adapted(cases: list[Case]) -> None:
    """MLPerf adapts attention's matrices alone; without a word all matrices are."""
    adapters = {case.run.id: case.training.adapter for case in cases}
    attention = next(one for name, one in adapters.items() if name.startswith("mlp") and one is not None)
    everything = next(
        one for name, one in adapters.items() if name.startswith("primerl-") and one is not None
    )
    assert attention.targets == (AdapterTarget.ATTENTION,)
    assert everything.targets == tuple(AdapterTarget)
    assert attention.rank == everything.rank == 16
