"""What each term of the cost model is worth: agreement with measured runs without it, constants unchanged."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from layoutopt.optimizer.cost.components import Ablation
from layoutopt.optimizer.cost.constants import constant_table
from layoutopt.optimizer.evidence.metrics import (
    ErrorSummary,
    RankingSummary,
    rank_group,
    relative_error,
    summarize,
    summarize_ranking,
)
from layoutopt.optimizer.evidence.predict import predict, preset_of
from layoutopt.optimizer.evidence.validate import ranked_groups

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from layoutopt.optimizer.cost.components import Component
    from layoutopt.optimizer.evidence.case import Case
    from layoutopt.optimizer.evidence.predict import Prediction


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """One term and how to switch it off: leave out breakdown parts, change constants, or change the case."""

    name: str
    parts: tuple[Component, ...] = ()
    values: Mapping[str, float] = field(default_factory=dict)
    change: Callable[[Case], Case] | None = None

    def step_time_s(self, case: Case, whole: Prediction | None = None) -> float:
        """Return predicted seconds without the term; ``whole``: the prediction with it, if known."""
        changed = self.change(case) if self.change else case
        same = whole is not None and not self.values and changed is case
        result = whole if same else predict(changed, self.values)
        assert result is not None
        return result.step_time_s - sum(result.breakdown_s[part] for part in self.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class AblationRow:
    """Errors by family and ranking without one term (``term`` empty: the whole model)."""

    term: str
    errors: Mapping[str, ErrorSummary]
    ranking: RankingSummary


def _without_head(case: Case) -> Case:
    return replace(case, model=replace(case.model, vocab=1))


def _one_domain(case: Case) -> Case:
    """Put every GPU behind one NVLink switch."""
    gpus = case.cluster.gpu_count
    whole = replace(case.cluster, gpus_per_node=gpus, nics_per_node=gpus, nvlink_domain=gpus, levels=())
    return replace(case, cluster=whole)


def _without_adding(case: Case) -> Case:
    return replace(case, switches={**case.switches, "adds_gradients": False})


def _running_ahead(case: Case) -> Case:
    blocks = preset_of(case).blocking_launches
    return replace(case, switches={**case.switches, "blocking_launches": False}) if blocks else case


_MEMORY_SPEEDS = tuple(
    f"hbm_fraction.{family}" for family in ("volta", "ampere", "hopper", "blackwell", "cdna3")
)

_ATTENTION_HALVES = tuple(name for name in constant_table() if name.startswith("attention_sequence_half."))

TERMS = (
    Term(name="output matrix and loss", change=_without_head),
    Term(name="network below NVLink", change=_one_domain),
    *(Term(name=left_out.value, parts=left_out.components) for left_out in Ablation),
    Term(name="compute slowed by collectives", values={"overlap_slowdown": 0.0}),
    Term(name="memory-bound kernels", values=dict.fromkeys(_MEMORY_SPEEDS, 1e6)),
    Term(name="gradients added by own kernels", change=_without_adding),
    Term(name="launches that block", change=_running_ahead),
    Term(name="casts to 8 bits", values={"cast_traffic": 0.0}),
    Term(
        name="shapes of multiplications",
        values={"gemm_occupancy_exponent": 0.0, "gemm_inner_half": 0.0, "gemm_misaligned": 1.0},
    ),
    Term(
        name="shapes of attention",
        values=dict.fromkeys((*_ATTENTION_HALVES, "attention_head_half"), 0.0),
    ),
    Term(name="small groups of tokens per expert", values={"grouped_gemm_half": 0.0}),
    Term(name="token permutation", values={"permute_passes": 0.0}),
    Term(name="small kernels and gaps", values={"router_small_s": 0.0, "kernel_gap_s": 0.0}),
)
"""Every term that can be switched off alone."""


def ablate(
    cases: Sequence[Case],
    terms: Sequence[Term] = TERMS,
    *,
    progress: Callable[[str], None] | None = None,
) -> list[AblationRow]:
    """Compare timed cases with the whole model, then without each term in turn."""
    timed = [case for case in cases if case.measured_s is not None]
    whole = [predict(case) for case in timed]
    rows = []
    for term in (Term(name=""), *terms):
        if progress is not None:
            progress(term.name)
        rows.append(_row(term, timed, whole))
    return rows


def _row(term: Term, timed: Sequence[Case], whole: Sequence[Prediction]) -> AblationRow:
    seconds = [term.step_time_s(case, known) for case, known in zip(timed, whole, strict=True)]
    pairs = zip(seconds, timed, strict=True)
    errors = [(case.family.value, relative_error(time, case.measured_s or 0.0)) for time, case in pairs]
    families = sorted({family for family, _ in errors})
    groups = [rank_group(group) for group in ranked_groups(timed, dict(enumerate(seconds)))]
    return AblationRow(
        term=term.name,
        errors={name: summarize([error for family, error in errors if family == name]) for name in families},
        ranking=summarize_ranking(groups),
    )
