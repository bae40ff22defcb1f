"""Validity rules by family, in the order in which they are applied and counted, and those of one framework alone.

The latter are ``RULES`` of the module here that has the name of the framework's files.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.space.rules import (
    experts,
    flags,
    heads,
    layers,
    mesh_orders,
    models,
    optimizers,
    precision,
    products,
    recompute,
    schedules,
    sequence,
    shard_groups,
    sharding,
    switches,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from layoutopt.optimizer.space.rule import Rule


def _own_rules() -> Iterator[Rule]:
    for framework in Framework:
        name = f"{__name__}.{framework.record.folder}"
        if find_spec(name) is not None:
            yield from import_module(name).RULES


RULES: tuple[Rule, ...] = (
    *products.RULES,
    *models.RULES,
    *heads.RULES,
    *sequence.RULES,
    *layers.RULES,
    *schedules.RULES,
    *experts.RULES,
    *sharding.RULES,
    *shard_groups.RULES,
    *mesh_orders.RULES,
    *recompute.RULES,
    *precision.RULES,
    *optimizers.RULES,
    *switches.RULES,
    *flags.RULES,
    *_own_rules(),
)
