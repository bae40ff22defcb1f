"""Training budget: steps, FLOPs, days, money and energy of a run at a predicted step time."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from layoutopt.optimizer.cost.flops import model_flops_per_token
from layoutopt.optimizer.specs.errors import input_error

if TYPE_CHECKING:
    from layoutopt.optimizer.specs.cluster import ClusterSpec
    from layoutopt.optimizer.specs.model import ModelSpec, TrainingSpec

DAY_S = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Totals of one training phase without failures.

    ``days_low`` and ``days_high`` spread ``days`` by the relative error of the step-time prediction.
    ``cost`` is in the currency of ``gpu_hour_cost``, None when that isn't given. Energy counts every GPU at its
    board power times PUE, an upper estimate. Adding two budgets adds the totals of consecutive phases.
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


def training_budget(
    model: ModelSpec,
    training: TrainingSpec,
    cluster: ClusterSpec,
    *,
    step_time_s: float,
    gpus: int,
    relative_error: float = 0.0,
    gpu_hour_cost: float | None = None,
) -> Budget:
    """Total a phase up from its step time; raises InputError when the workload names no token count."""
    if not training.total_tokens:
        raise input_error(
            "a training plan needs the number of tokens",
            "training.total_tokens, e.g. 15.6e12",
            key="training",
        )
    steps = training.total_tokens / training.tokens_per_step
    seconds = steps * step_time_s
    gpu_hours = seconds * gpus / 3600
    return Budget(
        tokens=training.total_tokens,
        steps=steps,
        total_flops=model_flops_per_token(model, training.sequence_length, causal=False)
        * training.total_tokens,
        days=seconds / DAY_S,
        days_low=seconds * (1 - relative_error) / DAY_S,
        days_high=seconds * (1 + relative_error) / DAY_S,
        gpu_hours=gpu_hours,
        energy_kwh=gpu_hours * cluster.gpu.tdp_w / 1000 * cluster.pue,
        cost=None if gpu_hour_cost is None else gpu_hours * gpu_hour_cost,
    )
