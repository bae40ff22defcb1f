"""Judge a given layout: every rule that it breaks, and advice on what runs but costs time or memory."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from layoutopt.optimizer.frameworks.record import NEWEST
from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.frameworks.stage_rule import COUNTED, Split
from layoutopt.optimizer.space.context import make_context
from layoutopt.optimizer.space.effective import effective, with_stages
from layoutopt.optimizer.space.rows import row_of
from layoutopt.optimizer.space.rule import MEGATRONS, BrokenRule, launch_rules
from layoutopt.optimizer.space.rules import RULES
from layoutopt.optimizer.space.rules.flags import padded_vocabulary
from layoutopt.optimizer.space.rules.stage_lists import stage_faults
from layoutopt.optimizer.specs.errors import InputError, Problem
from layoutopt.optimizer.topology.mesh import dense_axes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from layoutopt.optimizer.space.context import Context, RunOptions
    from layoutopt.optimizer.space.rule import Rule
    from layoutopt.optimizer.specs.cluster import ClusterSpec
    from layoutopt.optimizer.specs.layout import Layout
    from layoutopt.optimizer.specs.model import ModelSpec, TrainingSpec


_POSITIVE = ("tp", "cp", "pp", "vp", "dp", "ep", "etp", "micro_batch", "micro_batches")

_OF_LISTS = ("stage_split", "stage_empty")
"""Rules on stage lists that say nothing about the framework's own split."""


def check_layout(
    layout: Layout,
    model: ModelSpec,
    training: TrainingSpec,
    cluster: ClusterSpec,
    framework: Framework,
    software: str | None = None,
    options: RunOptions | None = None,
    *,
    automatic: bool = False,
) -> tuple[BrokenRule, ...]:
    """Return every rule that a layout breaks; none means that the framework can launch it.

    Parameters
    ----------
    layout
        With a stage list, the list is judged too; without one, the framework's own split has to work.
    software
        The framework's release, see ``parse_release``; None for the newest.
    options
        Stated launch flags. What isn't stated never makes a layout invalid.
    automatic
        The stages were filled in and nobody listed them, so the framework's own split has to work.

    Raises
    ------
    InputError
        If a degree is below 1, or the mesh order is no order of the axes.
    """
    _require_degrees(layout)
    ctx = make_context(model, training, cluster, framework, software, options)
    return tuple(fault.reason for fault in find_faults(layout, ctx, automatic=automatic))


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A broken rule, and how to make the nearest layout that meets it (None where none is near)."""

    reason: BrokenRule
    repair: Callable[[], Layout | None]


def find_faults(layout: Layout, ctx: Context, *, automatic: bool = False) -> list[Fault]:
    """Return every rule that a layout breaks as it is stated; see ``check_layout``."""
    ctx = launched_by(layout, ctx)
    row, listed = row_of(layout), bool(layout.stages) and not automatic
    # One row: a rule's mask has one element.
    broken = [rule for rule in launch_rules(RULES, ctx, staged=listed) if not rule.holds(row, ctx)[0]]
    faults = [
        Fault(reason=rule.explain(layout, ctx), repair=partial(_repaired, rule, layout, ctx))
        for rule in broken
    ]
    of_list = stage_faults(layout, ctx)
    # A list that was filled in is not the user's: only what any split would break is told.
    return faults + [
        Fault(reason=reason, repair=partial(repair, layout, ctx))
        for reason, repair in of_list
        if listed or reason.rule not in _OF_LISTS
    ]


def launched_by(layout: Layout, ctx: Context) -> Context:
    """Return the question for the trainer that launches a layout: DeepSpeed's pipelines are Megatron-DeepSpeed's."""
    # Without a pipeline DeepSpeed's own engine runs the layout.
    if ctx.framework is not Framework.DEEPSPEED or layout.pp == 1:
        return ctx
    return replace(ctx, framework=Framework.MEGATRON_DEEPSPEED, release=NEWEST)


def _repaired(rule: Rule, layout: Layout, ctx: Context) -> Layout | None:
    return rule.repair(rule, layout, ctx) if rule.repair else None


def advise_layout(
    layout: Layout,
    model: ModelSpec,
    training: TrainingSpec,
    cluster: ClusterSpec,
    framework: Framework,
    software: str | None = None,
    options: RunOptions | None = None,
) -> tuple[BrokenRule, ...]:
    """Return what is valid but costs time or memory, in the form of rules that it would be better to keep.

    Parameters and errors are those of ``check_layout``.
    """
    _require_degrees(layout)
    return tuple(_advice(layout, make_context(model, training, cluster, framework, software, options)))


def with_own_split(layout: Layout, ctx: Context) -> Layout:
    """Return a layout whose stages nobody listed with those that the framework makes itself, where it makes one split.

    Forks of Megatron-DeepSpeed count embedding and head as layers (bigscience, --pp-partition-method): left as it is.
    """
    if ctx.launch_rule.split not in COUNTED - {Split.LARGER_FIRST} or layout.pp == 1:
        return layout
    return with_stages(replace(layout, stages=()), ctx)


def _require_degrees(layout: Layout) -> None:
    """Everything divides by the degrees, and the mesh order has to name the axes once each."""
    # Raises for an order that is none; its value is not needed.
    dense_axes(layout.mesh_order)
    bad = [(axis, getattr(layout, axis)) for axis in _POSITIVE if getattr(layout, axis) < 1]
    if bad:
        raise InputError(
            *(Problem(what=f"{axis} is {value}", allowed="integers from 1", key=axis) for axis, value in bad)
        )


def _advice(layout: Layout, ctx: Context) -> Iterator[BrokenRule]:
    yield from _uneven(layout, ctx)
    yield from _idle_ranks(layout, ctx)
    yield from _padding(layout, ctx)
    yield from _repeated_heads(layout, ctx)


def _uneven(layout: Layout, ctx: Context) -> Iterator[BrokenRule]:
    """The fullest rank sets the pace."""
    if layout.stages:
        per_rank = [sum(s.layers for s in layout.stages if s.rank == rank) for rank in range(layout.pp)]
    else:
        per_rank = [-(-ctx.model.layers // layout.pp)]
    fullest, mean = max(per_rank), ctx.model.layers / layout.pp
    # Megatron-LM refuses uneven splits, so that it never waits for a fuller rank.
    launches_even = not layout.stages and ctx.framework in MEGATRONS
    if fullest > mean and not launches_even:
        text = f"{ctx.model.layers} layers on pp {layout.pp}: the fullest rank has {fullest}, mean {mean:.3g}"
        yield BrokenRule(
            rule="layers_mod_pp",
            message=f"{text} (up to {fullest / mean - 1:+.0%} time)",
            formula="layers % pp = 0, or (layers + 2) % pp = 0 with the ends counted",
            reason="every rank waits for the fullest one",
            factors={"layers": ctx.model.layers, "pp": layout.pp, "fullest": fullest},
        )


def _idle_ranks(layout: Layout, ctx: Context) -> Iterator[BrokenRule]:
    m, pp = layout.micro_batches, layout.pp
    # Bubble over step of interleaved 1F1B (Narayanan et al. 2021, section 2.2).
    idle = (pp - 1) / (m * layout.vp + pp - 1)
    if m < pp:
        yield BrokenRule(
            rule="full_pipeline",
            message=f"{m} micro-batches on pp {pp}: ranks idle {idle:.0%} of the time",
            formula="m >= pp",
            reason="fewer micro-batches than stages never fill the pipeline",
            factors={"micro_batches": m, "pp": pp},
        )


def _padding(layout: Layout, ctx: Context) -> Iterator[BrokenRule]:
    vocab, tp = ctx.model.vocab, layout.tp
    if vocab % tp:
        rows = padded_vocabulary(vocab, tp)
        yield BrokenRule(
            rule="vocab_mod_tp",
            message=f"vocabulary {vocab:,} % tp {tp} = {vocab % tp}: padded to {rows:,} rows",
            formula="vocabulary % tp = 0",
            reason="padded rows cost memory and head time",
            factors={"vocab": vocab, "tp": tp, "padded": rows},
        )


def _repeated_heads(layout: Layout, ctx: Context) -> Iterator[BrokenRule]:
    kv, tp = ctx.model.common_kv_heads, layout.tp
    if ctx.has_attention and ctx.model.mla is None and tp > kv:
        yield BrokenRule(
            rule="kv_heads_mod_tp",
            message=f"key-value heads {kv} < tp {tp}: each is repeated on {tp / kv:g} ranks",
            formula="tp <= kv_heads",
            reason="repeated heads cost memory on every rank",
            factors={"kv_heads": kv, "tp": tp},
        )


MAX_REPAIRS = 40
"""More than there are rules that a layout breaks one after another; beyond it repairs go in circles."""


def nearest_launchable(layout: Layout, ctx: Context) -> tuple[tuple[BrokenRule, ...], Layout | None]:
    """Return what a layout breaks, and the nearest layout at its GPUs and global batch that breaks nothing.

    A layout that breaks nothing is its own nearest. Each rule moves its axis to the nearest value: ZeRO-1 becomes
    torchtitan's "never reshard", virtual stages one per rank where there is no interleaving, recomputation per stage
    one depth for all. None where a rule has no layout nearby, or repairs undo one another.
    """
    # Twice: stages are built from what takes effect, and may themselves make a setting idle.
    current = effective(with_stages(effective(layout, ctx), ctx), ctx)
    faults = find_faults(current, ctx)
    reasons, seen = tuple(fault.reason for fault in faults), [current]
    for _ in range(MAX_REPAIRS):
        if not faults:
            return reasons, current
        options = (fault.repair() for fault in faults)
        moved = (effective(with_stages(option, ctx), ctx) for option in options if option is not None)
        # A layout that was there before would be repaired in the same way again.
        following = next((option for option in moved if option not in seen), None)
        if following is None:
            return reasons, None
        seen.append(following)
        current, faults = following, find_faults(following, ctx)
    return reasons, None
