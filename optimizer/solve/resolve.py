"""Re-solve a plan with constraints of one's own: the CP-SAT model of the best tuples, and what the rest could reach."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.cost.batch import DEGREES
from layoutopt.optimizer.cost.estimate import estimate
from layoutopt.optimizer.solve.api import layout_of
from layoutopt.optimizer.solve.certificate import Status, proven_status, relative_gap
from layoutopt.optimizer.solve.model.coefficients import rounding_s
from layoutopt.optimizer.solve.model.cp_model import CpModel, SliceStatus
from layoutopt.optimizer.solve.model.slices import tuple_slice
from layoutopt.optimizer.solve.search.near import near_tuples
from layoutopt.optimizer.solve.search.result import Found
from layoutopt.optimizer.space.switch_sets import codes_like
from layoutopt.optimizer.specs.vocabulary import Granularity

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from layoutopt.optimizer.cost.batch import LayoutBatch
    from layoutopt.optimizer.cost.estimate import Estimate
    from layoutopt.optimizer.solve.inputs import Question
    from layoutopt.optimizer.solve.model.cp_model import SolverLimits
    from layoutopt.optimizer.solve.search.costed_space import CostedSpace
    from layoutopt.optimizer.specs.layout import Layout
    from layoutopt.optimizer.specs.model import ModelSpec

TUPLES = 16
"""Tuples in the model. 16 are solved together in seconds; they hold the optimum and its near-ties."""

WITHIN = 1.05
"""Tuples whose bound is within this factor of the optimum are compared; the others count as reaching it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """A layout under constraints of one's own; both None where none of the model's tuples meets them.

    ``bound_s`` holds for every layout of the whole declared space under these constraints; ``proven`` says that
    it is met.
    """

    layout: Layout | None
    estimate: Estimate | None
    bound_s: float
    gap: float | None
    proven: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenModel:
    """The best tuples of a question as one CP-SAT model that takes further constraints.

    Attributes
    ----------
    model
        ``model.model`` is the ortools model, ``model.variables`` its variables by name: ``columns["tp"]``,
        ``blocks[rank][kind]``, ``recomputed[rank][kind]``, ``step_ns``, ``peak_kib`` and others. Further constraints can
        only take layouts away, so the proof keeps its meaning.
    others_s
        Proven floor of the step time of every tuple that is not in the model.
    """

    source: CostedSpace
    model: CpModel
    others_s: float

    def resolve(self, limits: SolverLimits | None = None) -> Resolved:
        """Solve again with the constraints that were added meanwhile."""
        result = self.model.solve(limits)
        if result.blocks is None or result.recomputed is None:
            return Resolved(layout=None, estimate=None, bound_s=self.others_s, gap=None, proven=False)
        found = Found(
            layout=self.model.data.batch.take(np.array([result.position])),
            blocks=result.blocks,
            recomputed=result.recomputed,
            step_time_s=result.step_time_s,
            peak_bytes=result.peak_bytes,
        )
        layout = layout_of(self.source, found)
        priced = estimate(self.source.cost, layout)
        inside = result.step_time_s if result.status is SliceStatus.OPTIMAL else result.bound_s
        bound = min(inside, self.others_s)
        rounding = rounding_s(np.asarray(self.source.counts))
        proven = proven_status(priced.step_time_s, bound, rounding_s=rounding, gap_target=0.0)
        return Resolved(
            layout=layout,
            estimate=priced,
            bound_s=bound,
            gap=relative_gap(priced.step_time_s, bound),
            proven=proven is Status.OPTIMAL,
        )


def open_model(
    question: Question, best: Layout, best_s: float, *, bound_s: float = 0.0, tuples: int = TUPLES
) -> OpenModel:
    """Build the model of the most promising tuples of a question, by their proven bounds.

    ``best`` is the layout that a solve found, ``best_s`` its step time: its tuple is among them. ``bound_s`` is what that
    solve proved of every layout: it knows more of the other tuples than their bounds.
    """
    source = question.costed_space()
    # Tuples farther off could not be told from each other anyway: all count as reaching this.
    limit_s = best_s * WITHIN
    batch, bounds = near_tuples(source, limit_s)
    own = np.flatnonzero(_same_tuple(batch, best, source.model))
    # The likeliest by their bounds, beside the answer's own tuple.
    ranked = [i for i in np.argsort(bounds, kind="stable").tolist() if i not in own]
    chosen = np.sort(np.array([*own[:1], *ranked[: tuples - len(own[:1])]], dtype=np.int64))
    others = np.delete(bounds, chosen)
    rows = batch.take(chosen)
    model = CpModel(
        tuple_slice(rows, source.terms(rows), source.counts, source.rule),
        track_peak=True,
        demands=source.demands,
    )
    floor_s = max(float(min(others.min(initial=np.inf), limit_s)), bound_s)
    return OpenModel(source=source, model=model, others_s=floor_s)


def _same_tuple(batch: LayoutBatch, layout: Layout, model: ModelSpec) -> NDArray[np.bool_]:
    """Tell which tuples a layout belongs to; one that recomputes nothing belongs to that of whole layers."""
    book = batch.codebook
    same = np.ones(len(batch), dtype=bool)
    for name in (*DEGREES, "sp", "zero"):
        same &= getattr(batch, name) == int(getattr(layout, name))
    same &= batch.hsdp_shard == (layout.hsdp_shard or 0)
    same &= np.array([order == layout.mesh_order for order in book.orders])[batch.order]
    same &= np.array([schedule is layout.schedule for schedule in book.schedules])[batch.schedule]
    same &= codes_like(layout, model, book)[batch.precision]
    nothing = layout.recompute.granularity is Granularity.NONE
    alike = [
        r == layout.recompute or (nothing and r.granularity is Granularity.FULL) for r in book.recomputes
    ]
    result: NDArray[np.bool_] = same & np.array(alike)[batch.recompute]
    return result
