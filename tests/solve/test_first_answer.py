"""First answers: good before anything is bounded, from a small part of the rows and few exact prices."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pytest
from checks.judged_answers import Asked

from layoutopt.optimizer.frameworks.stage_rule import FREE
from layoutopt.optimizer.solve.api import solve_layout
from layoutopt.optimizer.solve.inputs import Question
from layoutopt.optimizer.solve.plan import SolveOptions
from layoutopt.optimizer.solve.search.best_first import BestFirst
from layoutopt.optimizer.solve.search.choices import never
from layoutopt.optimizer.solve.search.construct import by_chunk, good_stages
from layoutopt.optimizer.solve.search.first import FirstTuples
from layoutopt.optimizer.solve.search.likely import likely_s
from layoutopt.optimizer.solve.search.one_tuple import TupleSolver
from layoutopt.optimizer.solve.search.result import SearchOptions
from layoutopt.optimizer.solve.splits import chunks
from layoutopt.optimizer.space.options import SpaceOptions
from layoutopt.optimizer.specs.loading import load_cluster, load_workload

if TYPE_CHECKING:
    from pathlib import Path

    from layoutopt.optimizer.cost.batch import IntArray, LayoutBatch
    from layoutopt.optimizer.cost.terms import StageTerms
    from layoutopt.optimizer.solve.search.costed_space import CostedSpace
    from layoutopt.optimizer.solve.search.one_tuple import Waiting

WITHIN = 1.05
"""How much above the optimum a first answer may be."""

PART = 0.5
"""Part of the rows that first answers don't need."""

PRICED = 4
"""Tuples of a portion that are priced exactly."""


def space_of(model: str, cluster: str, **space: object) -> CostedSpace:
    """Return the space of a built-in question."""
    asked = Asked.named(model, cluster)
    options = SolveOptions(framework=asked.framework, space=SpaceOptions(**space))  # type: ignore[arg-type]
    return Question(workload=asked.workload, cluster=asked.cluster, options=options).costed_space()


def first_tuples(source: CostedSpace) -> list[Waiting]:
    """Return the first tuples of every portion."""
    return [item for portion in FirstTuples(source).of_all_depths() for item in portion[:PRICED]]


class Watched:
    """A space that tells when more than a part of its rows has been priced, as bounds of all rows do."""

    def __init__(self, space: CostedSpace) -> None:
        self._space, self._rows = space, 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._space, name)

    def relaxed(self, rows: LayoutBatch) -> StageTerms:
        """Price and count."""
        self._rows += len(rows)
        return self._space.relaxed(rows)

    def looked_at(self) -> bool:
        """Whether so many rows are priced that it can't be for the first answers."""
        return self._rows > PART * len(self._space.degrees)


@pytest.mark.parametrize(
    ("model", "cluster", "fix"),
    [
        ("llama3-70b", "h100-64", {}),
        ("mixtral-8x7b", "h100-64", {}),
        ("qwen3-235b-a22b", "h100-256", {"cp": (1,), "micro_batch": (1,)}),
        ("deepseek-v3", "h800-2048", {"tp": (2,), "cp": (1,), "micro_batch": (1,)}),
    ],
)
def test_first_answers_are_near_the_optimum(
    model: str, cluster: str, fix: dict[str, tuple[int, ...]]
) -> None:
    """Of mixtures with dense layers in front and merged passes, too: what is found before all rows are bounded."""
    source = space_of(model, cluster, fix=fix)
    watched = Watched(source)
    first = BestFirst(watched, SearchOptions(), should_stop=watched.looked_at).run()  # type: ignore[arg-type]
    whole = BestFirst(source, SearchOptions()).run()
    assert first.best is not None
    assert whole.best is not None
    assert whole.complete
    assert first.bound_s <= whole.best.step_time_s
    assert first.best.step_time_s <= WITHIN * whole.best.step_time_s


def test_any_layout_that_fits_is_found_at_once() -> None:
    """Whoever asks whether something fits allows a gap of 1: the first answer is one, before all rows are bounded."""
    watched = Watched(space_of("llama3-70b", "h100-64"))
    found = BestFirst(watched, SearchOptions(gap=1.0), should_stop=watched.looked_at).run()  # type: ignore[arg-type]
    assert found.best is not None


@pytest.mark.parametrize(
    ("model", "cluster", "batch", "conflict"),
    [
        ("qwen3-32b", "a100-40gx8", 64, ("memory", "8 GPUs")),
        ("llama3-70b", "h100x500", 512, ("every GPU used",)),
    ],
)
def test_what_does_not_fit_is_told_what_would(
    model: str, cluster: str, batch: int, conflict: tuple[str, ...]
) -> None:
    """32 billion parameters on 8 GPUs of 40 GB, and GPUs that no batch divides over."""
    asked = Asked.named(model, cluster, batch=batch)
    found = solve_layout(asked.workload, asked.cluster, SolveOptions()).infeasibility
    assert found is not None
    assert found.conflict == conflict
    assert found.fewest_gpus == (24 if batch == 64 else None)


def test_chunks_that_a_question_fixes_have_first_tuples() -> None:
    """More chunks than rows are compared with otherwise."""
    source = space_of("llama3-70b", "h100-64", fix={"vp": (4,)})
    items = first_tuples(source)
    assert items
    assert {int(item.layout.vp[0]) for item in items} == {4}


def test_constructed_stages_are_as_fast_as_enumerated_ones() -> None:
    """With kinds of unlike layers and with chunks that wait for each other: what is constructed is priced exactly."""
    source = space_of(
        "deepseek-v3", "h800-2048", fix={"pp": (8,), "ep": (64,), "tp": (2,), "micro_batch": (1,)}
    )
    solver = TupleSolver(source, never)
    chunked = set()
    for item in first_tuples(source):
        made = solver.constructed(item, np.inf)
        near, _ = solver.tried(item, np.inf, np.inf)
        assert made is not None
        assert near is not None
        assert made.step_time_s <= 1.02 * near.step_time_s
        about = good_stages(item.terms, source.counts, source.rule)
        blocks, _ = by_chunk(item.terms, about, source.counts, source.rule)
        assert blocks.sum(axis=(0, 1)).tolist() == source.counts.tolist()
        chunked.add(int(item.terms.vp[0]) > 1)
    assert True in chunked


def in_step(totals: list[int], terms: StageTerms) -> list[list[int]]:
    """Return the blocks of every chunk, (V, P)."""
    cut: IntArray = chunks(np.array([totals]), terms, in_step=True).size[0]
    return cut.tolist()  # type: ignore[no-any-return]


def test_end_stages_hold_what_is_left_of_equal_chunks() -> None:
    """Two chunks on four ranks: the last stage and the first one hold less, where that leaves them anything."""
    source = space_of("llama3-70b", "h100-64", fix={"pp": (4,), "vp": (2,)})
    terms = source.terms(source.expand(source.degrees.take(np.array([0])))[0].take(np.array([0])))
    assert source.rule.split is FREE.split
    terms = replace(terms, in_flight=terms.in_flight[:, :4])
    assert in_step([8, 8, 8, 5], terms) == [[4, 4, 4, 4], [4, 4, 4, 1]]
    assert in_step([6, 8, 8, 4], terms) == [[2, 4, 4, 4], [4, 4, 4, 0]]
    assert in_step([8, 8, 8, 3], terms) == [[4, 4, 4, 2], [4, 4, 4, 1]]
    assert in_step([9, 8, 8, 8], terms) == [[4, 4, 4, 4], [5, 4, 4, 4]]


def test_memory_that_is_short_makes_a_layout_less_likely() -> None:
    """Without recomputation, ranks that hold less leave more blocks to the last ones."""
    source = space_of("llama3-70b", "h100-64")
    batch, _ = source.expand(source.degrees.take(np.flatnonzero(source.degrees.pp == 8)[:20]))
    terms = source.terms(batch)
    fixed = replace(terms, may_recompute=np.zeros(len(terms), dtype=bool))
    steps = [
        likely_s(replace(fixed, capacity_bytes=share * fixed.capacity_bytes), source.counts)
        for share in (100.0, 4.0, 3.0, 2.0, 1.5, 1.0)
    ]
    assert all((more >= less).all() for less, more in pairwise(steps))
    assert any((np.isfinite(step) & (step > 1.01 * steps[0])).any() for step in steps)


MODEL = """
name: small mixture
architecture: {layers: 19, hidden: 1024, heads: 16, kv_heads: 8, head_dim: 64, ffn: 2816, vocab: 32000,
  moe: {experts: 16, top_k: 2, ffn: 512, shared_ffn: 512, dense_layers: 1}}
training: {sequence_length: 2048, global_batch: 1, precision: fp8}
"""
CLUSTER = """
name: one small GPU
gpu: {base: h100, memory: 17 GB}
gpus: 1
gpus_per_node: 8
nvlink_domain: 8
nics_per_node: 8
nic_bandwidth: 50 GB/s
reserve: 0 GB
"""


def test_switches_that_no_row_may_have(tmp_path: Path) -> None:
    """What the followed rows recompute excludes all of their switches: there are no first tuples, and that is all."""
    (tmp_path / "model.yaml").write_text(MODEL)
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    options = SolveOptions(space=SpaceOptions(software="core 0.15"))
    source = Question(
        workload=load_workload(str(tmp_path / "model.yaml")),
        cluster=load_cluster(str(tmp_path / "cluster.yaml")),
        options=options,
    ).costed_space()
    assert first_tuples(source) == []
    assert BestFirst(source, SearchOptions()).run().best is None
