"""What ``--json`` prints: records by their fields, but for this table; the keys do not change."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from layoutopt.optimizer.evidence.claims import carriers, claim_size
from layoutopt.optimizer.specs.canonical import Form, encode

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from layoutopt.optimizer.cost.estimate import Estimate
    from layoutopt.optimizer.diagnose.constants import TermCalibration
    from layoutopt.optimizer.diagnose.diagnosis import Diagnosis
    from layoutopt.optimizer.diagnose.log_diagnosis import LogDiagnosis
    from layoutopt.optimizer.diagnose.outlook import Outlook
    from layoutopt.optimizer.diagnose.terms import RankTerms
    from layoutopt.optimizer.evidence.honesty import Honesty
    from layoutopt.optimizer.evidence.published import Distance, Reference
    from layoutopt.optimizer.evidence.validate import RowResult, ValidationReport
    from layoutopt.optimizer.interop.records import OutOfMemory
    from layoutopt.optimizer.plan.training_plan import Baseline
    from layoutopt.optimizer.plan.watch import WatchList
    from layoutopt.optimizer.simulate.compare import LayoutSimulation
    from layoutopt.optimizer.solve.explain.records import Explanation, WhyNot
    from layoutopt.optimizer.solve.plan import Plan
    from layoutopt.optimizer.solve.search.best_by import ObjectiveAnswer
    from layoutopt.optimizer.space.enumeration import Space
    from layoutopt.optimizer.specs.model import ModelSpec
    from layoutopt.optimizer.sweep.rows import Row
    from layoutopt.optimizer.sweep.run import SweepResult

    Plain = dict[str, Any]

MOST_OPERATIONS = 50
"""Kernels that a diagnosis lists, the longest."""

BAND = ("low", "expected", "high")
BANDS = ("step_time_s", "tokens_per_s", "mfu_causal", "mfu_full")


def _objective(plan: Plan) -> Plain:
    step_s = plan.estimate.step_time_s if plan.estimate else None
    stated = {
        "step_time_s": step_s,
        "bound_s": plan.bound_s,
        "gap": plan.gap,
        "name": "time",
        "value": step_s,
    }
    if plan.outcome is not None:
        stated |= _outcome(plan.outcome)
    return stated | ({"then": plan.then} if plan.then else {})


def _outcome(outcome: ObjectiveAnswer) -> Plain:
    """Write the answer in another objective than time; its value and bound are in that objective's unit."""
    found: Plain = {name: value for name, value in asdict(outcome).items() if value is not None}
    # ``bound_s`` is the step's: the objective's own bound has another unit, and a name that says so.
    return found | {"value_bound": found.pop("bound")}


def _reasons(plan: Plan) -> list[str]:
    return [plan.infeasibility.message] if plan.infeasibility else []


def _bands(watch: WatchList) -> Mapping[str, Any]:
    return {name: dict(zip(BAND, getattr(watch, name), strict=True)) for name in BANDS}


def _vendor(baseline: Baseline) -> Plain | None:
    found = baseline.vendor
    if found is None or found.judgement.estimate is None:
        return None
    return {
        "name": found.name,
        "gpus": found.gpus,
        "layout": to_plain(found.judgement.layout),
        "step_time_s": found.judgement.estimate.step_time_s,
        "slower": baseline.vendor_slower,
    }


FORMS: Mapping[str, Form] = {
    "cost.estimate:MemoryEstimate": Form(without=("borderline_bytes", "weight_bytes")),
    "solve.plan:Plan": Form(
        without=("bound_s", "gap", "then", "outcome"), added={"objective": _objective, "reasons": _reasons}
    ),
    "solve.plan:Alternative": Form(added={"step_time_s": "estimate.step_time_s"}),
    "solve.explain.records:MemoryPart": Form(renamed={"size_bytes": "bytes"}),
    "solve.explain.records:Remedy": Form(added={"step_time_s": "estimate.step_time_s"}),
    "solve.explain.records:Explanation": Form(without=("judgement",), renamed={"fullest": "fullest_rank"}),
    "solve.explain.records:WhyNot": Form(without=("best",)),
    "space.enumeration:AxisRow": Form(renamed={"range_text": "range"}),
    "evidence.memory:MemoryReport": Form(
        without=("summary",),
        renamed={"rows": "per_row"},
        added={"mape": "summary.mape", "bias": "summary.bias", "rows": "summary.rows"},
    ),
    "evidence.validate:RowResult": Form(
        without=("case", "prediction"),
        added={
            "id": "case.run.id",
            "measured_s": "case.measured_s",
            "predicted_s": "prediction.step_time_s",
            "ape": lambda row: None if row.error is None else abs(row.error),
            "error": "error",
            "family": "case.family",
            "complete": "case.complete",
            "unstated": "case.unstated",
            "assumed": "case.assumed",
        },
    ),
    "evidence.validate:ValidationReport": Form(
        without=("results", "ranking_by_kind", "groups"), added={"priced": lambda report: len(report.results)}
    ),
    "diagnose.difference:Row": Form(added={"ratio": "ratio", "gap_s": "gap_s"}),
    "diagnose.logged:SpanRow": Form(added={"ratio": "ratio", "gap_s": "gap_s"}),
    "diagnose.diagnosis:Overlap": Form(added={"hidden_share": "hidden_share"}),
    "evidence.next_runs:ProbeJob": Form(
        without=("workload", "cluster"),
        added={
            "model_layers": "workload.model.layers",
            "global_batch": "workload.training.global_batch",
            "gpus": "cluster.gpu_count",
        },
    ),
    "sweep.purchase:Offer": Form(without=("cluster",), added={"cost": "cost"}),
    "evidence.case:Skip": Form(without=("run",), added={"id": "run.id"}),
    "evidence.published:Reference": Form(
        without=("case",),
        renamed={"by_vp": "predicted_s_by_vp"},
        added={
            "id": "case.run.id",
            "source": "case.run.source",
            "layout": "case.layout",
            "published_s": "case.measured_s",
            "predicted_s": "estimate.step_time_s",
            "error": "error",
        },
    ),
    "evidence.choice:RobustChoice": Form(without=("layouts",)),
    "plan.fault_plan:FaultPlan": Form(renamed={"curve": "goodput"}),
    "cost.checkpoints:CheckpointSchedule": Form(endless=("wall_s", "failures")),
    "plan.training_plan:TrainingPlan": Form(endless=("expected_days", "expected_cost")),
    "sweep.inverse:SizeAnswer": Form(endless=("days", "expected_days", "cost")),
    "cost.faults:Waste": Form(added={"total": "total"}),
    "plan.training_plan:PhasePlan": Form(
        without=("training", "plan", "estimate", "baseline"),
        added={
            "sequence_length": "training.sequence_length",
            "global_batch": "training.global_batch",
            "status": "plan.status",
            "gap": "plan.gap",
            "step_time_s": "estimate.step_time_s",
            "mfu_causal": "estimate.mfu_causal",
            "mfu_full": "estimate.mfu_full",
            "recipe": "baseline",
        },
    ),
    "plan.training_plan:Baseline": Form(
        without=("recipe", "vendor", "vendor_slower"),
        added={
            "vendor": _vendor,
            "steps": "recipe.steps",
            "layout": "recipe.judgement.layout",
            "verdict": "recipe.judgement.verdict",
            "step_time_s": "recipe.judgement.estimate.step_time_s",
        },
    ),
    "plan.watch:WatchList": Form(
        without=(*BANDS, "step_spread"),
        added={name: (lambda watch, name=name: _bands(watch)[name]) for name in BANDS}
        | {"step_spread": lambda watch: dict(zip(("low", "high"), watch.step_spread, strict=True))},
    ),
}
"""How records differ from their fields, by module and class."""


def to_plain(record: Any) -> Any:
    """Return a record, or a list or mapping of records, as ``--json`` prints it."""
    return encode(record, FORMS)


def with_remarks(plain: Plain, *models: ModelSpec) -> Plain:
    """Add what every answer about a model says of it; nothing where it says nothing."""
    said = list(dict.fromkeys(remark for model in models for remark in model.remarks))
    return plain | {"warnings": [*plain.get("warnings", ()), *said]} if said else plain


def plan_to_plain(plan: Plan, honesty: Honesty | None = None) -> Plain:
    """Write a plan; ``verify`` reads it back. Without a layout ``layout`` and ``estimate`` are null.

    ``honesty`` adds the error band, intervals of the step time, and to every alternative whether the model can tell it
    from the best and which parts of the step carry the difference, with the measured runs that test each.
    """
    plain: Plain = with_interval(to_plain(plan), honesty)
    if honesty is None:
        return plain
    for other, tie in zip(plain["alternatives"], honesty.ties, strict=True):
        other |= {"distinguishable": tie.distinguishable, "measurement": tie.measurement or None}
    if plan.estimate is not None:
        for other, slower in zip(plain["alternatives"], plan.alternatives, strict=True):
            other["carried_by"] = _carried_by(plan.estimate, slower.estimate)
    choice = {} if honesty.choice is None else {"choice": to_plain(honesty.choice)}
    robust = {} if honesty.robust is None else {"robust": to_plain(honesty.robust)}
    return plain | {"error_band": to_plain(honesty.band)} | choice | robust


def _carried_by(faster: Estimate, slower: Estimate) -> list[Plain]:
    found = carriers(faster.breakdown_s, slower.breakdown_s)
    return [{"component": one.component.value, "share": one.share, "rows": one.rows} for one in found]


def with_interval(plain: Plain, honesty: Honesty | None) -> Plain:
    """Add to a priced answer the step times and peaks between which 50, 80 and 95% of runs predicted so are expected."""
    priced = plain["estimate"]
    if honesty is not None and priced is not None:
        priced["interval_s"] = to_plain(honesty.intervals_s(priced["step_time_s"]))
        peak_bytes = priced["memory"]["peak_bytes"]
        priced["memory"]["interval_bytes"] = to_plain(honesty.intervals_bytes(peak_bytes))
    return plain


def space_to_plain(space: Space) -> Plain:
    """Write a declared space: its axes, what the rules remove, and its size."""
    from layoutopt.optimizer.space.openable import openable  # its rules load numpy

    counts, joint = space.counts, space.joint_assignments_log10
    plain: Plain = to_plain(
        {
            "axes": space.axes_table(),
            "openable": openable(space.axes),
            "declared": {"degree_tuples": counts.declared_degrees, "tuples": counts.declared_tuples},
            "removed_by_rule": {
                count.rule: {"degree_tuples": count.degrees, "tuples": count.tuples}
                for count in counts.removed
            },
            "remaining": {"degree_tuples": counts.remaining_degrees, "tuples": counts.remaining_tuples},
            # JSON has no infinity: an empty space has no logarithm.
            "joint_assignments_log10": joint if math.isfinite(joint) else None,
            "empty": space.empty.message if space.empty else None,
        }
    )
    return plain


def explanation_to_plain(
    found: Explanation,
    wishes: Sequence[WhyNot] = (),
    died: Sequence[OutOfMemory] = (),
    honesty: Honesty | None = None,
) -> Plain:
    """Write an explanation: the verdict as ``evaluate`` writes it, and beside it what to do about it.

    With ``honesty`` gap and wishes have what carries them, measured runs of each, and if runs bear them out (``claim``).
    """
    plain: Plain = to_plain(found.judgement) | to_plain(found) | {"why_not": to_plain(wishes)}
    if honesty is not None:
        for one, wish in zip(plain["why_not"], wishes, strict=True):
            one |= _claim(wish.best.estimate, wish.plan.estimate, wish.slower, honesty)
        if found.gap is not None and found.optimum is not None:
            best, given = found.optimum.estimate, found.judgement.estimate
            plain["gap"] |= _claim(best, given, found.gap.slower, honesty)
    return with_interval(plain | {"out_of_memory": to_plain(died)}, honesty)


def _claim(faster: Estimate | None, slower: Estimate | None, gain: float | None, honesty: Honesty) -> Plain:
    if faster is None or slower is None or gain is None:
        return {"carried_by": [], "claim": None}
    size = claim_size(gain, honesty.band).value
    return {"carried_by": _carried_by(faster, slower), "claim": size if gain > 0 else None}


def published_to_plain(found: Sequence[tuple[Reference, Distance | None]]) -> list[Plain]:
    """Write the references in order, with the optimum beside each where it was searched."""
    return [to_plain(one) | ({} if far is None else _distance(far)) for one, far in found]


def _distance(far: Distance) -> Plain:
    plan, steps = far.plan, far.gap.steps if far.gap else ()
    differences = [
        {
            "axes": step.axes,
            "changes": step.changes,
            "saved_s": step.saved_s,
            "saved_share": step.saved_s / far.gap.step_time_s,
            "why": step.why,
        }
        for step in steps
        if far.gap is not None
    ]
    plain: Plain = to_plain(
        {
            "optimum": {
                "status": plan.status,
                "layout": plan.layout,
                "step_time_s": plan.estimate.step_time_s if plan.estimate else None,
                "gap": plan.gap,
            },
            "slower": far.slower,
            "rank": {"at_most_faster_rows": far.faster_rows, "rows": far.rows},
            "differences": differences,
            "reasons": far.reasons,
            "authors": far.authors,
        }
    )
    return plain


def simulation_to_plain(found: LayoutSimulation) -> Plain:
    """Write step times, how far the formula is off, and every rank's busy and idle time and memory."""
    result, pipeline = found.result, found.result.pipeline
    plain: Plain = to_plain(
        {
            "schedule": pipeline.schedule,
            "pp": pipeline.pp,
            "vp": pipeline.vp,
            "micro_batches": pipeline.micro_batches,
            "simulated_step_s": found.simulated_step_s,
            "analytic_step_s": found.analytic_step_s,
            "deviation": found.deviation,
            "tolerance": found.tolerance,
            "upper_bound": found.upper_bound,
            "bubble_share": result.bubble_share,
            "exposed_hops_s": {
                "simulated": found.simulated_exposed_hops_s,
                "analytic": found.analytic_exposed_hops_s,
            },
            "ranks": [_rank(found, rank) for rank in range(pipeline.pp)],
        }
    )
    return plain


def _rank(found: LayoutSimulation, rank: int) -> Plain:
    result = found.result
    time_s, held_bytes = result.memory[rank].sampled(result.makespan_s)
    return {
        "rank": rank,
        "micro_batch_s": found.rank_time_s[rank],
        "busy_s": result.busy_s[rank],
        "bubble_s": result.bubble_s[rank],
        "peak_in_flight": result.peak_in_flight[rank],
        "simulated_peak_bytes": found.simulated_peak_bytes[rank],
        "analytic_peak_bytes": found.analytic_peak_bytes[rank],
        "memory": {"time_s": time_s, "held_bytes": held_bytes},
    }


def run_diagnosis_to_plain(found: Diagnosis | LogDiagnosis) -> Plain:
    """Write the diagnosis of profiles or of a log; terms of a log are its spans."""
    from layoutopt.optimizer.diagnose.log_diagnosis import LogDiagnosis, answers_of_log

    if not isinstance(found, LogDiagnosis):
        return diagnosis_to_plain(found)
    profile, apart = found.profile, found.difference
    plain: Plain = to_plain(
        {
            "measured_step_s": apart.measured_s,
            "predicted_step_s": apart.predicted_s,
            "answers": list(answers_of_log(found)),
            "causes": found.causes,
            "terms": apart.rows,
            "log": {"trainer": profile.trainer, "steps": profile.steps, "timers_s": dict(profile.timers_s)},
            "notes": found.notes,
        }
    )
    return plain


def diagnosis_to_plain(found: Diagnosis) -> Plain:
    """Write a diagnosis: both steps, causes, terms, traffic, operations and ranks."""
    from layoutopt.optimizer.diagnose.diagnosis import answers

    apart = found.difference
    plain: Plain = to_plain(
        {
            "measured_step_s": found.step_s if apart is None else apart.measured_s,
            "predicted_step_s": None if apart is None else apart.predicted_s,
            "answers": list(answers(found)),
            "causes": found.causes,
            "terms": () if apart is None else apart.rows,
            "parts": () if apart is None else apart.parts,
            "traffic": found.overlaps,
            "operations": found.operations[:MOST_OPERATIONS],
            "ranks": [_rank_terms(terms) for terms in found.ranks],
            "speeds": found.speeds,
            "devices": list(found.devices),
            "notes": found.notes,
        }
    )
    return plain


def term_calibration_to_plain(found: TermCalibration, ahead: Outlook) -> Plain:
    """Write constants that a profile told, and the optimum that follows."""
    outlook = _outlook(ahead) | {"free": None if ahead.free is None else _outlook(ahead.free)}
    return {"calibration": told_to_plain(found), "outlook": outlook}


def _outlook(ahead: Outlook) -> Plain:
    plain: Plain = to_plain(ahead) | {"saving": ahead.saving, "worth_it": ahead.worth_it}
    return plain


def told_to_plain(found: TermCalibration) -> Plain:
    """Write the constants that a profile told."""
    plain: Plain = to_plain(found) | {"values": to_plain(found.values)}
    return plain


def _rank_terms(terms: RankTerms) -> Plain:
    parts = [
        {"component": label.component, "part": label.part, "seconds": ns / terms.steps * 1e-9}
        for label, ns in terms.labels_ns.items()
    ]
    return {
        "rank": terms.rank,
        "steps": terms.steps,
        "step_s": terms.step_s,
        "breakdown_s": terms.components_s,
        "parts": parts,
        "launches": terms.launches / terms.steps,
    }


def validation_to_plain(report: ValidationReport, *, worst: int = 0) -> Plain:
    """Write a validation report; errors are fractions. ``worst`` rows get their breakdowns."""
    plain: Plain = to_plain(report)
    plain["per_row"] = to_plain(report.results)
    plain["assumed"] |= {"ids": [row.case.run.id for row in report.results if row.case.assumed]}
    plain["ranking"] |= {"by_kind": to_plain(report.ranking_by_kind)}
    return plain | ({"worst": [_worst(row) for row in report.worst(worst)]} if worst else {})


def _worst(row: RowResult) -> Plain:
    breakdown_s = to_plain(row.prediction.breakdown_s)
    return {**to_plain(row), "breakdown_s": breakdown_s, "source": row.case.run.source}


def sweep_to_plain(result: SweepResult, rows: Iterable[Row]) -> Plain:
    """Write how a sweep ended and its rows."""
    from layoutopt.optimizer.sweep.rows import HIDDEN

    shown = [{name: value for name, value in row.items() if name not in HIDDEN} for row in rows]
    return {**to_plain(result), "rows": shown}
