"""Layouts priced per second on one core: time and memory of every stage, compared with a committed baseline.

    python benchmarks/throughput.py [--renew] [CASE...]

A layout is a tuple of the declared space with near-equal stages, half of their blocks recomputed where that is allowed;
pricing it takes its stage terms and the price of every stage. Seconds are this process's CPU time. Machines differ, so
what CI compares is the ratio of that rate to the rows per second of a fixed numpy workload timed in turn with it. Exit
code 1 where a ratio is below ``TOLERATED_SHARE`` of the baseline's.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click
import numpy as np

from layoutopt.optimizer.cost.terms import price_stages
from layoutopt.optimizer.solve.inputs import Question
from layoutopt.optimizer.solve.plan import SolveOptions
from layoutopt.optimizer.solve.splits import chunks
from layoutopt.optimizer.specs.loading import load_cluster, load_workload

if TYPE_CHECKING:
    from collections.abc import Callable

    from layoutopt.optimizer.cost.batch import IntArray, LayoutBatch
    from layoutopt.optimizer.cost.terms import StageTerms
    from layoutopt.optimizer.solve.search.costed_space import CostedSpace

BASELINE = Path(__file__).resolve().with_name("throughput_baseline.json")
TOLERATED_SHARE = 0.75
"""Timings of one machine vary by up to a tenth, and machines differ in how numpy's calls and its arithmetic compare."""

ROUNDS = 7
BATCH_ROWS = 32_768
REFERENCE_PASSES = 100
MOST_TUPLES = 400_000
"""Larger spaces are sampled: every n-th degree row with all its tuples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A declared space, and the layouts per second on one core that the project asks for."""

    model: str
    cluster: str
    goal_per_s: float


CASES = {
    "llama3-405b": Case(model="llama3-405b", cluster="h100-16384", goal_per_s=400_000),
    "deepseek-v3": Case(model="deepseek-v3", cluster="h800-2048", goal_per_s=200_000),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedBatch:
    """Layouts with their stages: blocks and recomputed blocks of every rank, (n, P, K)."""

    batch: LayoutBatch
    blocks: IntArray
    recomputed: IntArray


def staged_batches(source: CostedSpace) -> list[StagedBatch]:
    """Return the layouts of a space, those of similar pipeline depth together."""
    every = -(-int(source.tuples.sum()) // MOST_TUPLES)
    tuples, _ = source.expand(source.degrees.take(np.arange(0, len(source.degrees), every)))
    by_depth = np.argsort(tuples.pp, kind="stable")
    pieces = np.split(by_depth, np.arange(BATCH_ROWS, len(tuples), BATCH_ROWS))
    return [_staged(source, tuples.take(piece)) for piece in pieces]


def _staged(source: CostedSpace, batch: LayoutBatch) -> StagedBatch:
    terms = source.terms(batch)
    blocks = chunks(_near_equal(terms, int(source.counts.sum())), terms).kinds(source.counts).sum(axis=1)
    recomputed = blocks // 2 * terms.may_recompute[:, None, None]
    return StagedBatch(batch=batch, blocks=blocks, recomputed=recomputed)


def _near_equal(terms: StageTerms, blocks: int) -> IntArray:
    """Return blocks per rank that differ by at most one, (n, P)."""
    rank, pp = np.arange(terms.in_flight.shape[1]), terms.pp[:, None]
    totals: IntArray = np.where(rank < pp, blocks // pp + (rank < blocks % pp), 0)
    return totals


def price(source: CostedSpace, staged: list[StagedBatch]) -> None:
    """Price time and memory of every stage of every layout."""
    for one in staged:
        price_stages(source.terms(one.batch), one.blocks, one.recomputed)


def reference() -> None:
    """Run the fixed workload: the cost model's kind of work, element-wise on arrays of a batch's length."""
    work, group = np.linspace(1.0, 2.0, BATCH_ROWS), np.arange(BATCH_ROWS) % 64
    for _ in range(REFERENCE_PASSES):
        capped = np.maximum(work * 1.5, 1.0) / (1.0 + work)
        _, inverse = np.unique(group, return_inverse=True)
        np.where(capped > 1.0, capped, work)[inverse].sum()


def cpu_s(work: Callable[[], None]) -> float:
    """Return the CPU seconds of one call."""
    start = time.process_time()
    work()
    return time.process_time() - start


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """Layouts per CPU second, and per row of the reference workload."""

    per_s: float
    per_reference_row: float


def measure(case: Case) -> Rate:
    """Take the best of several rounds of both workloads, in turn."""
    question = Question(
        workload=load_workload(case.model), cluster=load_cluster(case.cluster), options=SolveOptions()
    )
    source = question.costed_space()
    staged = staged_batches(source)
    layouts = sum(len(one.batch) for one in staged)
    rounds = [(cpu_s(lambda: price(source, staged)), cpu_s(reference)) for _ in range(ROUNDS)]
    priced_s, reference_s = (min(column) for column in zip(*rounds, strict=True))
    per_s = layouts / priced_s
    return Rate(per_s=per_s, per_reference_row=per_s / (REFERENCE_PASSES * BATCH_ROWS / reference_s))


@click.command(help=__doc__)
@click.argument("names", nargs=-1, type=click.Choice(sorted(CASES)))
@click.option("--renew", is_flag=True, help="Write the measured ratios as the new baseline.")
def main(names: tuple[str, ...], renew: bool) -> None:
    """Measure the cases and compare them with the baseline."""
    before = json.loads(BASELINE.read_text(encoding="utf-8")) if BASELINE.exists() else {}
    slower = False
    for name in names or tuple(CASES):
        case, rate = CASES[name], measure(CASES[name])
        share = rate.per_reference_row / before.get(name, rate.per_reference_row)
        slower |= share < TOLERATED_SHARE
        click.echo(
            f"{name:12} {rate.per_s:9,.0f} layouts/s (goal {case.goal_per_s:,.0f}), {rate.per_reference_row:.4f} per "
            f"reference row, {share:.2f} of the baseline{'  TOO SLOW' if share < TOLERATED_SHARE else ''}"
        )
        before[name] = round(rate.per_reference_row, 5) if renew else before.get(name)
    if renew:
        BASELINE.write_text(json.dumps(before, indent=2) + "\n", encoding="utf-8")
    sys.exit(int(slower and not renew))


if __name__ == "__main__":
    main()
