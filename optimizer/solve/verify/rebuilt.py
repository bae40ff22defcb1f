"""What a caller rebuilds from a plan's inputs, and the certificate that follows from it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import inf
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.solve.certificate import (
    Status,
    Versions,
    inputs_digest,
    record_digest,
    relative_gap,
    solver_word,
    table_digest,
)
from layoutopt.optimizer.solve.model.coefficients import rounding_s
from layoutopt.optimizer.solve.search.space_size import space_size
from layoutopt.optimizer.solve.verify.statements import merged

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from layoutopt.optimizer.solve.search.space_size import SpaceSize
    from layoutopt.optimizer.solve.verify.exclusion import PricedSpace
    from layoutopt.optimizer.solve.verify.layout import PricedLayout
    from layoutopt.optimizer.solve.verify.plan_file import StatedPlan
    from layoutopt.optimizer.specs.model import Run

Tree = dict[str, object]
"""Parsed JSON: what a plan states, or would state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebuilt:
    """What the caller rebuilt from the plan's inputs.

    ``runs`` are the model's, ``cost_model`` the digest of what decides an answer here, ``inputs`` what the plan
    is expected to answer (None: whatever it states), ``removed_by_rule`` the numbers of candidates that each rule
    removes (None: whatever is stated), ``size`` the size of the space in closed form (None: spaces too large to be
    counted are not compared). ``gap_target``, ``warm_start_s``, ``top`` and ``near`` are the search's options,
    ``repeatable`` tells whether it takes the same course again. ``restate`` writes what a plan with these layouts,
    the answer first, states; ``again`` searches again and writes that plan, ``freer`` builds the space of a trainer
    without rules (None each: not compared). ``restrictions`` say in words what the claim is restricted to.
    """

    space: PricedSpace
    runs: Sequence[Run]
    cost_model: str
    inputs: Mapping[str, object] | None = None
    removed_by_rule: Mapping[str, int] | None = None
    size: SpaceSize | None = None
    gap_target: float = 0.0
    warm_start_s: float = inf
    top: int | None = None
    near: float | None = None
    repeatable: bool = True
    restate: Callable[[StatedPlan, Sequence[PricedLayout]], Tree] | None = None
    again: Callable[[], Tree] | None = None
    freer: Callable[[], PricedSpace] | None = None
    restrictions: tuple[str, ...] = ()
    objective: str = ""


def rebuild_tree(
    stated: StatedPlan, rebuilt: Rebuilt, priced: Sequence[PricedLayout], *, every_tuple: bool
) -> Tree:
    """Return what a plan with the stated status, bound and layouts states, as far as it can be rebuilt at once."""
    step_s = priced[0].step_time_s if priced else None
    gap = relative_gap(step_s, stated.bound_s)
    tree: Tree = {} if rebuilt.restate is None else rebuilt.restate(stated, priced)
    objective = {"step_time_s": step_s, "bound_s": stated.bound_s, "gap": gap}
    certificate = _certificate(stated, rebuilt, gap) | _counts(stated, rebuilt, every_tuple=every_tuple)
    return merged(tree | {"certificate": certificate}, {"objective": objective})


def _certificate(stated: StatedPlan, rebuilt: Rebuilt, gap: float | None) -> Tree:
    """Return the certificate but for its counts."""
    record = stated.certificate
    status = next((word for word in Status if word == stated.status), Status.STOPPED)
    here = asdict(Versions.current(rebuilt.cost_model))
    made = asdict(record.versions)
    return {
        "degree_tuples": len(rebuilt.space.degrees),
        "table_sha256": table_digest(rebuilt.space),
        "inputs_sha256": inputs_digest(stated.inputs if rebuilt.inputs is None else rebuilt.inputs),
        "solver_status": solver_word(status, answered=stated.layout is not None),
        "bound_s": stated.bound_s,
        "gap": gap,
        "gap_target": rebuilt.gap_target,
        # Where no stages were solved, nothing was rounded.
        "rounding_s": rounding_s(np.asarray(rebuilt.space.counts))
        if record.rounding_s or record.solved
        else 0.0,
        "versions": {
            name: value for name, value in here.items() if name == "cost_model" or made[name] == value
        },
        "record_sha256": record_digest(stated.record),
    }


def _counts(stated: StatedPlan, rebuilt: Rebuilt, *, every_tuple: bool) -> Tree:
    """Return the numbers of tuples; where they are too many to count one by one, those in closed form."""
    size = space_size(rebuilt.space) if every_tuple else rebuilt.size
    removed = (
        stated.certificate.removed_by_rule if rebuilt.removed_by_rule is None else rebuilt.removed_by_rule
    )
    rules: Tree = {"removed_by_rule": dict(removed), "removed_by_equivalence": 0}
    if size is None:
        return rules
    return rules | {
        "declared_tuples": size.tuples + sum(removed.values()),
        "tuples": size.tuples,
        "joint_assignments": size.joint_assignments,
    }


def estimated_tuples(space: PricedSpace) -> float:
    """Estimate the number of tuples from 256 evenly spaced degree rows."""
    total = len(space.degrees)
    if not total:
        return 0.0
    # Rows are sorted by their degrees: evenly spaced ones see shallow and deep pipelines alike.
    sample = np.unique(np.linspace(0, total - 1, 256).astype(np.int64))
    return len(space.expand(space.degrees.take(sample))[0]) / len(sample) * total
