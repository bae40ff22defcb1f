"""Kinds of context parallelism: the rules judge the kind that a row's switches state, in every way of asking."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from math import gcd
from typing import TYPE_CHECKING

import pytest
from checks.agreement import dense_model

from layoutopt.optimizer.ask.job import load_job
from layoutopt.optimizer.ask.records import JobRequest
from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.interop.launch.export import NotExpressible, export
from layoutopt.optimizer.solve.inputs import Question
from layoutopt.optimizer.solve.plan import SolveOptions
from layoutopt.optimizer.space.check import check_layout
from layoutopt.optimizer.space.options import SpaceOptions
from layoutopt.optimizer.specs.layout import Layout, Switches
from layoutopt.optimizer.specs.loading import load_cluster, load_workload, parse_layout
from layoutopt.optimizer.specs.model import IndexerSpec
from layoutopt.optimizer.specs.vocabulary import CpComm
from layoutopt.optimizer.specs.workload import Workload

if TYPE_CHECKING:
    from pathlib import Path

    from layoutopt.optimizer.specs.model import ModelSpec

DEGREES = (1, 2, 4, 8)
GRID = tuple((tp, cp) for tp, cp in product(DEGREES, DEGREES) if tp * cp <= 16)
CLUSTER, TRAINING = load_cluster("h100x16"), load_workload("llama3-8b").training
TRAINERS = (Framework.MEGATRON, Framework.MEGATRON_BRIDGE, Framework.ANY)


def broken(layout: Layout, model: ModelSpec, framework: Framework) -> set[str]:
    """The rules that a layout on 16 GPUs breaks."""
    return {one.rule for one in check_layout(layout, model, TRAINING, CLUSTER, framework)}


def spread(tp: int, cp: int, kind: CpComm | None) -> Layout:
    """A layout of 16 GPUs without pipeline."""
    replicas = 16 // (tp * cp)
    return Layout(
        tp=tp, cp=cp, dp=replicas, sp=tp > 1, micro_batches=512 // replicas, switches=Switches(cp_kind=kind)
    )


@pytest.mark.parametrize("framework", TRAINERS)
@pytest.mark.parametrize("kv_heads", [2, 8, 32])
def test_scattered_heads_divide_in_search_and_check(kv_heads: int, framework: Framework) -> None:
    """What is searched with ``cp_kind`` fixed is what a check of each layout lets pass, and what the heads allow."""
    model = replace(dense_model(4), heads=32, kv_heads=kv_heads, head_dim=64)
    fix: dict[str, tuple[int | str, ...]] = {"tp": DEGREES, "cp": DEGREES, "pp": (1,), "micro_batch": (1,)}
    fix["cp_kind"] = ("a2a",)
    options = SolveOptions(space=SpaceOptions(fix=fix), framework=framework)
    source = Question(
        workload=Workload(model=model, training=TRAINING), cluster=CLUSTER, options=options
    ).costed_space()
    batch, _ = source.expand(source.degrees)
    searched = set(zip(batch.tp.tolist(), batch.cp.tolist(), strict=True))
    checked = {each for each in GRID if not broken(spread(*each, CpComm.A2A), model, framework)}
    assert searched == checked
    repeated = framework is Framework.ANY
    for tp, cp in GRID:
        kv = max(kv_heads // tp, 1)
        fits = (32 // tp) % cp == 0 and (kv % cp == 0 or (repeated and cp % kv == 0))
        assert fits == ("ulysses_heads" not in broken(spread(tp, cp, CpComm.A2A), model, framework))
    unstated = {each for each in GRID if "ulysses_heads" in broken(spread(*each, None), model, framework)}
    assert not unstated  # keys go round a ring


@pytest.mark.parametrize("to", ["megatron", "megatron-bridge"])
@pytest.mark.parametrize(("tp", "cp"), [(2, 4), (4, 4)])
def test_the_import_agrees_on_scattered_heads(tp: int, cp: int, to: str, tmp_path: Path) -> None:
    """A launch file is judged as the layout that it was written from; llama3-8b has 8 key-value heads."""
    workload = load_workload("llama3-8b")
    ring = parse_layout(f"tp={tp},cp={cp},micro_batch=1").complete(workload, CLUSTER)
    scattered = replace(ring, switches=Switches(cp_kind=CpComm.A2A))
    files = export(ring, workload, CLUSTER, to).files
    assert any("p2p" in text for text in files.values())
    for file, text in files.items():
        (tmp_path / file).write_text(text.replace("p2p", "a2a"), encoding="utf-8")
    back = load_job(
        JobRequest(cluster="h100x16", files=(str(tmp_path / next(iter(files))),), model="llama3-8b")
    )
    assert isinstance(back.layout, Layout)
    found = check_layout(
        back.layout, workload.model, workload.training, CLUSTER, back.framework, options=back.run
    )
    assert {one.rule for one in found} == broken(scattered, workload.model, back.framework)
    if 8 // tp % cp:
        assert {one.rule for one in found} == {"ulysses_heads"}
        with pytest.raises(NotExpressible, match="head-scattering cp 4"):
            export(scattered, workload, CLUSTER, to)
    else:
        assert not found
        assert any("a2a" in text for text in export(scattered, workload, CLUSTER, to).files.values())


@pytest.mark.parametrize(("tp", "cp", "kv_heads"), [(1, 8, 8), (2, 8, 2), (1, 16, 8), (4, 4, 8), (1, 8, 6)])
def test_hierarchical_sizes_divide_heads(tp: int, cp: int, kv_heads: int) -> None:
    """The group that exchanges heads, as it is written, stays in NVLink and divides every rank's key-value heads."""
    workload = load_workload("llama3-8b")
    model = replace(workload.model, heads=24 if kv_heads == 6 else 32, kv_heads=kv_heads)
    layout = parse_layout(f"tp={tp},cp={cp},micro_batch=1,cp_kind=a2a+p2p").complete(workload, CLUSTER)
    text = "\n".join(export(layout, replace(workload, model=model), CLUSTER, "megatron").files.values())
    words = text.replace("\\\n", " ").replace("(", " ").replace(")", " ").split()
    at = words.index("--hierarchical-context-parallel-sizes")
    inside, ring = (int(word) for word in words[at + 1 : at + 3])
    assert inside * ring == cp
    assert inside == gcd(gcd(cp, 8 // tp), kv_heads // tp)


def test_a_kind_that_sparse_attention_has_not_is_refused() -> None:
    """Chosen keys are gathered: another kind that is stated breaks a rule instead of being ignored."""
    model = replace(dense_model(4), indexer=IndexerSpec(heads=4, head_dim=32, top_k=64))
    for kind in (CpComm.P2P, CpComm.A2A, CpComm.A2A_P2P):
        assert "sparse_needs_gathered_cp" in broken(spread(1, 2, kind), model, Framework.MEGATRON)
        assert "sparse_needs_gathered_cp" not in broken(spread(1, 1, kind), model, Framework.MEGATRON)
    for gathered in (CpComm.ALL_GATHER, None):
        assert "sparse_needs_gathered_cp" not in broken(spread(1, 2, gathered), model, Framework.MEGATRON)
