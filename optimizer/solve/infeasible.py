"""Why nothing fits: what binds, the least memory any layout needs, the fewest GPUs that would do."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.cost.terms import price_stages
from layoutopt.optimizer.solve.best_first import BestFirst, SearchOptions
from layoutopt.optimizer.solve.conflict import minimal_conflict
from layoutopt.optimizer.solve.plan import Infeasibility
from layoutopt.optimizer.solve.splits import chunks
from layoutopt.optimizer.specs.cluster import NetworkLevel
from layoutopt.optimizer.specs.reference_fabric import LEAF_LATENCY_S

if TYPE_CHECKING:
    from layoutopt.optimizer.cost.batch import IntArray, LayoutBatch
    from layoutopt.optimizer.cost.terms import StageTerms
    from layoutopt.optimizer.solve.costed_space import CostedSpace
    from layoutopt.optimizer.solve.inputs import Question
    from layoutopt.optimizer.specs.cluster import ClusterSpec

LARGEST_CLUSTER = 1 << 17
"""GPU counts above this are not tried when looking for the fewest that fit."""

CANDIDATES = 256
"""Degree rows whose exact least memory is looked at."""


def explain_infeasible(question: Question, source: CostedSpace) -> Infeasibility:
    """Explain a space without any layout that fits."""
    empty = source.space.empty
    if empty is not None:
        return Infeasibility(
            message=empty.message,
            binding=f"rule {empty.rule}" if empty.rule else "no axis value",
            conflict=minimal_conflict(question),
        )
    least, row = least_memory(source)
    capacity = float(source.terms(row).capacity_bytes[0])
    fewest = fewest_gpus(question)
    more = f"{fewest:,} GPUs of this kind fit" if fewest else f"no size up to {LARGEST_CLUSTER:,} GPUs was found to fit"
    degrees = ", ".join(f"{name} {int(getattr(row, name)[0])}" for name in ("tp", "cp", "pp", "ep", "zero"))
    return Infeasibility(
        message=(
            f"no layout fits in memory: the leanest ({degrees}) needs {least / 1e9:.1f} GB on its fullest rank, "
            f"{capacity / 1e9:.1f} GB are usable; {more}"
        ),
        binding="memory",
        least_bytes=least,
        capacity_bytes=capacity,
        fewest_gpus=fewest,
        conflict=(*minimal_conflict(question), *([f"{question.cluster.gpu_count:,} GPUs"] if fewest else [])),
    )


def least_memory(source: CostedSpace) -> tuple[float, LayoutBatch]:
    """Return the least peak memory of the space's layouts and the tuple that reaches it.

    Tuples are compared with all layers recomputed where they may be, on the split that fills the ranks most evenly in
    bytes; that split is exact but for whole blocks.
    """
    rows = source.degrees
    optimistic = source.relaxed(rows)
    total = (optimistic.layer_state_bytes + optimistic.recomputed_activation_bytes) @ source.counts / optimistic.pp
    order = np.argsort(total + optimistic.common_bytes)[:CANDIDATES]
    batch, _ = source.expand(rows.take(order))
    terms = source.terms(batch)
    blocks = _byte_even_blocks(source, terms)
    recomputed = blocks * terms.may_recompute[:, None, None]
    peak = price_stages(terms, blocks, recomputed).peak_bytes
    plain = price_stages(terms, blocks, np.zeros_like(blocks)).peak_bytes
    best = np.minimum(peak, plain)
    index = int(best.argmin())
    return float(best[index]), batch.take(np.array([index]))


def _byte_even_blocks(source: CostedSpace, terms: StageTerms) -> IntArray:
    """Blocks (n, P, K) of the most even split, whole blocks, kinds in order, the ends with the fewest."""
    total, pp, ranks = int(source.counts.sum()), terms.pp, terms.in_flight.shape[1]
    place = np.arange(ranks)
    bounds = np.minimum((total + 2) * (place + 1) // pp[:, None], total + 2)
    ends = np.clip(bounds - 1, 0, total)
    ends = np.where(place >= pp[:, None] - 1, total, ends)
    totals = np.diff(ends, axis=1, prepend=0)
    blocks: IntArray = chunks(totals, terms).kinds(source.counts).sum(axis=1)
    return blocks


def fewest_gpus(question: Question) -> int | None:
    """Return the smallest number of whole nodes' GPUs, of this kind, on which some layout fits; doubling, then halving."""
    step = question.cluster.gpus_per_node
    low, high = question.cluster.gpu_count, question.cluster.gpu_count * 2
    while high <= LARGEST_CLUSTER and not _fits(question, high):
        low, high = high, high * 2
    if high > LARGEST_CLUSTER:
        return None
    for _ in range(4):  # within a sixteenth of the interval: layouts need divisors, so feasibility has gaps
        middle = (low + high) // 2 // step * step
        if not low < middle < high:
            break
        low, high = (low, middle) if _fits(question, middle) else (middle, high)
    return high


def _fits(question: Question, gpus: int) -> bool:
    """Whether any layout fits on a larger or smaller cluster of the same kind."""
    source = replace(question, cluster=resized(question.cluster, gpus)).costed_space()
    if source.space.empty is not None:
        return False
    return bool(BestFirst(source, SearchOptions(gap=1.0)).run().found)


def resized(cluster: ClusterSpec, gpus: int) -> ClusterSpec:
    """Return the same fabric with another number of GPUs: inner levels keep their size, the outermost spans all."""
    if not cluster.levels:
        network = NetworkLevel(name="network", gpus=gpus, latency_s=LEAF_LATENCY_S)
        return replace(cluster, gpu_count=gpus, levels=(network,) if gpus > cluster.gpus_per_node else (), graph=None)
    levels = [level for level in cluster.levels[:-1] if level.gpus < gpus]
    outer = cluster.levels[len(levels)] if len(levels) < len(cluster.levels) else cluster.levels[-1]
    levels.append(
        NetworkLevel(name=outer.name, gpus=gpus, oversubscription=outer.oversubscription, latency_s=outer.latency_s)
    )
    return replace(cluster, gpu_count=gpus, levels=tuple(levels), graph=None)
