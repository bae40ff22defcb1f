"""Faulty builds leave by a rule that looks at measurements alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from checks.healthy import FAULTY, faulty_builds, healthy
from checks.published import read_runs

from layoutopt.optimizer.evidence.case import Case
from layoutopt.optimizer.evidence.cases import build_case, build_cases

if TYPE_CHECKING:
    from collections.abc import Callable

    from layoutopt.optimizer.evidence.run import MeasuredRun


@pytest.mark.parametrize(
    ("change", "faulty"),
    [
        ({}, True),
        ({"measured_step_s": 0.9 * FAULTY}, False),
        ({"micro_batch": 1}, False),  # a smaller micro-batch may cost more per token
        ({"tp": 2, "dp": 4}, False),
        ({"source": "another laboratory"}, False),
        ({"software": "another release"}, False),
    ],
)
def test_the_same_layout_elsewhere_in_its_source(
    make_run: Callable[..., MeasuredRun], change: dict[str, object], faulty: bool
) -> None:
    """A run is faulty beside one of its layout, source, release and no larger micro-batch that is 2.5 times as fast."""
    shared = {"n_gpus": 8, "tp": 1, "pp": 1, "dp": 8, "micro_batch": 2, "global_batch": 32, "vp": 1}
    fast = make_run(**{**shared, "id": "fast", "measured_step_s": 1.0})
    slow = make_run(**{**shared, "id": "slow", "measured_step_s": 1.1 * FAULTY, **change})
    cases = [case for run in (fast, slow) if isinstance(case := build_case(run), Case)]
    assert len(cases) == 2
    assert faulty_builds(cases) == ({"slow"} if faulty else set())
    assert len(healthy(cases)) == 2 - faulty


def test_published_faulty_builds() -> None:
    """All are nanotron's of the Ultra-Scale playbook, thirteen as its readers counted."""
    cases = build_cases(read_runs())[0]
    found = faulty_builds(cases)
    assert len(found) == 13
    assert all(name.startswith("ultrascale-") for name in found)
