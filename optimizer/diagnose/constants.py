"""Constants from measured terms: each from the term that it decides, as far as the term tells it, with its uncertainty."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from layoutopt.optimizer.cost.components import Component
from layoutopt.optimizer.cost.estimate import estimate
from layoutopt.optimizer.diagnose.cause import CauseKind
from layoutopt.optimizer.diagnose.log_diagnosis import LogDiagnosis
from layoutopt.optimizer.diagnose.logged import PASSES, LoggedSpan, predicted_spans
from layoutopt.optimizer.diagnose.parts import Activity
from layoutopt.optimizer.diagnose.predicted import moved_in_domain
from layoutopt.optimizer.diagnose.term_fit import PRECISION, Measured, MeasuredTerm, TermFit, fit_term
from layoutopt.optimizer.evidence.calibration import Sourced
from layoutopt.optimizer.evidence.discrepancy import discrepancy
from layoutopt.optimizer.evidence.observed import constants_of, observe
from layoutopt.optimizer.evidence.predict import TIME_SCALE
from layoutopt.optimizer.specs.cluster import Observation
from layoutopt.optimizer.specs.errors import input_error
from layoutopt.optimizer.specs.units import counted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from layoutopt.optimizer.cost.estimate import Estimate
    from layoutopt.optimizer.diagnose.cause import Cause
    from layoutopt.optimizer.diagnose.diagnosis import Diagnosis
    from layoutopt.optimizer.diagnose.predicted import Expectation
    from layoutopt.optimizer.diagnose.term_fit import Reprice
    from layoutopt.optimizer.diagnose.terms import RankTerms
    from layoutopt.optimizer.frameworks.registry import Framework


STREAMING = (
    Activity.NORM, Activity.ACTIVATION, Activity.ELEMENTWISE, Activity.PERMUTE, Activity.LOSS, Activity.EMBEDDING
)  # fmt: skip
"""Kernels that the plan prices by their bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TermCalibration:
    """What a profile tells of a cluster's constants; step times before and after are those of the plan that ran."""

    fits: tuple[TermFit, ...]
    measured_s: float
    before_s: float
    after_s: float
    source: str
    step: Observation
    warnings: tuple[str, ...]

    @property
    def values(self) -> dict[str, Sourced]:
        """The constants that are taken, with their source."""
        return {
            fit.name: Sourced(
                value=fit.value,
                source=f"{self.source}: {fit.term}, {fit.known_to}",
            )
            for fit in self.fits
            if fit.taken
        }

    @property
    def observations(self) -> tuple[Observation, ...]:
        """How well each constant that is taken was read, one reading of it alone, and what the whole step read."""
        alone = tuple(
            Observation(
                name=f"{self.source}: {fit.term}",
                ratio=1.0,
                spread=float(f"{max(fit.sigma, PRECISION):.3g}"),
                slopes={fit.name: 1.0},
            )
            for fit in self.fits
            if fit.taken
        )
        return (*alone, self.step)

    @property
    def lines(self) -> list[str]:
        """What the calibration rests on, for a cluster file."""
        off_before, off_after = (abs(step / self.measured_s - 1) for step in (self.before_s, self.after_s))
        head = (
            f"Calibrated with {self.source}: {self.measured_s:.4g} s per step measured, predicted {100 * off_before:.1f}% "
            f"off before and {100 * off_after:.1f}% after."
        )
        each = [
            f"  {fit.name}: {fit.term} {fit.measured_s:.4g} s measured, {fit.before_s:.4g} before, {fit.after_s:.4g} after"
            for fit in self.fits
            if fit.taken
        ]
        left = [
            f"  {fit.name} {'is' if fit.taken else 'stays'} {fit.value:.4g}: {fit.reason}."
            for fit in self.fits
            if fit.reason
        ]
        return [head, *each, *left, *(f"Warning: {warning}." for warning in self.warnings)]


def calibrate_terms(
    found: Diagnosis | LogDiagnosis, reprice: Reprice, framework: Framework, present: Mapping[str, float]
) -> TermCalibration:
    """Read constants from the terms of a profile, or from the spans of a log.

    ``reprice`` returns the plan's prediction under other constants, ``present`` are those that the cluster states now.
    Raises ``InputError`` for a profile of another job than the plan's.
    """
    if found.expected is None or found.difference is None:
        raise input_error(
            "needs a plan to hold the profile against", "a plan or a launch file", key="calibrate"
        )
    if any(cause.kind is CauseKind.MICRO_BATCHES for cause in found.causes):
        raise input_error(
            "the profile is of another number of micro-batches", "the run of this plan", key="calibrate"
        )
    if not isinstance(found, LogDiagnosis) and found.other_gpu:
        raise input_error(found.other_gpu, "profiles of this cluster's GPU", key="calibrate")
    open_words = ""
    # The source stands in the cluster's file: whoever reads it later sees on how much a constant rests.
    if isinstance(found, LogDiagnosis):
        source = f"a log of {found.profile.steps_words}"
        values, fits = _fitted(_log_terms(found, framework), [found], found.expected, reprice, present)
    else:
        source = (
            f"a profile of {counted(len(found.ranks), 'rank')} and {counted(found.ranks[0].steps, 'step')}"
        )
        values, fits = _fitted(_terms(found, framework), found.ranks, found.expected, reprice, present)
        open_words = f"{found.not_told}; such calls decide no constant" if found.not_told else ""
    return TermCalibration(
        fits=tuple(fits),
        measured_s=found.difference.measured_s,
        before_s=found.expected.step_s,
        after_s=reprice(values).step_s,
        source=source,
        step=_step(found, reprice, framework, values, source),
        warnings=(
            *_warnings(found.causes),
            *_host_warnings(found.causes, fits),
            *([open_words] if open_words else []),
        ),
    )


def _step(
    found: Diagnosis | LogDiagnosis,
    reprice: Reprice,
    framework: Framework,
    values: Mapping[str, float],
    source: str,
) -> Observation:
    """Return what the whole step read with the constants that its terms told."""
    assert found.expected is not None
    assert found.difference is not None
    cost, layout = found.expected.cost, found.expected.layout
    stated = replace(cost.cluster, calibration={**cost.cluster.calibration, **values})

    def price(others: Mapping[str, float]) -> Estimate:
        """Price the layout that ran."""
        return estimate(reprice({**values, **others}).cost, layout)

    return observe(
        f"{source} of {cost.model.name} with tp {layout.tp}, cp {layout.cp}, pp {layout.pp}, vp {layout.vp}, "
        f"ep {layout.ep}, dp {layout.dp}, micro-batch {layout.micro_batch} on {layout.gpus} GPUs",
        found.difference.measured_s,
        price,
        spread=discrepancy().repeat,
        concerned=constants_of(stated, framework),
    )


def _fitted(
    terms: Sequence[MeasuredTerm[Measured]],
    measured: Sequence[Measured],
    expected: Expectation,
    reprice: Reprice,
    present: Mapping[str, float],
) -> tuple[dict[str, float], list[TermFit]]:
    """Fit the terms' constants one after another; return all values and the fits."""
    values, fits = dict(present), list[TermFit]()
    for term in terms:
        # With the constants found so far: terms of kernels come first, since the others lie beside them.
        fit = fit_term(term, measured, reprice, values, expected)
        if fit is not None:
            fits.append(fit)
            # What a term tells too little of stays as it was for the terms behind it too.
            values |= {fit.name: fit.value} if fit.taken else {}
    return values, fits


def _warnings(causes: Sequence[Cause]) -> list[str]:
    """Name what constants cannot describe."""
    apart = (
        CauseKind.SLOW_RANK, CauseKind.NO_OVERLAP, CauseKind.RECOMPUTATION, CauseKind.UNFUSED_ATTENTION, CauseKind.DROPOUT,
        CauseKind.DATA_LOADER, CauseKind.CHECKPOINT, CauseKind.NO_CUDA_GRAPH, CauseKind.EXPERT_IMBALANCE,
    )  # fmt: skip
    return [
        f"{cause.words}: mend it first, no constant stands for it" for cause in causes if cause.kind in apart
    ]


def _host_warnings(causes: Sequence[Cause], fits: Sequence[TermFit]) -> list[str]:
    """Say of a host that paused or stalled whether a constant took its time, or that none stands for it."""
    taken = " and ".join(fit.name for fit in fits if fit.taken and fit.name.startswith("host_"))
    stalls = [cause for cause in causes if cause.kind in (CauseKind.HOST_PAUSE, CauseKind.HOST_BOUND)]
    if taken:
        usual = f"{taken} now says that it is so in every run: if it is not, mend it and profile again"
        return [f"{cause.words}; {usual}" for cause in stalls]
    paused = [cause for cause in stalls if cause.kind is CauseKind.HOST_PAUSE]
    return [f"{cause.words}: mend it first, no constant stands for it" for cause in paused]


def _log_terms(found: LogDiagnosis, framework: Framework) -> list[MeasuredTerm[LogDiagnosis]]:
    """Return the terms of a log that decide one constant each: the passes' one scale, then what lies beside them.

    Traffic beside the passes decides none: a log does not tell its speed from what hides it.
    """
    listed = [
        (TIME_SCALE, PASSES),
        (f"host_step_s.{framework.value}", (LoggedSpan.REST,)),
        ("optimizer_hbm_fraction", (LoggedSpan.OPTIMIZER,)),
    ]
    rows = [row.spans for row in found.difference.rows]
    terms = []
    for name, spans in listed:
        # A row of several spans tells only their sum, which is no term of one constant but the scale of all.
        mine = {span for held in rows if set(held) & set(spans) for span in held}
        if name == TIME_SCALE or mine == set(spans):
            terms.append(_of_spans(name, tuple(span for span in LoggedSpan if span in mine)))
    return terms


def _of_spans(name: str, spans: tuple[LoggedSpan, ...]) -> MeasuredTerm[LogDiagnosis]:
    def measured(found: LogDiagnosis) -> float:
        """Sum the rows of the spans."""
        return sum(row.measured_s for row in found.difference.rows if set(row.spans) & set(spans))

    def predicted(expected: Expectation, found: LogDiagnosis) -> float:
        """Sum the plan's spans."""
        planned = predicted_spans(expected)
        return sum(planned[span] for span in spans)

    words = ", ".join(span.words for span in spans)
    return MeasuredTerm(name=name, words=words, measured_s=measured, predicted_s=predicted)


def _terms(found: Diagnosis, framework: Framework) -> list[MeasuredTerm[RankTerms]]:
    """Return the terms that decide one constant each, those of kernels before those that lie beside them."""
    assert found.expected is not None
    cluster, constants = found.expected.cost.cluster, found.expected.cost.constants
    gpu = cluster.gpu
    # Some chips have a share of their own; the others take that of their generation.
    streaming = gpu.architecture if constants.has("hbm_fraction", gpu.architecture) else gpu.generation.name
    unfused = any(cause.kind is CauseKind.UNFUSED_ATTENTION for cause in found.causes)
    terms = [
        _of_kernels(
            f"gemm_cap.{gpu.architecture}", "matrix multiplications", (Activity.GEMM, Activity.EXPERTS)
        ),
        _of_kernels(f"attention_speed.{framework.value}", "fused attention", (Activity.ATTENTION,)),
        _of_kernels(f"hbm_fraction.{streaming}", "memory-bound kernels", STREAMING),
        _of_component("optimizer_hbm_fraction", Component.OPTIMIZER, Activity.OPTIMIZER),
        _of_traffic(f"nvlink_fraction.{gpu.generation.name}", "transfer over NVLink", within=True),
        _of_traffic(f"network_fraction.{cluster.fabric}", "transfer between nodes", within=False),
        _of_component(f"host_layer_s.{framework.value}", Component.HOST, Activity.LAUNCH),
        _of_component(f"host_step_s.{framework.value}", Component.STEP, Activity.LAUNCH),
    ]
    # The scores' multiplications are among those kernels: constants would be bent to an attention that is not fused.
    hidden = ("gemm_cap", "attention_speed") if unfused else ()
    return [term for term in terms if not term.name.startswith(hidden or "-")]


def _of_kernels(name: str, words: str, parts: tuple[Activity, ...]) -> MeasuredTerm[RankTerms]:
    phases = (Component.FORWARD, Component.BACKWARD)

    def measured(terms: RankTerms) -> float:
        """Sum kernels of the parts."""
        return sum(terms.seconds(phase, part) for phase in phases for part in parts)

    def predicted(expected: Expectation, terms: RankTerms) -> float:
        """Sum the parts of the rank's stage."""
        stage = expected.of(terms.rank)
        return sum(stage.seconds(phase, part) for phase in phases for part in parts)

    return MeasuredTerm(name=name, words=words, measured_s=measured, predicted_s=predicted)


def _of_component(name: str, component: Component, part: Activity) -> MeasuredTerm[RankTerms]:
    return MeasuredTerm(
        name=name,
        words=component.words,
        measured_s=lambda terms: terms.seconds(component, part),
        predicted_s=lambda expected, terms: expected.of(terms.rank).seconds(component, part),
    )


def _of_traffic(name: str, words: str, *, within: bool) -> MeasuredTerm[RankTerms]:
    """Compare the transfer of all calls whose bytes and members are known with their price, hidden or not."""

    def calls(expected: Expectation, terms: RankTerms) -> list[tuple[float, float]]:
        """Return each kind of call's seconds, measured and predicted."""
        found = []
        for one in terms.traffic:
            if (
                one.axis is None
                or not one.whole
                or one.bytes <= 0
                or moved_in_domain(expected, one.axis) is not within
            ):
                continue
            price = expected.transfer_s(one.axis, one.kind, one.bytes / one.calls)
            if price is not None:
                found.append((one.transfer_ns * 1e-9 / terms.steps, price * one.calls / terms.steps))
        return found

    # the measured seconds are of the same calls, whatever the constants
    kept: dict[int, float] = {}

    def predicted(expected: Expectation, terms: RankTerms) -> float:
        """Sum the prices of the rank's calls."""
        pairs = calls(expected, terms)
        kept[terms.rank] = sum(pair[0] for pair in pairs)
        return sum(pair[1] for pair in pairs)

    return MeasuredTerm(
        name=name, words=words, measured_s=lambda terms: kept.get(terms.rank, 0.0), predicted_s=predicted
    )
