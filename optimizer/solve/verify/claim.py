"""Decide whether a plan's claim holds, without the solver and without the bounds that made it.

The caller rebuilds the space from ``plan["inputs"]``. Everything that the plan states is then rebuilt from its layouts
and compared: digests, counts, price, memory, runners-up, words. Then comes the claim itself: that no layout of the
space takes less than the stated bound (``exclusion``), and last what only a second search can tell (``again``).
What was not rebuilt is named.
"""

from __future__ import annotations

from dataclasses import asdict
from itertools import pairwise
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.cost.objectives import TIME
from layoutopt.optimizer.solve.certificate import SAME, Status, inputs_digest, proven_status
from layoutopt.optimizer.solve.model.coefficients import rounding_s
from layoutopt.optimizer.solve.verify.exclusion import Exclusion, Witness, exclude_tuples
from layoutopt.optimizer.solve.verify.layout import PricedLayout, Refuted, price_stated
from layoutopt.optimizer.solve.verify.plain_reader import short
from layoutopt.optimizer.solve.verify.plan_file import StatedPlan, read_plan
from layoutopt.optimizer.solve.verify.rebuilt import Rebuilt, Tree, estimated_tuples, rebuild_tree
from layoutopt.optimizer.solve.verify.report import Check, VerifyReport
from layoutopt.optimizer.solve.verify.statements import (
    TOLERANCE,
    Difference,
    compare_statements,
    differences,
    merged,
    not_checked,
    not_rebuilt,
    told,
)
from layoutopt.optimizer.specs.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from layoutopt.optimizer.solve.verify.plan_file import StatedPlan
    from layoutopt.optimizer.solve.verify.rebuilt import Rebuilt, Tree
    from layoutopt.optimizer.specs.layout import Layout


# Tuples that are priced one by one before optimistic terms may exclude degree rows: about half a minute.
MAX_TUPLES = 6_000_000


def verify_plan(
    plan: object,
    rebuilt: Rebuilt,
    *,
    max_tuples: int = MAX_TUPLES,
    audit_rows: int = 512,
    progress: Callable[[int, int], None] | None = None,
    file: str = "",
) -> VerifyReport:
    """Check a plan, the parsed JSON of ``solve``, against what its inputs say.

    Spaces of more than ``max_tuples`` tuples are excluded by degree rows where possible, with a sample of
    ``audit_rows`` rows priced tuple by tuple. ``progress`` is called with the degree rows done and their
    number, ``file`` names the plan in errors. Raises ``InputError`` when the plan is malformed.
    """
    start = perf_counter()
    stated = read_plan(plan, file=file)
    every_tuple = estimated_tuples(rebuilt.space) <= max_tuples
    tree, checks = _check_statements(stated, rebuilt, every_tuple=every_tuple)
    exclusion, below_s = Exclusion(), _below_s(stated)
    told = rebuilt.space.demands.constrain is None and not rebuilt.objective
    if below_s is not None and told and _all_passed(checks):
        exclusion = exclude_tuples(
            rebuilt.space, below_s, every_tuple=every_tuple, audit_rows=audit_rows, progress=progress
        )
    checks.append(_check_exclusion(stated, rebuilt, exclusion, checks))
    if _all_passed(checks):
        repeated, more = check_again(stated, rebuilt)
        tree = merged(tree, repeated)
        checks += [*more, *check_freer(stated, rebuilt, max_tuples=max_tuples, audit_rows=audit_rows)]
    return VerifyReport(
        accepted=_all_passed(checks),
        checks=tuple(checks),
        not_checked=(*_open_questions(exclusion, checks, rebuilt.objective), *not_checked(stated.plain, tree))
        if tree
        else (),
        restrictions=rebuilt.restrictions,
        degree_rows=len(rebuilt.space.degrees),
        tuples=exclusion.tuples,
        even_layouts=exclusion.even,
        solved_exactly=exclusion.exactly,
        rows_by_optimistic_terms=exclusion.rows_at_sight,
        seconds=perf_counter() - start,
    )


def _open_questions(found: Exclusion, checks: Sequence[Check], objective: str) -> Iterator[str]:
    """Name what only a sample was priced of, and what only a second search would tell."""
    rows = found.rows_at_sight - found.rows_audited
    if objective:
        yield f"that no layout is better in {objective}, but by the same search a second time"
    if rows > 0:
        sample = f"optimistic terms exclude them, {found.rows_audited:,} more were expanded as a sample"
        yield f"each tuple of {rows:,} degree rows: {sample}"
    if _all_passed(checks) and not {SEARCHED, EXPLAINED} & {check.name for check in checks}:
        yield "whether other layouts are as near as the runners-up: only a search that ended can be repeated"


def _all_passed(checks: Sequence[Check]) -> bool:
    return all(check.passed for check in checks)


def _below_s(stated: StatedPlan) -> float | None:
    """Return the step time no layout may undercut: inf if nothing may fit, None if nothing is claimed."""
    if stated.status == Status.INFEASIBLE:
        return float(np.inf)
    return None if stated.bound_s is None else stated.bound_s * (1 - SAME)


def _check_statements(stated: StatedPlan, rebuilt: Rebuilt, *, every_tuple: bool) -> tuple[Tree, list[Check]]:
    """Compare what can be rebuilt at once; return the rebuilt plan too, empty where there is nothing to rebuild from."""
    wrong = _wrong_inputs(stated, rebuilt)
    # Another question has another space: nothing below could be compared.
    if wrong:
        return {}, [Check(name="inputs", passed=False, reason=wrong)]
    if rebuilt.top is not None and len(stated.alternatives) >= max(rebuilt.top, 1):
        reason = f"{len(stated.alternatives) + 1:,} layouts are stated, {rebuilt.top:,} were asked for"
        return {}, [Check(name="alternatives", passed=False, reason=reason)]
    priced, refuted = _price_layouts(stated, rebuilt)
    if refuted:
        return {}, refuted
    tree = rebuild_tree(stated, rebuilt, priced, every_tuple=every_tuple)
    also = {
        "claim": _wrong_claim(stated, rebuilt, priced),
        "counts": _wrong_sum(stated),
        "alternatives": _wrong_order(rebuilt, priced),
    }
    return tree, compare_statements(stated.plain, tree, also, _right(stated, rebuilt, priced))


def _right(stated: StatedPlan, rebuilt: Rebuilt, priced: Sequence[PricedLayout]) -> dict[str, str]:
    """Say in words what was found right."""
    record, words = stated.certificate, {"claim": _claim(stated)}
    words["inputs"] = f"sha256 {record.inputs_sha256[:12]}"
    words["cost model"] = rebuilt.cost_model[:12]
    words["tuple table"] = f"{len(rebuilt.space.degrees):,} degree rows, sha256 {record.table_sha256[:12]}"
    words["counts"] = f"{record.tuples:,} tuples"
    if priced:
        best = priced[0]
        words["step time"] = format_seconds(best.step_time_s)
        words["memory"] = f"{float(best.costs.peak_bytes[0]) / 1e9:.2f} of {best.capacity_bytes / 1e9:.2f} GB"
        words["alternatives"] = f"{len(priced) - 1} priced again, none faster"
    return words


def _wrong_inputs(stated: StatedPlan, rebuilt: Rebuilt) -> str:
    digest = inputs_digest(stated.inputs)
    if digest != stated.certificate.inputs_sha256:
        return "the plan's inputs are not those of its certificate"
    if rebuilt.inputs is None or digest == inputs_digest(rebuilt.inputs):
        return ""
    others = told(differences(stated.inputs, dict(rebuilt.inputs), "inputs"))
    others = others or told(
        f"{path} is unknown" for path, _ in not_rebuilt(stated.inputs, dict(rebuilt.inputs))
    )
    return f"the plan answers other inputs: {others or 'some are written in another way'}"


def _price_layouts(stated: StatedPlan, rebuilt: Rebuilt) -> tuple[list[PricedLayout], list[Check]]:
    """Find the answer and its runners-up in the space and price them: all else is rebuilt from them.

    Return what was priced, and the checks of layouts that are not in the space or do not fit.
    """
    priced, checks = [], []
    for where, layout in _layouts(stated):
        try:
            one = price_stated(rebuilt.space, layout, rebuilt.runs)
        except Refuted as refuted:
            checks.append(Check(name=where.partition("[")[0], passed=False, reason=f"{where}: {refuted}"))
            continue
        priced.append(one)
        peak, capacity = float(one.costs.peak_bytes[0]) / 1e9, one.capacity_bytes / 1e9
        if not one.costs.fits[0]:
            reason = f"{where}: {peak:.9g} GB don't fit in {capacity:.9g}"
            checks.append(Check(name="memory", passed=False, reason=reason))
    return priced, checks


def _layouts(stated: StatedPlan) -> Iterator[tuple[str, Layout]]:
    if stated.layout is not None:
        yield "layout", stated.layout
    for number, layout in enumerate(stated.alternatives):
        yield f"alternatives[{number}]", layout


def _wrong_claim(stated: StatedPlan, rebuilt: Rebuilt, priced: Sequence[PricedLayout]) -> str:
    """Compare the status with what the step time, priced again, and the stated bound amount to."""
    try:
        status = Status(stated.status)
    except ValueError:
        return f"status {stated.status[:40]!r} is none of {', '.join(Status)}"
    floor_s = np.inf if status is Status.INFEASIBLE else stated.bound_s or 0.0
    # A layout that the search was told of counts: a claim that none is as fast refutes itself.
    if rebuilt.warm_start_s < floor_s * (1 - TOLERANCE):
        return f"the search was told of a layout at {rebuilt.warm_start_s:.9g} s, which the claim excludes"
    if stated.layout is None:
        return _wrong_without_layout(stated, status)
    return _wrong_status(stated.bound_s, status, rebuilt, priced[0].step_time_s)


def _wrong_without_layout(stated: StatedPlan, status: Status) -> str:
    if stated.alternatives or stated.freer_gain is not None:
        return "runners-up or a gain over the layout are stated, but no layout"
    if status in (Status.OPTIMAL, Status.WITHIN_GAP):
        return f"status {status}, but no layout is stated"
    if status is Status.INFEASIBLE and stated.bound_s is not None:
        return "an infeasible plan has no bound"
    return ""


def _wrong_status(bound_s: float | None, status: Status, rebuilt: Rebuilt, step_s: float) -> str:
    if bound_s is None:
        return "" if status is Status.STOPPED else f"status {status}, but no bound is stated"
    if not 0 <= bound_s <= step_s * (1 + SAME):
        return f"the bound {bound_s:.9g} s is not between 0 and the step time {step_s:.9g} s"
    rounding = rounding_s(np.asarray(rebuilt.space.counts))
    proven = proven_status(step_s, bound_s, rounding_s=rounding, gap_target=rebuilt.gap_target)
    if proven is status:
        return ""
    open_ = f"step time {step_s:.9g} s and bound {bound_s:.9g} s, gap target {rebuilt.gap_target:.4g}"
    return f"status {status}, but {open_} amount to {proven}"


def _claim(stated: StatedPlan) -> str:
    if stated.status == Status.INFEASIBLE:
        return "no layout fits"
    if stated.bound_s is None:
        return f"{stated.status}, no bound"
    return f"{stated.status}, no layout below {format_seconds(stated.bound_s)}"


def _wrong_sum(stated: StatedPlan) -> str:
    """Every tuple was excluded or solved."""
    record = stated.certificate
    parts = record.removed_by_memory + record.removed_by_bound + record.solved
    right = parts == record.tuples
    return "" if right else f"excluded and solved tuples sum to {short(parts)}, not {short(record.tuples)}"


def _wrong_order(rebuilt: Rebuilt, priced: Sequence[PricedLayout]) -> str:
    """Runners-up are other layouts than the answer, slower in turn, and no more and no slower than was asked for."""
    times = [one.step_time_s for one in priced]
    if any(later < earlier * (1 - TOLERANCE) for earlier, later in pairwise(times)):
        return "one is faster than what stands before it"
    if len({one.key for one in priced}) < len(priced):
        return "a layout is stated twice"
    if rebuilt.near is not None and times and times[-1] > times[0] * (1 + rebuilt.near + TOLERANCE):
        return f"one is more than {rebuilt.near:.3%} slower than the answer"
    return ""


def _check_exclusion(
    stated: StatedPlan, rebuilt: Rebuilt, found: Exclusion, earlier: Sequence[Check]
) -> Check:
    name = "no faster layout"
    if not _all_passed(earlier):
        return Check(name=name, passed=False, reason="not examined: an earlier check failed")
    if found.unsound:
        return Check(name=name, passed=False, reason=f"the cost model is out of range: {found.unsound}")
    if found.witness is not None:
        return Check(name=name, passed=False, reason=_describe(found.witness))
    if _below_s(stated) is None:
        return Check(name=name, passed=True, reason="no bound is claimed")
    if rebuilt.objective:
        reason = f"the answer is the best in {rebuilt.objective}, which a second search compares"
        return Check(name=name, passed=True, reason=reason)
    constrain = rebuilt.space.demands.constrain
    if constrain is not None:
        function = getattr(constrain, "__name__", "given")
        reason = f"not checked: it rests on the Python function {function}, which no plan holds"
        return Check(name=name, passed=False, reason=reason)
    reason = f"{found.tuples:,} tuples priced, {found.exactly:,} of them solved"
    if found.exactly:
        reason += f" ({found.programmed:,} by integer programs of its own, {found.demanded:,} with CP-SAT)"
    reason += f", {found.even:,} even layouts priced"
    if found.rows_at_sight:
        reason += (
            f"; {found.rows_at_sight} of {len(rebuilt.space.degrees)} degree rows excluded by optimistic "
            f"terms, {found.rows_audited} of these priced as a sample"
        )
    return Check(name=name, passed=True, reason=reason)


def _describe(witness: Witness) -> str:
    batch = witness.layout
    names = ("tp", "cp", "pp", "vp", "dp", "ep", "etp", "zero", "micro_batch", "micro_batches")
    degrees = ",".join(f"{name}={int(getattr(batch, name)[0])}" for name in names)
    order = batch.codebook.orders[int(batch.order[0])]
    blocks = witness.blocks.sum(axis=(0, 2)).tolist()
    return f"{degrees},order={order} with {blocks} blocks per rank takes {witness.step_time_s:.9g} s"


COUNTS = ("removed_by_memory", "removed_by_bound", "solved")
"""How a search excluded its tuples."""

SEARCHED, EXPLAINED = "second search", "why nothing fits"
"""Names of the checks that a second search makes."""

NOT_KNOWN = "not known"
"""What is said to bind where the time was up before it was found."""

WHY = ("infeasibility", "reasons")
"""Why nothing fits."""

ROOMIER, OPEN = "comfortable", "open_ties"
"""A layout with memory to spare and near-ties left open: what a search names beside its answer, nothing to repeat where
there are none."""


def check_again(stated: StatedPlan, rebuilt: Rebuilt) -> tuple[Tree, list[Check]]:
    """Search again; return what could be rebuilt by that, and the checks.

    A stopped search ends elsewhere each time. Of an explanation for which the time was up, what it does say is compared.
    Another layout within a gap has runners-up and counts of its own, and the course of a search may differ between machines,
    versions and threads: then it is not compared.
    """
    empty: Tree = {ROOMIER: None, OPEN: 0}
    none = {name: value for name, value in empty.items() if not stated.plain.get(name)}
    if rebuilt.again is None or stated.status == Status.STOPPED:
        return none, []
    found = rebuilt.again()
    if _cut_short(stated):
        wrong = told(_said_otherwise(stated.plain["infeasibility"], found.get("infeasibility")))
        return none, [Check(name=EXPLAINED, passed=not wrong, reason=wrong or "what is said is so")]
    if stated.status == Status.INFEASIBLE:
        tree = {name: found.get(name) for name in WHY}
        tree |= _counted(stated, rebuilt, found) | {ROOMIER: found.get(ROOMIER)} | _second_goal(stated, found)
        return tree, [_compared(EXPLAINED, stated, tree)]
    # Two searches round once each.
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


def _said_otherwise(part: object, whole: object) -> Iterator[Difference]:
    """Yield what a part of an explanation says otherwise than all of it; what is left out says nothing.

    The least memory so far may be more than the least.
    """
    if not isinstance(part, dict) or not isinstance(whole, dict):
        yield Difference("infeasibility", short(part), short(whole))
        return
    for key in ("binding", "least_bytes", "capacity_bytes", "fewest_gpus", "conflict", "suggestions"):
        said, known = part.get(key), whole.get(key)
        if said in (None, [], NOT_KNOWN):
            continue
        if key == "suggestions" and isinstance(said, list) and isinstance(known, list):
            agrees = all(one in known for one in said)
        elif key == "least_bytes" and isinstance(said, int | float) and isinstance(known, int | float):
            agrees = said >= known * (1 - TOLERANCE)
        else:
            agrees = not any(differences(said, known))
        if not agrees:
            yield Difference(f"infeasibility.{key}", short(said), short(known))


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
    here = found["certificate"]
    assert isinstance(here, dict)
    versions = asdict(stated.certificate.versions)
    if not rebuilt.repeatable or versions != here["versions"]:
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
    # Both sides: nothing is faster than stated, and something is as fast.
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
    yield Check(name=name, passed=True, reason=f"{format_seconds(best_s)}, {100 * gain:.3g}% less")
