"""The default answer is one screen, in the order in which it is read; everything else waits behind ``-v``."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from layoutopt.optimizer.evidence.honesty import assess
from layoutopt.optimizer.report.tables.plan import Shown, next_lines, plan_notes, plan_tables
from layoutopt.optimizer.report.tables.short import COMFORTABLE, is_comfortable, stage_words
from layoutopt.optimizer.solve.api import solve_layout
from layoutopt.optimizer.solve.plan import SolveOptions
from layoutopt.optimizer.solve.run_preset import preset_of_plan
from layoutopt.optimizer.specs.loading import load_cluster, load_workload, override_training
from layoutopt.optimizer.specs.vocabulary import Verdict

if TYPE_CHECKING:
    from layoutopt.optimizer.solve.plan import Plan
    from layoutopt.optimizer.specs.cluster import ClusterSpec
    from layoutopt.optimizer.specs.workload import Workload

WIDTH, SCREEN = 100, 30
QUICK = [("llama3-8b", "h100x16", 64), ("mixtral-8x7b", "h100x32", 64)]
ORDER = ("80% interval", "\nmodel ", "\ncluster ", "\nlayout ", "\nmemory ", "How sure", "Next")
DETAIL = ("Step time", "divided by", "What binds", "Proof", "declared")


@cache
def answer(model: str, cluster: str, batch: int) -> tuple[Plan, Workload, ClusterSpec]:
    """Solve a question with a batch that is quick to search."""
    workload = override_training(load_workload(model), global_batch=batch)
    machine = load_cluster(cluster)
    return solve_layout(workload, machine, SolveOptions()), workload, machine


def printed(plan: Plan, workload: Workload, machine: ClusterSpec, shown: Shown | None = None) -> str:
    """Render an answer as a file would hold it."""
    options = SolveOptions()
    tables = plan_tables(
        plan, workload, machine, preset_of_plan(workload, machine, options),
        framework="megatron", honesty=assess(plan, workload, machine, options), shown=shown or Shown(),
    )  # fmt: skip
    console = Console(width=WIDTH, highlight=False, markup=False, color_system=None)
    with console.capture() as captured:
        console.print(tables)
    return captured.get()


@pytest.mark.parametrize(("model", "cluster", "batch"), QUICK)
def test_the_default_answer_is_one_screen(model: str, cluster: str, batch: int) -> None:
    """At width 100 the answer has at most 30 lines, its parts in the agreed order; details need -v."""
    found = answer(model, cluster, batch)
    text = printed(*found)
    assert len(text.splitlines()) <= SCREEN, text
    assert max(map(len, text.splitlines())) <= WIDTH
    places = [text.index(part) for part in ORDER]
    assert places == sorted(places)
    assert not [part for part in DETAIL if part in text]
    verbose = printed(*found, Shown(verbose=True))
    assert verbose.startswith(text[: text.index("How sure")])
    assert [part for part in DETAIL if part in verbose] == list(DETAIL)


def test_the_first_lines_name_model_and_cluster() -> None:
    """Parameters in the three counts, layers by kind, fabric and oversubscription are above the layout."""
    workload, machine = load_workload("deepseek-v3"), load_cluster("h100x4096")
    plan, _, _ = answer("llama3-8b", "h100x8", 64)
    text = " ".join(printed(replace(plan, alternatives=()), workload, machine).split())
    assert "deepseek-v3: 671B parameters (37.6B active, 36.6B in matrices)" in text
    assert "3 x (attention + dense MLP) + 58 x (attention + moe), 1 MTP" in text
    assert "8 x 400 Gbit/s infiniband, 7:1 at the spine" in text


def test_a_comfortable_near_tie_is_marked() -> None:
    """Beside a borderline answer the near-tie with room in memory says so; beside one that fits nobody needs to know."""
    plan, workload, machine = answer("llama3-8b", "h100x16", 64)
    assert plan.estimate is not None
    roomy = replace(plan.estimate, memory=replace(plan.estimate.memory, peak_bytes=1e9))
    other = replace(plan.alternatives[0], estimate=roomy)
    tight = replace(plan, verdict=Verdict.BORDERLINE, alternatives=(other,))
    assert is_comfortable(tight, other)
    assert f"% {COMFORTABLE}" in printed(tight, workload, machine)
    ample = replace(tight, verdict=Verdict.FITS)
    assert COMFORTABLE not in printed(ample, workload, machine)
    assert "--reserve" in " ".join(next_lines(tight, None, "megatron", Shown()))
    assert "--require" not in " ".join(next_lines(ample, None, "megatron", Shown()))


def test_next_steps_speak_the_language_of_the_caller() -> None:
    """The command line names files and commands, Python its methods."""
    plan, _, _ = answer("llama3-8b", "h100x16", 64)
    written = " ".join(next_lines(plan, None, "torchtitan", Shown(file="a.json")))
    assert "layoutopt export a.json --to torchtitan" in written
    assert "-o " not in written
    python = " ".join(next_lines(plan, None, "any", Shown(python=True)))
    assert 'result.export("TRAINER")' in python
    assert "layoutopt export" not in python


@pytest.mark.parametrize("shown", [Shown(), Shown(file="a.json"), Shown(python=True)])
def test_no_export_is_offered_where_there_is_no_exporter(shown: Shown) -> None:
    """A trainer without an exporter is named as such, and the proof is offered all the same."""
    plan, _, _ = answer("llama3-8b", "h100x16", 64)
    (first, *_) = next_lines(plan, None, "nemo-automodel", shown)
    assert first.startswith("there is no exporter for nemo-automodel; ") and "layoutopt verify " in first
    assert "TRAINER" not in first and "result.export" not in first and "layoutopt export" not in first


def test_requirements_on_ranks_that_no_layout_has_are_named() -> None:
    """On 16 GPUs there is a rank 15 at most; nothing is said of one that some layout has."""
    plan, _, machine = answer("llama3-8b", "h100x16", 64)
    for text, absent in {
        "layers[99]<=5": True,
        "recomputed[-17]<=5": True,
        "layers[15]<=5": False,
        "tp<=8": False,
    }.items():
        inputs = {**plan.inputs, "space": {**plan.inputs["space"], "require": [text]}}
        notes = " ".join(plan_notes(replace(plan, inputs=inputs), machine))
        assert ("no layout on 16 GPUs has a pipeline rank" in notes) is absent


def test_many_kinds_of_stages_stay_short() -> None:
    """Of many different ranks the first are named and the others counted."""
    plan, _, _ = answer("llama3-8b", "h100x16", 64)
    assert plan.layout is not None
    stage = plan.layout.stages[0]
    stages = tuple(
        replace(stage, rank=rank, chunk=0, layers=rank + 1, embedding=False, head=False) for rank in range(12)
    )
    words = stage_words(replace(plan.layout, pp=12, vp=1, stages=stages))
    assert words.startswith("rank 0: 1 layers; 1: 2; 2: 3")
    assert words.endswith("7 more groups of ranks (-v)")


def test_an_infeasible_answer_has_no_proof_of_zeros() -> None:
    """Where nothing fits, the reason and what would fit are shown, and no empty proof."""
    plan, workload, machine = answer("llama3-70b", "h100x8", 64)
    assert plan.layout is None
    text = printed(plan, workload, machine, Shown(verbose=True))
    assert "fewest GPUs" in text
    assert "Proof" not in text
    assert "hashes" not in text
