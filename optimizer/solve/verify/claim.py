"""Decide whether a plan's claim holds, without the solver and without the bounds that made it.

The caller rebuilds the space from ``plan["inputs"]``. What the plan states is then compared with it: the
digests of inputs, cost model and tuple table, the counts, the layout and its price, and the claim itself:
that no layout of the space takes less than the stated bound (``verify_exclusion``).
"""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.solve.certificate import inputs_digest, relative_gap, table_digest
from layoutopt.optimizer.solve.search.space_size import space_size
from layoutopt.optimizer.solve.verify.exclusion import Exclusion, PricedSpace, Witness, exclude_tuples
from layoutopt.optimizer.solve.verify.layout import PricedLayout, Refuted, price_stated
from layoutopt.optimizer.solve.verify.plan_file import StatedEstimate, StatedPlan, Status, read_plan
from layoutopt.optimizer.solve.verify.report import Check, VerifyReport

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from layoutopt.optimizer.specs.model import Run

    Breakdown = Callable[[PricedLayout], Mapping[str, float]]

# Relative agreement demanded of stated numbers: sums of floats in another order agree to about 1e-12.
TOLERANCE = 1e-9
# Tuples that are priced one by one before optimistic terms may exclude degree rows: about half a minute.
MAX_TUPLES = 6_000_000
_SOLVER_STATUS = {
    Status.OPTIMAL: ("OPTIMAL",),
    Status.STOPPED: ("OPTIMAL", "FEASIBLE", "UNKNOWN"),
    Status.INFEASIBLE: ("INFEASIBLE",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebuilt:
    """What the caller rebuilt from the plan's inputs.

    ``runs`` are the model's, ``cost_model`` the digest of the cost model in use, ``inputs`` what the plan
    is expected to answer (None: whatever it states), ``removed_by_rule`` the numbers of candidates that each
    rule removes, ``breakdown`` prices the parts of a layout's step time (None: not compared).
    """

    space: PricedSpace
    runs: Sequence[Run]
    cost_model: str
    inputs: Mapping[str, object] | None = None
    removed_by_rule: Mapping[str, int] | None = None
    breakdown: Breakdown | None = None


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
    every_tuple = _estimated_tuples(rebuilt.space) <= max_tuples
    checks = [
        _check_inputs(stated, rebuilt),
        _check_cost_model(stated, rebuilt),
        _check_table(stated, rebuilt),
        _check_counts(stated, rebuilt, every_tuple),
        *_check_answer(stated, rebuilt),
        _check_claim(stated, int(np.sum(rebuilt.space.counts))),
        _check_alternatives(stated, rebuilt),
    ]
    exclusion = Exclusion()
    below_s = _below_s(stated)
    if all(check.passed for check in checks) and below_s is not None:
        exclusion = exclude_tuples(
            rebuilt.space, below_s, every_tuple=every_tuple, audit_rows=audit_rows, progress=progress
        )
    checks.append(_check_exclusion(stated, rebuilt, exclusion, checks))
    return VerifyReport(
        accepted=all(check.passed for check in checks),
        checks=tuple(checks),
        degree_rows=len(rebuilt.space.degrees),
        tuples=exclusion.tuples,
        even_layouts=exclusion.even,
        solved_exactly=exclusion.exactly,
        rows_by_optimistic_terms=exclusion.rows_at_sight,
        seconds=perf_counter() - start,
    )


def _estimated_tuples(space: PricedSpace) -> float:
    """Estimate the number of tuples from 256 evenly spaced degree rows."""
    total = len(space.degrees)
    if not total:
        return 0.0
    sample = np.unique(np.linspace(0, total - 1, 256).astype(np.int64))
    return len(space.expand(space.degrees.take(sample))[0]) / len(sample) * total


def _below_s(stated: StatedPlan) -> float | None:
    """Return the step time no layout may undercut: inf if nothing may fit, None if nothing is claimed."""
    if stated.status == Status.INFEASIBLE:
        return float(np.inf)
    return None if stated.bound_s is None else stated.bound_s * (1 - TOLERANCE)


def _close(left: float | None, right: float | None, scale: float | None = None) -> bool:
    if left is None or right is None:
        return left is right
    return abs(left - right) <= TOLERANCE * (max(abs(left), abs(right)) if scale is None else scale)


def _check_inputs(stated: StatedPlan, rebuilt: Rebuilt) -> Check:
    name, digest = "inputs", inputs_digest(stated.inputs)
    if digest != stated.certificate.inputs_sha256:
        return Check(name=name, passed=False, reason="the plan's inputs are not those of its certificate")
    if rebuilt.inputs is not None and digest != inputs_digest(rebuilt.inputs):
        return Check(name=name, passed=False, reason="the plan answers other inputs than the given ones")
    return Check(name=name, passed=True, reason=f"sha256 {digest[:12]}")


def _check_cost_model(stated: StatedPlan, rebuilt: Rebuilt) -> Check:
    made = stated.certificate.versions
    if made.cost_model != rebuilt.cost_model:
        made_with = f"{made.cost_model[:12]} of layoutopt {made.layoutopt}"
        reason = f"made with {made_with}, this is {rebuilt.cost_model[:12]}"
        return Check(name="cost model", passed=False, reason=reason)
    return Check(name="cost model", passed=True, reason=made.cost_model[:12])


def _check_table(stated: StatedPlan, rebuilt: Rebuilt) -> Check:
    record, digest = stated.certificate, table_digest(rebuilt.space)
    rows = len(rebuilt.space.degrees)
    if (record.degree_tuples, record.table_sha256) == (rows, digest):
        return Check(name="tuple table", passed=True, reason=f"{rows:,} degree rows, sha256 {digest[:12]}")
    reason = (
        f"{record.degree_tuples} degree rows with sha256 {record.table_sha256[:12]} stated, "
        f"a fresh enumeration has {rows} with {digest[:12]}"
    )
    return Check(name="tuple table", passed=False, reason=reason)


def _check_counts(stated: StatedPlan, rebuilt: Rebuilt, every_tuple: bool) -> Check:
    record = stated.certificate
    parts = record.removed_by_memory + record.removed_by_bound + record.solved
    wrong = []
    if parts != record.tuples:
        wrong.append(f"excluded and solved tuples sum to {parts}, not {record.tuples}")
    removed = sum(record.removed_by_rule.values()) + record.removed_by_equivalence
    if record.declared_tuples != record.tuples + removed:
        wrong.append(
            f"{record.tuples} tuples and {removed} removed are not {record.declared_tuples} declared"
        )
    if rebuilt.removed_by_rule is not None and record.removed_by_rule != dict(rebuilt.removed_by_rule):
        wrong.append("the candidates removed by each rule differ from a fresh enumeration")
    if every_tuple:
        size = space_size(rebuilt.space)
        if (record.tuples, record.joint_assignments) != (size.tuples, size.joint_assignments):
            wrong.append(
                f"{record.tuples} tuples with {record.joint_assignments:.3g} layouts stated, "
                f"counted {size.tuples} with {size.joint_assignments:.3g}"
            )
    counted = "" if every_tuple else " (too many to count again)"
    return Check(
        name="counts", passed=not wrong, reason="; ".join(wrong) or f"{record.tuples:,} tuples{counted}"
    )


def _check_answer(stated: StatedPlan, rebuilt: Rebuilt) -> Iterator[Check]:
    if stated.layout is None or stated.estimate is None or stated.step_time_s is None:
        claims_one = stated.status == Status.OPTIMAL
        yield Check(name="layout", passed=not claims_one, reason=f"none stated, status {stated.status}")
        return
    try:
        priced = price_stated(rebuilt.space, stated.layout, rebuilt.runs)
    except Refuted as refuted:
        yield Check(name="layout", passed=False, reason=str(refuted))
        return
    yield Check(name="layout", passed=True, reason="one of the space")
    yield _check_step_time(stated.step_time_s, stated.estimate, priced)
    yield _check_memory(stated.estimate, priced)
    yield _check_breakdown(stated.estimate, rebuilt, priced)


def _check_step_time(objective_s: float, estimate: StatedEstimate, priced: PricedLayout) -> Check:
    times = {"objective": objective_s, "estimate": estimate.step_time_s}
    wrong = [
        f"{where} states {time:.9g} s, priced {priced.step_time_s:.9g} s"
        for where, time in times.items()
        if not _close(time, priced.step_time_s)
    ]
    return Check(name="step time", passed=not wrong, reason="; ".join(wrong) or f"{priced.step_time_s:.6g} s")


def _check_memory(estimate: StatedEstimate, priced: PricedLayout) -> Check:
    peak, capacity = float(priced.costs.peak_bytes[0]), priced.capacity_bytes
    wrong = []
    if not priced.costs.fits[0]:
        wrong.append(f"{peak / 1e9:.9g} GB don't fit in {capacity / 1e9:.9g}")
    if not _close(estimate.peak_bytes, peak):
        wrong.append(f"a peak of {estimate.peak_bytes / 1e9:.9g} GB is stated, priced {peak / 1e9:.9g}")
    if not _close(estimate.capacity_bytes, capacity):
        wrong.append(
            f"a capacity of {estimate.capacity_bytes / 1e9:.9g} GB is stated, not {capacity / 1e9:.9g}"
        )
    return Check(
        name="memory",
        passed=not wrong,
        reason="; ".join(wrong) or f"{peak / 1e9:.2f} of {capacity / 1e9:.2f} GB",
    )


def _check_breakdown(estimate: StatedEstimate, rebuilt: Rebuilt, priced: PricedLayout) -> Check:
    parts, step = estimate.breakdown_s, priced.step_time_s
    wrong = []
    if not _close(sum(parts.values()), step, step):
        wrong.append(f"parts sum to {sum(parts.values()):.9g} s, not {step:.9g} s")
    if rebuilt.breakdown is not None:
        fresh = rebuilt.breakdown(priced)
        different = [key for key in {*parts, *fresh} if not _close(parts.get(key), fresh.get(key), step)]
        wrong += [f"{key} differs from its price" for key in sorted(different)]
    return Check(
        name="breakdown", passed=not wrong, reason="; ".join(wrong) or f"{len(parts)} parts sum to it"
    )


def _check_claim(stated: StatedPlan, blocks: int) -> Check:
    """Compare status, bound and gap with each other and with the certificate."""
    record = stated.certificate
    try:
        status = Status(stated.status)
    except ValueError:
        reason = f"status {stated.status!r} is none of {', '.join(Status)}"
        return Check(name="claim", passed=False, reason=reason)
    wrong = []
    if record.solver_status not in _SOLVER_STATUS[status]:
        wrong.append(f"status {status}, but the solver ended {record.solver_status}")
    if not _close(stated.bound_s, record.bound_s) or not _close(stated.gap, record.gap, 1.0):
        wrong.append("bound or gap of the objective are not those of the certificate")
    if not _close(stated.gap, relative_gap(stated.step_time_s, stated.bound_s), 1.0):
        wrong.append(f"gap {stated.gap} doesn't follow from step time and bound")
    wrong += _wrong_bound(stated, status, blocks)
    return Check(name="claim", passed=not wrong, reason="; ".join(wrong) or _claim(stated, status))


def _claim(stated: StatedPlan, status: Status) -> str:
    if status is Status.INFEASIBLE:
        return "no layout fits"
    return f"{status}, no layout below {stated.bound_s:.9g} s"


def _wrong_bound(stated: StatedPlan, status: Status, blocks: int) -> Iterator[str]:
    step, bound = stated.step_time_s, stated.bound_s
    if status is Status.INFEASIBLE:
        if step is not None or bound is not None:
            yield "an infeasible plan has neither step time nor bound"
        return
    if step is None or bound is None or stated.layout is None:
        if status is Status.OPTIMAL:
            yield "an optimal plan has a layout, a step time and a bound"
        return
    record = stated.certificate
    # One microsecond for each whole-number term of the slowest rank, m times, and of the sum over ranks once.
    rounding = 1e-6 * (stated.layout.degrees["micro_batches"] + 1) * (2 * blocks + 3)
    if not 0 <= record.rounding_s <= rounding or not 0 <= record.gap_target < 1:
        yield f"a rounding of {record.rounding_s} s or a gap target of {record.gap_target} is out of range"
    if bound > step * (1 + TOLERANCE):
        yield f"the bound {bound} s is above the step time {step} s"
    proven = step - bound <= max(record.rounding_s, record.gap_target * step) + TOLERANCE * step
    if proven != (status is Status.OPTIMAL):
        yield f"status {status}, but step time {step} s and bound {bound} s say otherwise"


def _check_alternatives(stated: StatedPlan, rebuilt: Rebuilt) -> Check:
    wrong = []
    for number, alternative in enumerate(stated.alternatives):
        try:
            priced = price_stated(rebuilt.space, alternative.layout, rebuilt.runs)
        except Refuted as refuted:
            wrong.append(f"alternative {number}: {refuted}")
            continue
        if not _close(alternative.step_time_s, priced.step_time_s):
            wrong.append(
                f"alternative {number} takes {priced.step_time_s:.9g} s, not {alternative.step_time_s:.9g} s"
            )
        if not priced.costs.fits[0]:
            wrong.append(f"alternative {number} does not fit in memory")
        if stated.step_time_s is not None and priced.step_time_s < stated.step_time_s * (1 - TOLERANCE):
            wrong.append(f"alternative {number} is faster than the answer")
    reason = "; ".join(wrong) or f"{len(stated.alternatives)} priced again, none faster"
    return Check(name="alternatives", passed=not wrong, reason=reason)


def _check_exclusion(stated: StatedPlan, rebuilt: Rebuilt, found: Exclusion, earlier: list[Check]) -> Check:
    name = "no faster layout"
    if not all(check.passed for check in earlier):
        return Check(name=name, passed=False, reason="not examined: an earlier check failed")
    if found.unsound:
        return Check(name=name, passed=False, reason=f"the cost model is out of range: {found.unsound}")
    if found.witness is not None:
        return Check(name=name, passed=False, reason=_describe(found.witness))
    if _below_s(stated) is None:
        return Check(name=name, passed=True, reason="no bound is claimed")
    reason = f"{found.tuples:,} tuples priced, {found.exactly:,} of them solved, {found.even:,} even layouts priced"
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
    blocks = witness.blocks.sum(axis=1).tolist()
    return f"{degrees},order={order} with {blocks} blocks per rank takes {witness.step_time_s:.9g} s"
