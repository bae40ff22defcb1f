"""Enumerate the degree tuples that no rule removes, and count what each rule removed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.cost.quantities import RunFacts
from layoutopt.optimizer.space.axes import declare_axes
from layoutopt.optimizer.space.axes_table import axes_table
from layoutopt.optimizer.space.builder import SpaceBuilder
from layoutopt.optimizer.space.context import make_context
from layoutopt.optimizer.space.empty import explain_empty
from layoutopt.optimizer.space.joint import log10_assignments
from layoutopt.optimizer.space.modifiers import MODIFIER_COLUMNS, Modifiers
from layoutopt.optimizer.space.options import SpaceOptions
from layoutopt.optimizer.space.requirement import axis_rules
from layoutopt.optimizer.space.rule import search_rules
from layoutopt.optimizer.space.rules import RULES

if TYPE_CHECKING:
    from layoutopt.optimizer.cost.batch import IntArray, LayoutBatch
    from layoutopt.optimizer.frameworks.registry import Framework
    from layoutopt.optimizer.frameworks.stage_rule import StageRule
    from layoutopt.optimizer.space.axes import Axes
    from layoutopt.optimizer.space.axes_table import AxisRow
    from layoutopt.optimizer.space.context import Context
    from layoutopt.optimizer.space.counting import SpaceCounts
    from layoutopt.optimizer.space.empty import EmptySpace
    from layoutopt.optimizer.specs.cluster import ClusterSpec
    from layoutopt.optimizer.specs.model import ModelSpec, TrainingSpec


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
        """Return every valid modifier combination of the rows and the index of the row each came from."""
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
        row, count = row.ravel(), shapes.shape[1]
        whole = np.bincount(row, weights=self.whole_layer_tuples, minlength=count)
        every = np.bincount(row, weights=self.tuples, minlength=count)
        return {
            (int(pp), int(vp), may): int(number)
            for (pp, vp), total, full in zip(shapes.T, every, whole, strict=True)
            for may, number in ((True, full), (False, total - full))
            if number
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
    run = options.run if options.allow_idle is None else replace(options.run, idle_gpus=True)
    ctx = make_context(model, training, cluster, framework, options.software, run)
    axes = declare_axes(ctx, options)
    facts = RunFacts(training=training, cluster=cluster, gpu_hour_cost=options.gpu_hour_cost)
    rules = (*search_rules(RULES, ctx), *axis_rules(options.requirements, facts))
    modifiers = Modifiers(
        ctx=ctx,
        zero=axes.zero,
        recomputes=axes.recomputes,
        orders=axes.orders,
        schedules=axes.schedules,
        precisions=tuple(precision for precision in axes.precisions for _ in axes.savers),
        savers=axes.savers * len(axes.precisions) if any(axes.savers) else (),
        rules=tuple(rule for rule in rules if rule.reads & MODIFIER_COLUMNS),
    )
    on_degrees = tuple(rule for rule in rules if not rule.reads & MODIFIER_COLUMNS)
    counted = SpaceBuilder(axes, modifiers, on_degrees).run()
    return Space(
        ctx=ctx,
        axes=axes,
        degrees=counted.rows,
        tuples=counted.tuples,
        whole_layer_tuples=counted.whole_layer_tuples,
        modifiers=modifiers,
        counts=counted.counts,
        empty=None if len(counted.rows) else explain_empty(axes, counted.counts),
    )
