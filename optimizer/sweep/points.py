"""The points of a sweep: combinations of models, clusters, sizes, batches, sequence lengths and networks."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any

from layoutopt.optimizer.solve.inputs import Question, cost_model_digest
from layoutopt.optimizer.solve.plan import SolveOptions
from layoutopt.optimizer.specs.canonical import digest
from layoutopt.optimizer.specs.errors import InputError, Problem, input_error
from layoutopt.optimizer.specs.loading import override_training
from layoutopt.optimizer.sweep.families import kind_digest, network_gbit_per_s, tier_rows, with_network

if TYPE_CHECKING:
    from collections.abc import Sequence

    from layoutopt.optimizer.specs.cluster import ClusterSpec
    from layoutopt.optimizer.specs.workload import Workload
    from layoutopt.optimizer.sweep.families import ClusterFamily


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPoint:
    """One question of a sweep.

    ``key`` is the sha256 of everything that decides its answer. ``chain`` is shared by the points that
    differ in the cluster's size alone.
    """

    model: str
    family: str
    question: Question
    key: str
    chain: str

    @property
    def gpus(self) -> int:
        """Size of the cluster."""
        return self.question.cluster.gpu_count

    def columns(self) -> dict[str, Any]:
        """Return what the point asks, as columns to filter by."""
        training, cluster = self.question.workload.training, self.question.cluster
        return {
            "model": self.model,
            "family": self.family,
            "cluster": cluster.name,
            "gpu": cluster.gpu.name,
            "gpus": cluster.gpu_count,
            "global_batch": training.global_batch,
            "sequence_length": training.sequence_length,
            "network_gbit_per_s": network_gbit_per_s(cluster),
            "framework": self.question.options.framework.value,
            "chain": self.chain,
            "tiers": tier_rows(cluster),
        }


MAX_POINTS = 100_000
"""More combinations than this in one sweep are a typing error: their questions are held in memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepGrid:
    """Lists whose combinations are solved; an empty list keeps what the model or the cluster states.

    ``network_gbit_per_s`` is per GPU, one way.
    """

    workloads: Sequence[Workload]
    families: Sequence[ClusterFamily]
    gpus: Sequence[int] = ()
    global_batches: Sequence[int] = ()
    sequence_lengths: Sequence[int] = ()
    network_gbit_per_s: Sequence[float] = ()
    options: SolveOptions = field(default_factory=SolveOptions)

    def points(self) -> tuple[SweepPoint, ...]:
        """Return every combination once, sizes innermost and ascending.

        Raises ``InputError`` with one line for each combination that can't be asked.
        """
        lists = (self.gpus, self.global_batches, self.sequence_lengths, self.network_gbit_per_s)
        count = len(self.workloads) * len(self.families) * prod(len(values) or 1 for values in lists)
        if count > MAX_POINTS:
            raise input_error(f"{count:,} combinations", f"at most {MAX_POINTS:,} in one sweep", key="sweep")
        found: dict[str, SweepPoint] = {}
        problems: dict[str, Problem] = {}
        # Sizes innermost: a size starts from the answer of the one before it.
        for workload, family, length, batch, network, gpus in product(
            self.workloads, self.families, self.sequence_lengths or (None,), self.global_batches or (None,),
            self.network_gbit_per_s or (None,), sorted(self.gpus) or (None,),
        ):  # fmt: skip
            try:
                changed = override_training(workload, sequence_length=length, global_batch=batch)
                point = make_point(changed, family.name, with_network(family.at(gpus), network), self.options)
            except InputError as error:
                # One line for each thing that is wrong, not for each point that it spoils.
                problems |= {str(problem): problem for problem in error.problems}
            else:
                # Two names of one cluster ask one question, and the store keeps one row of a key.
                found.setdefault(point.key, point)
        if problems:
            raise InputError(*problems.values())
        return tuple(found.values())


def make_point(workload: Workload, family: str, cluster: ClusterSpec, options: SolveOptions) -> SweepPoint:
    """Build a point with its key and its chain. A sweep solves a workload's main training, not its phases."""
    if workload.phases:
        workload = replace(workload, phases=(), phase_names=())
    question = Question(workload=workload, cluster=cluster, options=options)
    # Options that show in a finished answer. The time limit is none of them: what is proven is proven under any limit, and
    # the store knows under which an unfinished search stopped.
    near = None if options.near is None else float(options.near)
    search = {"top": options.top, "near": near, "gap": float(options.gap)}
    # With the digest of the prices in the key an answer of an older cost model is never taken for one of this.
    plain = question.to_plain() | {"search": search, "cost_model": cost_model_digest()}
    chain = {
        "workload": plain["workload"],
        "kind": kind_digest(cluster),
        "options": [plain["framework"], plain["cost"], plain["space"], search],
        "cost_model": plain["cost_model"],
    }
    return SweepPoint(
        model=workload.model.name, family=family, question=question, key=digest(plain), chain=digest(chain)
    )
