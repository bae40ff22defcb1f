"""Why a declared space holds no layout."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from layoutopt.optimizer.space.divisors import factorisation_text, prime_powers
from layoutopt.optimizer.space.rules import RULES

if TYPE_CHECKING:
    from layoutopt.optimizer.space.axes import Axes
    from layoutopt.optimizer.space.counting import SpaceCounts


@dataclass(frozen=True, slots=True, kw_only=True)
class EmptySpace:
    """The rule that removed the last tuples, and prime factors of the GPU count that no axis can take.

    ``message`` says it in one line, for exit code 3.
    """

    rule: str
    formula: str
    blocking_primes: tuple[int, ...]
    message: str


def explain_empty(axes: Axes, counts: SpaceCounts) -> EmptySpace:
    """Find out why no tuple is left."""
    rule = counts.last_rule
    formula = next((r.formula for r in RULES if r.name == rule and r.applies(axes.ctx)), "")
    primes = () if axes.options.allow_idle is not None else _blocking_primes(axes)
    if primes:
        message = _prime_message(axes, primes[0])
    elif not counts.declared_degrees:
        message = _undeclared_message(axes)
    else:
        named = f"{rule} ({formula})" if formula else rule
        message = (
            f"none of {counts.declared_degrees:,} declared degree tuples is valid under "
            f"{axes.ctx.framework}: {_largest(counts)}; the last were removed by {named}"
        )
    return EmptySpace(rule=rule, formula=formula, blocking_primes=primes, message=message)


def _largest(counts: SpaceCounts) -> str:
    """Name the rules that removed most, with their numbers."""
    ranked = sorted(counts.removed, key=lambda count: -count.degrees)[:3]
    return ", ".join(f"{count.rule} removed {count.degrees:,}" for count in ranked if count.degrees)


def _blocking_primes(axes: Axes) -> tuple[int, ...]:
    """Return the prime factors of the GPU count that divide no value of any axis, largest first."""
    batch = axes.ctx.training.global_batch
    able = [*axes.tp, *_context_degrees(axes), *axes.pp]
    return tuple(
        prime
        for prime, _ in reversed(prime_powers(axes.ctx.gpus))
        if batch % prime and not any(value % prime == 0 for value in able)
    )


def _context_degrees(axes: Axes) -> list[int]:
    """Return the context degrees that the sequence can be cut into."""
    return [cp for cp in axes.cp if cp == 1 or axes.ctx.training.sequence_length % (2 * cp) == 0]


def _prime_message(axes: Axes, prime: int) -> str:
    """Say which number blocks and why each axis can't take it."""
    ctx, gpus = axes.ctx, axes.ctx.gpus
    sequence, batch = ctx.training.sequence_length, ctx.training.global_batch
    return (
        f"{gpus:,} = {factorisation_text(gpus)}: the prime factor {prime:,} divides neither the batch "
        f"{batch:,} (dp) nor half the sequence {sequence:,} (cp), and exceeds what pp ({ctx.blocks} blocks) "
        f"and tp (within {ctx.cluster.tensor_domain} GPUs) can take; --allow-idle leaves GPUs out"
    )


def _undeclared_message(axes: Axes) -> str:
    """Say which axis has no value, or that the fixed degrees don't divide the GPUs."""
    lists = {
        "tp": axes.tp,
        "cp": axes.cp,
        "pp": axes.pp,
        "ep": axes.ep,
        "micro_batch": axes.micro_batch,
        "zero": axes.zero,
        "recompute": axes.recomputes,
        "mesh_order": axes.orders,
        "precision": axes.precisions,
        "savers": axes.savers,
    }
    lacking = [name for name, values in lists.items() if not values]
    if lacking:
        return f"the restrictions leave no value for {', '.join(lacking)}"
    tried = ", ".join(
        f"{name} in {list(axes.options.fix[name])}"
        for name in ("tp", "cp", "pp", "dp")
        if name in axes.options.fix
    )
    return f"no tp * cp * pp * dp within the ranges gives {axes.ctx.gpus:,} GPUs" + (
        f" ({tried})" if tried else ""
    )
