"""Compare what only a second search can tell: how tuples were excluded, which runners-up there are, why nothing fits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.cost.objectives import TIME
from layoutopt.optimizer.solve.certificate import Status
from layoutopt.optimizer.solve.model.coefficients import rounding_s
from layoutopt.optimizer.solve.verify.exclusion import exclude_tuples
from layoutopt.optimizer.solve.verify.rebuilt import estimated_tuples
from layoutopt.optimizer.solve.verify.report import Check
from layoutopt.optimizer.solve.verify.statements import TOLERANCE, differences, told

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from layoutopt.optimizer.solve.verify.plan_file import StatedPlan
    from layoutopt.optimizer.solve.verify.rebuilt import Rebuilt, Tree

COUNTS = ("removed_by_memory", "removed_by_bound", "solved")
"""How a search excluded its tuples."""

SEARCHED, EXPLAINED = "second search", "why nothing fits"
"""Names of the checks that a second search makes."""

WHY = ("infeasibility", "reasons")
"""Why nothing fits."""

ROOMIER, OPEN = "comfortable", "open_ties"
"""A layout with memory to spare and near-ties left open: what a search names beside its answer, nothing to repeat where
there are none."""


def check_again(stated: StatedPlan, rebuilt: Rebuilt) -> tuple[Tree, list[Check]]:
    """Search again; return what could be rebuilt by that, and the checks.

    A stopped search ends elsewhere each time, and so does an explanation for which the time was up. Another layout within a
    gap has runners-up and counts of its own, and the course of a search may differ between machines, versions and threads:
    then it is not compared.
    """
    if rebuilt.again is None or stated.status == Status.STOPPED or _cut_short(stated):
        none: Tree = {ROOMIER: None, OPEN: 0}
        return {name: value for name, value in none.items() if not stated.plain.get(name)}, []
    found = rebuilt.again()
    if stated.status == Status.INFEASIBLE:
        tree = {name: found.get(name) for name in WHY}
        tree |= _counted(stated, rebuilt, found) | {ROOMIER: found.get(ROOMIER)}
        return tree, [_compared(EXPLAINED, stated, tree)]
    slack = 2 * rounding_s(np.asarray(rebuilt.space.counts))
    mine, theirs = _times_s(stated.plain), _times_s(found)
    if stated.status == Status.WITHIN_GAP and abs(mine[0] - theirs[0]) > slack + TOLERANCE * mine[0]:
        return {}, []
    if len(mine) != len(theirs) or not np.allclose(mine, theirs, rtol=TOLERANCE, atol=slack):
        words = " and ".join(_listed(times) for times in (mine, theirs))
        reason = f"layouts stated and found by a second search take {words}"
        return {}, [Check(name=SEARCHED, passed=False, reason=reason)]
    tree = _counted(stated, rebuilt, found) | _second_goal(stated, found)
    tree[ROOMIER] = found.get(ROOMIER)
    return tree, [_compared(SEARCHED, stated, tree)]


def _cut_short(stated: StatedPlan) -> bool:
    why = stated.plain.get("infeasibility")
    return stated.status == Status.INFEASIBLE and isinstance(why, dict) and why.get("cut_short") is True


def _second_goal(stated: StatedPlan, found: Tree) -> Tree:
    """Return the outcome for a second goal, where one is stated or found."""
    outcomes = [_objective(plain).get("then") for plain in (stated.plain, found)]
    then = {} if outcomes == [None, None] else {"then": outcomes[1]}
    own = _objective(found)
    told = {} if own.get("name") == TIME else own  # all that another objective came to
    return {"objective": {**told, **then}} if told or then else {}


def _objective(plain: Tree) -> Tree:
    objective = plain["objective"]
    assert isinstance(objective, dict)
    return objective


def _compared(name: str, stated: StatedPlan, tree: Tree) -> Check:
    wrong = told(differences(stated.plain, tree))
    return Check(name=name, passed=not wrong, reason=wrong or "a second search says the same")


def _counted(stated: StatedPlan, rebuilt: Rebuilt, found: Tree) -> Tree:
    """Return the counts of a second search, where it took the same course."""
    made, here = stated.record, found["certificate"]
    assert isinstance(here, dict)
    if not rebuilt.repeatable or made["versions"] != here["versions"]:
        return {}
    return {"certificate": {name: here[name] for name in COUNTS}, OPEN: found.get(OPEN)}


def _times_s(plain: Tree) -> list[float]:
    """Return the step times of a written plan's layouts, the answer first."""
    others = plain["alternatives"]
    assert isinstance(others, list)
    return [float(entry["step_time_s"] or 0.0) for entry in (_objective(plain), *others)]


def _listed(times_s: Sequence[float]) -> str:
    return ", ".join(f"{time:.6g} s" for time in times_s) or "none"


def check_freer(stated: StatedPlan, rebuilt: Rebuilt, *, max_tuples: int, audit_rows: int) -> Iterator[Check]:
    """Check that the fastest layout of a trainer without rules is as much faster as stated, no more and no less."""
    gain, step_s = stated.freer_gain, stated.step_time_s
    if gain is None or step_s is None or rebuilt.freer is None:
        return
    best_s = (1 - gain) * step_s
    space = rebuilt.freer()
    every_tuple = estimated_tuples(space) <= max_tuples
    # what is faster by no more than the solver's rounding may be missed, by that search and by this one
    slack_s = best_s * TOLERANCE + 2 * rounding_s(np.asarray(space.counts))
    least_s = best_s * (1 - rebuilt.gap_target) - slack_s
    name = "gain of the freest trainer"
    for below_s, reached in ((least_s, False), (best_s + slack_s, True)):
        found = exclude_tuples(space, below_s, every_tuple=every_tuple, audit_rows=audit_rows)
        if (found.witness is not None) is not reached:
            time = (
                f"none below {below_s:.9g} s"
                if found.witness is None
                else f"{found.witness.step_time_s:.9g} s"
            )
            yield Check(name=name, passed=False, reason=f"{gain:.4%} stated, the fastest takes {time}")
            return
    yield Check(name=name, passed=True, reason=f"{best_s:.6g} s, {gain:.4%} less")
