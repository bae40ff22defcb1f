"""Constants from measured terms: each from the term that it decides, as far as the term tells it, with its uncertainty."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import median, pstdev
from typing import TYPE_CHECKING

from layoutopt.optimizer.cost.components import Component
from layoutopt.optimizer.diagnose.causes import CauseKind
from layoutopt.optimizer.diagnose.parts import Activity
from layoutopt.optimizer.diagnose.predicted import moved_in_domain
from layoutopt.optimizer.evidence.calibrate import LEAST_SPREAD
from layoutopt.optimizer.evidence.calibration import Sourced
from layoutopt.optimizer.evidence.parameters import parameter
from layoutopt.optimizer.evidence.profile import PRIOR_SIGMA
from layoutopt.optimizer.specs.errors import input_error

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from layoutopt.optimizer.diagnose.diagnosis import Diagnosis
    from layoutopt.optimizer.diagnose.predicted import Expectation
    from layoutopt.optimizer.diagnose.terms import RankTerms
    from layoutopt.optimizer.frameworks.registry import Framework

    Reprice = Callable[[Mapping[str, float]], Expectation]

STREAMING = (
    Activity.NORM, Activity.ACTIVATION, Activity.ELEMENTWISE, Activity.PERMUTE, Activity.LOSS, Activity.EMBEDDING
)  # fmt: skip
"""Kernels that the plan prices by their bytes."""

LEAST_SHARE = 0.005
"""Share of the step that a term must have to tell anything."""

AT_BOUND = 1e-3
"""Logarithm from a bound of its source within which a constant stands at it."""

STEPS = 12
"""Steps of the search for a constant's value: each halves what is left of the range of its source at least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TermFit:
    """One constant and the term that it was read from, seconds of a step in the middle of the ranks.

    ``sigma`` is the standard deviation of the constant's logarithm: repeats of a run, ranks that differ, and how steeply the
    term follows the constant. ``taken``: the term tells more of it than what was known before; ``reason`` says why it does
    not, or what stays open.
    """

    name: str
    term: str
    present: float
    value: float
    sigma: float
    measured_s: float
    before_s: float
    after_s: float
    taken: bool
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TermCalibration:
    """What a profile tells of a cluster's constants; step times before and after are those of the plan that ran."""

    fits: tuple[TermFit, ...]
    measured_s: float
    before_s: float
    after_s: float
    source: str
    warnings: tuple[str, ...]

    @property
    def values(self) -> dict[str, Sourced]:
        """The constants that are taken, with their source."""
        return {
            fit.name: Sourced(
                value=fit.value,
                source=f"{self.source}: {fit.term}, within {100 * math.expm1(fit.sigma):.0f}%",
            )
            for fit in self.fits
            if fit.taken
        }

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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Term:
    """A constant, and how to read its term of a measured rank and of a prediction for it."""

    name: str
    words: str
    measured_s: Callable[[RankTerms], float]
    predicted_s: Callable[[Expectation, RankTerms], float]


def calibrate_terms(
    found: Diagnosis, reprice: Reprice, framework: Framework, present: Mapping[str, float]
) -> TermCalibration:
    """Read constants from the terms of a profile.

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
    values, fits = dict(present), list[TermFit]()
    for term in _terms(found, framework):
        fit = _fit(term, found.ranks, reprice, values, found.expected)
        if fit is not None:
            fits.append(fit)
            values |= {fit.name: fit.value} if fit.taken else {}
    return TermCalibration(
        fits=tuple(fits),
        measured_s=found.difference.measured_s,
        before_s=found.expected.step_s,
        after_s=reprice(values).step_s,
        source=f"a profile of {len(found.ranks)} ranks and {found.ranks[0].steps} steps",
        warnings=tuple(_warnings(found)),
    )


def _warnings(found: Diagnosis) -> list[str]:
    """Name what constants cannot describe."""
    apart = (
        CauseKind.SLOW_RANK, CauseKind.NO_OVERLAP, CauseKind.RECOMPUTATION, CauseKind.UNFUSED_ATTENTION, CauseKind.DROPOUT,
        CauseKind.DATA_LOADER, CauseKind.CHECKPOINT, CauseKind.NO_CUDA_GRAPH, CauseKind.EXPERT_IMBALANCE,
    )  # fmt: skip
    return [
        f"{cause.words}: mend it first, no constant stands for it"
        for cause in found.causes
        if cause.kind in apart
    ]


def _terms(found: Diagnosis, framework: Framework) -> list[_Term]:
    """Return the terms that decide one constant each, those of kernels before those that lie beside them."""
    assert found.expected is not None
    cluster, constants = found.expected.cost.cluster, found.expected.cost.constants
    gpu = cluster.gpu
    streaming = gpu.architecture if constants.has("hbm_fraction", gpu.architecture) else gpu.generation.name
    unfused = any(terms.kernel_s(Activity.SCORES) for terms in found.ranks)
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
    hidden = ("gemm_cap", "attention_speed") if unfused else ()
    return [term for term in terms if not term.name.startswith(hidden or "-")]


def _of_kernels(name: str, words: str, parts: tuple[Activity, ...]) -> _Term:
    phases = (Component.FORWARD, Component.BACKWARD)

    def measured(terms: RankTerms) -> float:
        return sum(terms.seconds(phase, part) for phase in phases for part in parts)

    def predicted(expected: Expectation, terms: RankTerms) -> float:
        stage = expected.stages[expected.stage_of(terms.rank)]
        return sum(stage.seconds(phase, part) for phase in phases for part in parts)

    return _Term(name=name, words=words, measured_s=measured, predicted_s=predicted)


def _of_component(name: str, component: Component, part: Activity) -> _Term:
    return _Term(
        name=name,
        words=component.words,
        measured_s=lambda terms: terms.seconds(component, part),
        predicted_s=lambda expected, terms: expected.stages[expected.stage_of(terms.rank)].seconds(
            component, part
        ),
    )


def _of_traffic(name: str, words: str, *, within: bool) -> _Term:
    """Compare the transfer of all calls whose bytes are known with their price, hidden or not."""

    def calls(expected: Expectation, terms: RankTerms) -> list[tuple[float, float]]:
        found = []
        for one in terms.traffic:
            if one.axis is None or one.bytes <= 0 or moved_in_domain(expected, one.axis) is not within:
                continue
            price = expected.transfer_s(one.axis, one.kind, one.bytes / one.calls)
            if price is not None:
                found.append((one.transfer_ns * 1e-9 / terms.steps, price * one.calls / terms.steps))
        return found

    # the measured seconds are of the same calls, whatever the constants
    kept: dict[int, float] = {}

    def predicted(expected: Expectation, terms: RankTerms) -> float:
        pairs = calls(expected, terms)
        kept[terms.rank] = sum(pair[0] for pair in pairs)
        return sum(pair[1] for pair in pairs)

    return _Term(
        name=name, words=words, measured_s=lambda terms: kept.get(terms.rank, 0.0), predicted_s=predicted
    )


def _fit(
    term: _Term,
    ranks: Sequence[RankTerms],
    reprice: Reprice,
    values: Mapping[str, float],
    expected: Expectation,
) -> TermFit | None:
    """Find the value at which the prediction of the middle rank is what was measured; None without a term."""
    known = parameter(term.name)
    present = values.get(term.name, known.value)
    before = [term.predicted_s(expected if not values else reprice(values), terms) for terms in ranks]
    measured = [term.measured_s(terms) for terms in ranks]
    least_s = LEAST_SHARE * expected.step_s
    pairs = zip(measured, before, strict=True)
    ratios = [math.log(now / was) for now, was in pairs if now > 0 and was > least_s]
    if not ratios:
        return None
    low, high = known.bounds
    at = [place for place, was in enumerate(before) if was > 0]
    wanted = median(ratios)

    def off(value: float) -> float:
        """Log of predicted over measured at a value, in the middle of the ranks."""
        priced = reprice({**values, term.name: value})
        logs = [math.log(max(term.predicted_s(priced, ranks[place]), 1e-12) / before[place]) for place in at]
        return median(logs) - wanted

    near = known.clipped(present * 1.05)
    near = known.clipped(present / 1.05) if near == present else near
    slope = (off(near) + wanted) / math.log(near / present) if near != present else 0.0
    spread = pstdev(ratios) / math.sqrt(len(ratios)) if len(ratios) > 1 else 0.0
    sigma = math.hypot(LEAST_SPREAD, spread) / abs(slope) if slope else math.inf
    prior = PRIOR_SIGMA.get(term.name.partition(".")[0], math.log(high / max(low, 1e-9)) / 4)
    reason = "" if sigma < prior else "the term hardly follows it, so the profile tells less than was known"
    value = present if reason else _solved(off, low, high, present)
    if not reason and min(abs(math.log(value / bound)) for bound in (max(low, 1e-12), high)) < AT_BOUND:
        reason = "it stands at the bound of its source, and the rest of the term stays unexplained"
    after = term.predicted_s(reprice({**values, term.name: value}), ranks[at[0]])
    return TermFit(
        name=term.name,
        term=term.words,
        present=present,
        value=value,
        sigma=min(sigma, 10.0),
        measured_s=measured[at[0]],
        before_s=before[at[0]],
        after_s=after,
        taken=sigma < prior,
        reason=reason,
    )


def _solved(off: Callable[[float], float], low: float, high: float, present: float) -> float:
    """Return the value within bounds at which ``off`` is least, by bisection of its sign in logarithms."""
    low = max(low, present / 100, 1e-9)
    at_low, at_high = off(low), off(high)
    if at_low * at_high > 0:
        return low if abs(at_low) < abs(at_high) else high
    for _ in range(STEPS):
        middle = math.sqrt(low * high)
        here = off(middle)
        low, high, at_low = (middle, high, here) if here * at_low > 0 else (low, middle, at_low)
    return math.sqrt(low * high)
