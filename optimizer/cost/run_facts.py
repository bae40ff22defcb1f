"""What quantities ask of a run and of layouts: its steps, prices and power, and what each layout takes of the cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.cost.budget import gpu_power_w, steps_of_run
from layoutopt.optimizer.cost.interruptions import slowdowns, state_replicas
from layoutopt.optimizer.specs.errors import input_error

if TYPE_CHECKING:
    from layoutopt.optimizer.cost.batch import LayoutBatch
    from layoutopt.optimizer.cost.terms import FloatArray
    from layoutopt.optimizer.specs.cluster import ClusterSpec
    from layoutopt.optimizer.specs.model import ModelSpec, TrainingSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """What ``n`` layouts take of a cluster, (n,) each: GPUs, and copies of the whole training state."""

    gpus: FloatArray
    replicas: FloatArray


def footprint_of(batch: LayoutBatch, *, exact: bool = True) -> Footprint:
    """Return what layouts take of a cluster; not ``exact``: with the most replicas that any sharding leaves."""
    return Footprint(
        gpus=(batch.tp * batch.cp * batch.pp * batch.dp).astype(np.float64),
        replicas=state_replicas(batch, exact=exact),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """What quantities rest on beside the layout; ``gpu_hour_cost`` in any currency, None where nobody gave it."""

    model: ModelSpec
    training: TrainingSpec
    cluster: ClusterSpec
    gpu_hour_cost: float | None = None

    @property
    def steps(self) -> float:
        """Optimizer steps of the whole run; raises InputError without a number of tokens."""
        return steps_of_run(self.training)

    @property
    def price(self) -> float:
        """Cost of a GPU for an hour; raises InputError where nobody gave it."""
        if self.gpu_hour_cost is None:
            raise input_error("is not given, and cost rests on it", "e.g. 2.5", key="gpu_hour_cost")
        return self.gpu_hour_cost

    @property
    def power_w(self) -> float:
        """Watts of a GPU at its power limit with its share of node, switches and the facility's overhead."""
        return gpu_power_w(self.cluster)

    def slowdowns(self, use: Footprint) -> FloatArray:
        """Expected wall-clock time with failures and checkpoints over useful time, (n,)."""
        return slowdowns(self.model, self.cluster, use.gpus, use.replicas)
