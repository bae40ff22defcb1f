"""Validity rules by family; ``RULES`` lists all of them in the order in which they are applied and counted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutopt.optimizer.space.rules import (
    attention,
    experts,
    flags,
    pipeline,
    precision,
    products,
    recompute,
    sharding,
)

if TYPE_CHECKING:
    from layoutopt.optimizer.space.rule import Rule

RULES: tuple[Rule, ...] = (
    *products.RULES,
    *attention.RULES,
    *pipeline.RULES,
    *experts.RULES,
    *sharding.RULES,
    *recompute.RULES,
    *precision.RULES,
    *flags.RULES,
)
