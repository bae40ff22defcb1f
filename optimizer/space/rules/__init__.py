"""Validity rules by family, in the order in which they are applied and counted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutopt.optimizer.space.rules import (
    experts,
    flags,
    heads,
    layers,
    mesh_orders,
    precision,
    products,
    recompute,
    schedules,
    sequence,
    sharding,
)

if TYPE_CHECKING:
    from layoutopt.optimizer.space.rule import Rule

RULES: tuple[Rule, ...] = (
    *products.RULES,
    *heads.RULES,
    *sequence.RULES,
    *layers.RULES,
    *schedules.RULES,
    *experts.RULES,
    *sharding.RULES,
    *mesh_orders.RULES,
    *recompute.RULES,
    *precision.RULES,
    *flags.RULES,
)
