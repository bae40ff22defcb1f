"""Switching terms off: each one is found, makes the step shorter, and leaves the others as they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from checks.ablation import TERMS, Term, ablate

from layoutopt.optimizer.evidence.case import Case
from layoutopt.optimizer.evidence.cases import build_case
from layoutopt.optimizer.evidence.predict import predict

if TYPE_CHECKING:
    from collections.abc import Callable

    from layoutopt.optimizer.evidence.run import MeasuredRun

OTHER_RUNS = (
    "context-parallel traffic",
    "gradients added by own kernels",
    "launches that block",
    "casts to 8 bits",
)
"""Terms that a made-up run of experts under Megatron in 16 bits does not have."""


@pytest.fixture
def experts(make_moe_run: Callable[..., MeasuredRun]) -> Case:
    """A mixture-of-experts run that has every kind of traffic."""
    run = make_moe_run(tp=2, pp=2, dp=16, n_gpus=64, ep=8, moe_shared_ffn=0, moe_dense_layers=2)
    case = build_case(run)
    assert isinstance(case, Case), case
    return case


@pytest.mark.parametrize("term", TERMS, ids=lambda term: term.name)
def test_every_term_costs_time(experts: Case, term: Term) -> None:
    """No term is a gift: without it the run is no slower, and something of the run is left."""
    whole = predict(experts).step_time_s
    assert 0.2 * whole < term.step_time_s(experts) <= whole * (1 + 1e-9)


def test_most_terms_matter_to_such_a_run(experts: Case) -> None:
    """A term that no longer does anything has lost its wiring to the cost model."""
    whole = predict(experts).step_time_s
    idle = [term.name for term in TERMS if term.step_time_s(experts) == whole]
    assert set(idle) <= {"host time", "data-parallel traffic", *OTHER_RUNS}


@pytest.mark.parametrize(
    ("name", "cells"),
    [
        ("context-parallel traffic", {"cp": 8, "dp": 1}),
        ("gradients added by own kernels", {"framework": "nanotron"}),
        (
            "launches that block",
            {"source": "bigscience-workshop/bigscience", "n_gpus": 512, "tp": 8, "pp": 1, "dp": 64},
        ),
        ("casts to 8 bits", {"precision": "fp8"}),
    ],
)
def test_terms_of_other_runs(make_run: Callable[..., MeasuredRun], name: str, cells: dict[str, Any]) -> None:
    """Terms that only some frameworks, formats and layouts have."""
    case = build_case(make_run(**cells))
    assert isinstance(case, Case), case
    (term,) = [one for one in TERMS if one.name == name]
    assert term.step_time_s(case) < predict(case).step_time_s


def test_rows_of_the_table(make_run: Callable[..., MeasuredRun]) -> None:
    """The first row is the whole model, then one per term, each with errors by family and the ranking."""
    runs = [make_run(id=str(b), group="g", micro_batch=b) for b in (1, 2, 4)]
    cases = [case for run in runs if isinstance(case := build_case(run), Case)]
    seen: list[str] = []
    rows = ablate(cases, TERMS[:2], progress=seen.append)
    assert [row.term for row in rows] == ["", "output matrix and loss", "network below NVLink"] == seen
    assert rows[0].errors["dense 16-bit H100"].rows == 3
    assert rows[0].ranking.groups == 1
