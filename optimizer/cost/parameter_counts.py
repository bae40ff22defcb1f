"""The parameters of a model in the three ways that are quoted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from layoutopt.optimizer.cost.flops import mixer_linear_flops, mlp_flops
from layoutopt.optimizer.cost.parameters import active_parameters, model_parameters

if TYPE_CHECKING:
    from layoutopt.optimizer.specs.model import ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterCounts:
    """Numbers of parameters.

    ``total`` counts all but multi-token prediction, ``active`` those that one token passes, ``matrices`` those that one
    token is multiplied with, the output matrix among them and the input embedding not: the N of 6N FLOPs per token.
    """

    total: float
    active: float
    matrices: float


def count_parameters(model: ModelSpec) -> ParameterCounts:
    """Count parameters in the three ways that are quoted."""
    linear = sum(
        run.count * sum(mixer_linear_flops(model, shape) + mlp_flops(model, shape) for shape in run.block)
        for run in model.runs
    )
    return ParameterCounts(
        total=model_parameters(model),
        active=active_parameters(model, with_input_embedding=True),
        matrices=linear / 2 + model.hidden * model.vocab,  # two FLOPs for each weight
    )
