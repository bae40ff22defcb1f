"""How much free stages win over even ones: the joint optimum beside the best even layouts of the same space.

    python benchmarks/uneven_stages.py

Equal means that every virtual stage holds the same number of layers and all recompute the same number, which is what
planners without a stage model search; near-equal lets them differ by one layer. Exit code 1 if a joint
optimum is worse than either.
"""

from __future__ import annotations

import sys
from dataclasses import replace

import click
import numpy as np

from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.frameworks.stage_rule import Recomputation, Split, StageRule
from layoutopt.optimizer.solve.inputs import Question
from layoutopt.optimizer.solve.plan import SolveOptions
from layoutopt.optimizer.solve.search.best_first import BestFirst
from layoutopt.optimizer.solve.search.costed_space import CostedSpace
from layoutopt.optimizer.solve.search.result import SearchOptions
from layoutopt.optimizer.specs.loading import load_cluster, load_workload, override_training

NEAR_EQUAL = StageRule(split=Split.NEAR_EQUAL, recomputation=Recomputation.UNIFORM_COUNT)
CASES = (
    ("llama3-405b", "h100x512", 512),
    ("qwen3-235b-a22b", "h100-256", 2048),
    ("deepseek-v3", "h800-2048", 15360),
    ("llama3-70b", "h100x32", 512),
)
"""Model, cluster, and batch in sequences."""


class NearEqualSpace(CostedSpace):
    """The same tuples with near-equal stages only."""

    __slots__ = ()

    @property
    def rule(self) -> StageRule:
        """Return the near-equal rule."""
        return NEAR_EQUAL


def equal_stages(source: CostedSpace) -> CostedSpace:
    """Keep the tuples whose virtual stages can hold equally many blocks."""
    space, degrees = source.space, source.degrees
    rows = np.flatnonzero(int(source.counts.sum()) % (degrees.pp * degrees.vp) == 0)
    kept = replace(
        space,
        degrees=degrees.take(rows),
        tuples=space.tuples[rows],
        whole_layer_tuples=space.whole_layer_tuples[rows],
    )
    return NearEqualSpace(space=kept, cost=source.cost)


def best_s(source: CostedSpace) -> float:
    """Return the proven least step time."""
    found = BestFirst(source, SearchOptions()).run().best
    return found.step_time_s if found else float("inf")


@click.command()
def main() -> None:
    """Solve every case three times."""
    worse = False
    for model, cluster, batch in CASES:
        workload = override_training(load_workload(model), global_batch=batch)
        question = Question(
            workload=workload, cluster=load_cluster(cluster), options=SolveOptions(framework=Framework.ANY)
        )
        source = question.costed_space()
        joint = best_s(source)
        near = best_s(NearEqualSpace(space=source.space, cost=source.cost))
        equal = best_s(equal_stages(source))
        worse |= joint > min(near, equal) * (1 + 1e-9)
        click.echo(
            f"{model:16} {cluster:12} equal {equal:8.3f} s, near-equal {near:8.3f} s, joint {joint:8.3f} s: "
            f"{1 - joint / equal:.1%} and {1 - joint / near:.1%} faster"
        )
    sys.exit(int(worse))


if __name__ == "__main__":
    main()
