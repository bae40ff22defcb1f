"""Training budget: steps, FLOPs, days, money and energy of a run at a predicted step time."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from layoutopt.optimizer.cost.flops import model_flops_per_token
from layoutopt.optimizer.specs.errors import input_error
from layoutopt.optimizer.specs.units import DAY_S, HOUR_S

if TYPE_CHECKING:
    from layoutopt.optimizer.specs.cluster import ClusterSpec
    from layoutopt.optimizer.specs.model import ModelSpec, TrainingSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Totals of one training phase without failures.

    ``days_low`` and ``days_high`` are ``days`` at both ends of the range in which the true step time is expected.
    ``cost`` is in the currency of ``gpu_hour_cost``, None when that isn't given. Energy counts every GPU at its
    power limit with its share of node and switches, times PUE: an estimate, no bound. Adding two budgets adds the totals of
    consecutive phases.
    """

    tokens: float
    steps: float
    total_flops: float
    days: float
    days_low: float
    days_high: float
    gpu_hours: float
    energy_kwh: float
    cost: float | None

    def __add__(self, other: Budget) -> Budget:
        names = [field.name for field in fields(self) if field.name != "cost"]
        cost = None if self.cost is None or other.cost is None else self.cost + other.cost
        return Budget(cost=cost, **{name: getattr(self, name) + getattr(other, name) for name in names})


def steps_of_run(training: TrainingSpec) -> float:
    """Return the optimizer steps of a run; raises InputError when the workload names no token count."""
    if not training.total_tokens:
        raise input_error(
            "a training plan needs the number of tokens",
            "training.total_tokens, e.g. 15.6e12",
            key="training",
        )
    return training.total_tokens / training.tokens_per_step


HOST_POWER_SHARE = 0.36
"""Power of a node beside its GPUs and NICs over its GPUs' rated power: 8 x H100 drew at most 7.75 kW in training (arXiv
2506.14551), 5.6 of it the GPUs and 0.2 the NICs. The same share gives 1.63 kW per GB200 of a 120 kW rack of 72."""


def node_power_w(cluster: ClusterSpec) -> float:
    """Return what one full node draws at its GPUs' power limit, with NICs and host but before cooling."""
    gpus = cluster.gpus_per_node
    # Of the rated power: a limit on the GPUs leaves hosts and fans as they are.
    share = HOST_POWER_SHARE * gpus * cluster.gpu.rated_w
    host = share if cluster.host_power_w is None else cluster.host_power_w
    return gpus * cluster.gpu.tdp_w + host + cluster.nics_per_node * cluster.nic_power_w


def switch_power_w(cluster: ClusterSpec) -> float:
    """Return a node's part of the network's switches: a port at the lowest level, two at every level above it.

    An oversubscribed level has fewer uplinks in proportion, and so has every level above it.
    """
    if cluster.gpu_count <= cluster.gpus_per_node:
        return 0.0
    ports, share = 1.0, 1.0
    for level in cluster.levels[1:]:
        share /= level.oversubscription
        ports += 2.0 * share
    return cluster.nics_per_node * ports * cluster.switch_power_w


def gpu_power_w(cluster: ClusterSpec) -> float:
    """Return what a GPU takes from the grid: its share of node and switches times the machine room's overhead."""
    return (node_power_w(cluster) + switch_power_w(cluster)) / cluster.gpus_per_node * cluster.pue


def training_budget(
    model: ModelSpec,
    training: TrainingSpec,
    cluster: ClusterSpec,
    *,
    step_time_s: float,
    gpus: int,
    step_ratio: tuple[float, float] = (1.0, 1.0),
    gpu_hour_cost: float | None = None,
) -> Budget:
    """Total a phase up from its step time; raises InputError when the workload names no token count.

    ``step_ratio`` is the range of the true step time over the predicted one.
    """
    steps = steps_of_run(training)
    tokens = training.total_tokens or 0.0
    seconds = steps * step_time_s
    gpu_hours = seconds * gpus / HOUR_S
    return Budget(
        tokens=tokens,
        steps=steps,
        # Budgets are quoted with the full square of scores (6N + 12 L d s per token).
        total_flops=model_flops_per_token(model, training.sequence_length, causal=False) * tokens,
        days=seconds / DAY_S,
        days_low=seconds * step_ratio[0] / DAY_S,
        days_high=seconds * step_ratio[1] / DAY_S,
        gpu_hours=gpu_hours,
        energy_kwh=gpu_hours * gpu_power_w(cluster) / 1e3,
        cost=None if gpu_hour_cost is None else gpu_hours * gpu_hour_cost,
    )
