"""Enumerate the degree tuples that no rule removes, and count what each rule removed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from math import exp, lgamma, log
from typing import TYPE_CHECKING, Any

import numpy as np

from layoutopt.optimizer.cost.run_facts import RunFacts
from layoutopt.optimizer.frameworks.stage_rule import COUNTED, Recomputation, Split
from layoutopt.optimizer.frameworks.switches import BY_NAME, switch_text
from layoutopt.optimizer.space.axes import MICRO_BATCHES, declare_axes
from layoutopt.optimizer.space.builder import SpaceBuilder
from layoutopt.optimizer.space.context import make_context
from layoutopt.optimizer.space.divisors import factorisation_text, prime_powers
from layoutopt.optimizer.space.modifiers import MODIFIER_COLUMNS, Modifiers
from layoutopt.optimizer.space.options import SpaceOptions
from layoutopt.optimizer.space.recompute_sets import recompute_text
from layoutopt.optimizer.space.requirement import axis_rules
from layoutopt.optimizer.space.rule import search_rules
from layoutopt.optimizer.space.rules import RULES
from layoutopt.optimizer.space.rules.shard_groups import asked_groups
from layoutopt.optimizer.space.savers import savers_text
from layoutopt.optimizer.space.stage_splits import boxes
from layoutopt.optimizer.space.switch_sets import NEVER_SLOWER, dominated_sets

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from layoutopt.optimizer.cost.batch import IntArray, LayoutBatch
    from layoutopt.optimizer.frameworks.registry import Framework
    from layoutopt.optimizer.frameworks.stage_rule import StageRule
    from layoutopt.optimizer.space.axes import Axes
    from layoutopt.optimizer.space.context import Context
    from layoutopt.optimizer.space.counting import SpaceCounts
    from layoutopt.optimizer.specs.cluster import ClusterSpec
    from layoutopt.optimizer.specs.model import ModelSpec, TrainingSpec


_LONG = 16
"""From so many values on only the first three and the last are written out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisRow:
    """One axis: its name, its range in words, how many values it has."""

    axis: str
    range_text: str
    values: int


def axes_table(axes: Axes) -> tuple[AxisRow, ...]:
    """Describe every declared axis."""
    ctx = axes.ctx
    domain, blocks, batch = ctx.cluster.tensor_domain, ctx.blocks, ctx.training.global_batch
    joins = "NVLink domain" if ctx.cluster.nvlink_domain > 1 else "node"
    fewest, most = axes.gpus
    total = f"{most:,}" if fewest == most else f"{fewest:,} to {most:,}"
    sets = [savers_text(chosen) for chosen in axes.savers]
    # Axes that are closed are no part of the declared space, and are listed apart.
    savers = [_row("savers", sets, "memory savers")] if any(axes.savers) else []
    switches = [
        _row(name, map(switch_text, values), BY_NAME[name].meaning)
        for name, values in axes.switch_values.items()
    ]
    recomputes = [recompute_text(recompute) for recompute in axes.recomputes]
    return (
        _row("tp", axes.tp, f"{joins} of {domain}"),
        _row("sp", sorted({sp for tp in axes.tp for sp in axes.sp_of(tp)}), "follows tp"),
        _row("cp", axes.cp, "at least two tokens per rank"),
        _row("pp", axes.pp, f"at most {blocks + 2} stages: {blocks} blocks, empty ends"),
        _row("vp", sorted({vp for pp in axes.pp for vp in axes.vp_of(pp)}), "at least one block per chunk"),
        _row("dp", _data_degrees(axes), f"{total} GPUs / (tp*cp*pp)"),
        _row("ep", axes.ep, "divisors of the experts" if ctx.experts else "no experts"),
        _row(
            "etp",
            sorted({etp for tp in axes.tp for etp in axes.etp_of(tp)}),
            "divisors of tp" if ctx.experts else "",
        ),
        _row("micro_batch", axes.micro_batch, _micro_batch_words(axes, batch)),
        _row("zero", axes.zero, "with the level that shard groups tile"),
        _row("recompute", recomputes, "full: any number of layers, none included"),
        _row("mesh_order", axes.orders, "innermost first"),
        _row("schedule", [schedule.value for schedule in axes.schedules], "as pp and vp allow"),
        _row("precision", [precision.value for precision in axes.precisions], ""),
        *savers,
        *switches,
    )


def _micro_batch_words(axes: Axes, batch: int) -> str:
    """Say which sizes of a micro-batch are declared."""
    powers = len(axes.micro_batch) > 1 and axes.micro_batch == MICRO_BATCHES
    return (
        f"powers of two; they divide the batch of {batch:,}"
        if powers
        else f"divisors of the batch of {batch:,}"
    )


def _data_degrees(axes: Axes) -> list[int]:
    """Return the data-parallel degrees that the other ranges leave."""
    if axes.dp is not None:
        return list(axes.dp)
    gpus = axes.gpus[1]
    model = {tp * cp * pp for tp in axes.tp for cp in axes.cp for pp in axes.pp}
    # dp has no range of its own: it takes up what the other degrees leave of the GPUs.
    degrees = (gpus // product for product in model if gpus % product == 0)
    return sorted({dp for dp in degrees if axes.options.allows("dp", dp)})


def _row(axis: str, values: Iterable[object], note: str) -> AxisRow:
    """Describe one axis: its values, shortened when there are many, and what bounds them."""
    texts = [str(value) for value in values]
    shown = ", ".join(texts) if len(texts) <= _LONG else f"{', '.join(texts[:3])}, ..., {texts[-1]}"
    return AxisRow(axis=axis, range_text=f"{shown} ({note})" if note else shown, values=len(texts))


def log10_assignments(tuples: Mapping[tuple[int, int, bool], int], blocks: int, rule: StageRule) -> float:
    """Estimate log10 of the number of layouts with their stages; minus infinity for an empty space.

    ``tuples`` counts layouts without stages by (pp, vp, whether whole layers may be recomputed). Free splits
    are counted exactly; near-equal splits and recompute counts are those of the even split, hence an
    estimate.
    """
    logs = [
        log(count)
        + _log_splits(blocks, pp, vp, rule)
        + (_log_counts(blocks, pp, vp, rule.recomputation) if may_recompute else 0.0)
        for (pp, vp, may_recompute), count in tuples.items()
    ]
    if not logs:
        return float("-inf")
    # A sum of exponentials that would overflow: take out the largest first.
    top = max(logs)
    return (top + log(sum(exp(value - top) for value in logs))) / log(10)


def _log_splits(blocks: int, pp: int, vp: int, rule: StageRule) -> float:
    """Log of the ways to give ranks their totals: at least vp blocks, the ends one fewer."""
    # Both ends may hold nothing, as if the model had two blocks more and every stage one at least.
    spare = blocks + 2 - pp * vp if pp > 1 else 0
    # One stage holds everything; with no more blocks than stages there is one split at most.
    if pp == 1 or spare <= 0:
        return 0.0
    if rule.split in COUNTED:
        # A box lets one number run; each of its values is a split.
        return log(max(sum(1 + int((high - low).max()) for low, high in boxes(rule, pp, vp, blocks)), 1))
    if rule.split is Split.FREE:
        return _log_choose(spare + pp - 1, pp - 1)
    # Near-equal: which ranks get the blocks that are left over.
    return _log_choose(pp, (blocks + 2) % pp)


def _log_counts(blocks: int, pp: int, vp: int, recomputation: Recomputation) -> float:
    """Log of the recompute counts of an even split."""
    # An even split stands for all: counts of other splits differ by a block.
    per_rank = blocks / pp
    if recomputation is Recomputation.PER_RANK:
        return pp * log(per_rank + 1)
    return log(per_rank / vp + 1) if recomputation is Recomputation.UNIFORM_COUNT else log(2)


def _log_choose(total: int, chosen: int) -> float:
    return lgamma(total + 1) - lgamma(chosen + 1) - lgamma(total - chosen + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """The declared space of one question.

    ``degrees`` holds every degree tuple that no rule removes, with one valid choice of modifiers: ZeRO-1 over
    the whole group or the nearest stage, the first valid entry of every other list. ``tuples`` (n,) counts a
    row's valid choices, ``whole_layer_tuples`` those with whole-layer recomputation. ``empty`` says why there
    is none.
    """

    ctx: Context
    axes: Axes
    degrees: LayoutBatch
    tuples: IntArray
    whole_layer_tuples: IntArray
    modifiers: Modifiers
    counts: SpaceCounts
    empty: EmptySpace | None

    @property
    def stage_rule(self) -> StageRule:
        """How freely the framework splits layers over stages."""
        return self.ctx.stage_rule

    def expand(self, rows: LayoutBatch) -> tuple[LayoutBatch, IntArray]:
        """Return every valid modifier combination of the rows, and the index (k,) of the row each came from."""
        return self.modifiers.expand(rows)

    def axes_table(self) -> tuple[AxisRow, ...]:
        """Describe every axis: name, range, number of values."""
        return axes_table(self.axes)

    @property
    def joint_assignments_log10(self) -> float:
        """Estimate the decimal logarithm of layouts with their stage splits and recompute counts."""
        return log10_assignments(self.tuples_by_shape(), self.ctx.blocks, self.stage_rule)

    def tuples_by_shape(self) -> dict[tuple[int, int, bool], int]:
        """Count tuples by (pp, vp, whether whole layers may be recomputed), which decide the stages."""
        shapes, row = np.unique(np.stack([self.degrees.pp, self.degrees.vp]), axis=1, return_inverse=True)
        # NumPy 2.0 gives the inverse the shape of its input.
        row, count = row.ravel(), shapes.shape[1]
        whole = np.bincount(row, weights=self.whole_layer_tuples, minlength=count)
        every = np.bincount(row, weights=self.tuples, minlength=count)
        return {
            (int(pp), int(vp), may): int(number)
            for (pp, vp), total, full in zip(shapes.T, every, whole, strict=True)
            for may, number in ((True, full), (False, total - full))
            if number
        }


def _codes(axes: Axes) -> dict[str, Any]:
    """List what precision codes stand for: every precision with every set of savers and of switches."""
    codes = list(product(axes.precisions, axes.savers, axes.switches))
    return {
        "precisions": tuple(code[0] for code in codes),
        "savers": tuple(code[1] for code in codes) if any(axes.savers) else (),
        "switches": tuple(code[2] for code in codes) if any(axes.switches) else (),
    }


def build_space(
    model: ModelSpec,
    training: TrainingSpec,
    cluster: ClusterSpec,
    framework: Framework,
    options: SpaceOptions | None = None,
) -> Space:
    """Declare the axes, enumerate their tuples and apply every rule that shapes the search.

    Parameters
    ----------
    model, training, cluster
        The workload and where it runs; the global batch is met exactly and every GPU is used unless
        ``options.allow_idle`` says otherwise.
    framework
        Decides which layouts can be launched.
    options
        Restrictions, lists that open an axis, the framework's release and stated flags.

    Returns
    -------
    The space. It may be empty, then ``empty`` says why.
    """
    options = options or SpaceOptions()
    # Rules that compare ranks with the GPUs of the cluster have to know that fewer may be started.
    run = options.run if options.allow_idle is None else replace(options.run, idle_gpus=True)
    ctx = make_context(model, training, cluster, framework, options.software, run)
    axes = declare_axes(ctx, options)
    # Requirements may be about cost and energy, which rest on price and power beside the layout.
    facts = RunFacts(model=model, training=training, cluster=cluster, gpu_hour_cost=options.gpu_hour_cost)
    asked = (*asked_groups(options), *axis_rules(options.requirements, facts))
    rules = (*search_rules(RULES, ctx, options), *asked)
    modifiers = Modifiers(
        ctx=ctx,
        zero=axes.zero,
        recomputes=axes.recomputes,
        orders=axes.orders,
        schedules=axes.schedules,
        **_codes(axes),
        rules=tuple(rule for rule in rules if rule.reads & MODIFIER_COLUMNS),
    )
    if "none" not in options.forbid.get("recompute", ()):
        modifiers = modifiers.or_none()
        axes = replace(axes, recomputes=modifiers.recomputes)
    # Rules on degrees alone cut rows before modifiers multiply them.
    on_degrees = tuple(rule for rule in rules if not rule.reads & MODIFIER_COLUMNS)
    counted = SpaceBuilder(axes, modifiers, on_degrees).run()
    return Space(
        ctx=ctx,
        axes=axes,
        degrees=counted.rows,
        tuples=counted.tuples,
        whole_layer_tuples=counted.whole_layer_tuples,
        modifiers=modifiers,
        counts=counted.counts.beside(NEVER_SLOWER, dominated_sets(axes.dominated)),
        empty=None if len(counted.rows) else explain_empty(axes, counted.counts),
    )


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
    lacking = _lacking(axes)
    if lacking:
        message = f"the restrictions leave no value for {', '.join(lacking)}"
        return EmptySpace(rule="", formula="", blocking_primes=(), message=message)
    rule = counts.last_rule
    # A rule may be there once per release: the one that applies is quoted.
    last = next((r for r in RULES if r.name == rule and r.applies(axes.ctx)), None)
    formula = last.formula if last else ""
    # With GPUs left out another number may be used, so that a prime blocks nothing.
    primes = () if axes.options.allow_idle is not None else _blocking_primes(axes)
    if primes:
        message = _prime_message(axes, primes[0])
    elif not counts.declared_tuples:
        message = _undeclared_message(axes)
    else:
        named = f"{rule} ({formula})" if formula else rule
        # Such a rule makes no layout invalid: the words are not those of one that can't be launched.
        limit = (
            f", which limits the search alone ({last.reason}): evaluate prices others"
            if last and last.search_only
            else ""
        )
        message = (
            f"none of {counts.declared_degrees:,} declared degree tuples is {'searched' if limit else 'valid'} under "
            f"{axes.ctx.framework}: {_largest(counts)}; the last were removed by {named}{limit}"
        )
    return EmptySpace(rule=rule, formula=formula, blocking_primes=primes, message=message)


def _largest(counts: SpaceCounts) -> str:
    """Name the rules that removed most, with their numbers."""
    # Dozens of rules remove something; the three largest tell what the question runs into.
    ranked = sorted(counts.removed, key=lambda count: -count.degrees)[:3]
    return ", ".join(f"{count.rule} removed {count.degrees:,}" for count in ranked if count.degrees)


def _blocking_primes(axes: Axes) -> tuple[int, ...]:
    """Return the prime factors of the GPU count that divide no value of any axis, largest first."""
    batch = axes.ctx.training.global_batch
    # dp divides the batch; a prime that neither the batch nor any other axis has stays over in every product.
    able = [*axes.tp, *_context_degrees(axes), *axes.pp]
    return tuple(
        prime
        # The largest one first: it is the hardest to place.
        for prime, _ in reversed(prime_powers(axes.ctx.gpus))
        if batch % prime and not any(value % prime == 0 for value in able)
    )


def _context_degrees(axes: Axes) -> list[int]:
    """Return the context degrees that the sequence can be cut into."""
    # Two pieces for each rank: an early and a late one.
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


def _lacking(axes: Axes) -> list[str]:
    """Name the axes that the restrictions leave without any value."""
    lists: dict[str, Collection[object]] = {
        "tp": axes.tp,
        "cp": axes.cp,
        "pp": axes.pp,
        "ep": axes.ep,
        "micro_batch": axes.micro_batch,
        "zero": axes.zero,
        "recompute": axes.recomputes,
        "mesh_order": axes.orders,
        "schedule": axes.schedules,
        "precision": axes.precisions,
        "savers": axes.savers,
        **axes.switch_values,
    }
    # What follows from tp has a value if it has one at any degree.
    if axes.tp:
        lists["sp"] = {value for tp in axes.tp for value in axes.sp_of(tp)}
        lists["etp"] = {value for tp in axes.tp for value in axes.etp_of(tp)}
    return [name for name, values in lists.items() if not values]


def _undeclared_message(axes: Axes) -> str:
    """Say that the fixed degrees don't divide the GPUs."""
    tried = ", ".join(
        f"{name} in {list(axes.options.fix[name])}"
        for name in ("tp", "cp", "pp", "dp")
        if name in axes.options.fix
    )
    return f"no tp * cp * pp * dp within the ranges gives {axes.ctx.gpus:,} GPUs" + (
        f" ({tried})" if tried else ""
    )
