"""Answers of the Python interface: what a solve, an evaluation, an explanation and a diagnosis come to."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from layoutopt.optimizer.specs.errors import input_error
from layoutopt.optimizer.specs.printable import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console, RenderableType

    from layoutopt.optimizer.cost.estimate import Estimate
    from layoutopt.optimizer.diagnose.cause import Cause
    from layoutopt.optimizer.diagnose.diagnosis import Diagnosis
    from layoutopt.optimizer.diagnose.log_diagnosis import LogDiagnosis
    from layoutopt.optimizer.evidence.honesty import Honesty
    from layoutopt.optimizer.interop.records import ExportedJob
    from layoutopt.optimizer.solve.explain.records import Explanation, WhyNot
    from layoutopt.optimizer.solve.model.cp_model import CpModel
    from layoutopt.optimizer.solve.plan import Judgement, Plan, SolveOptions
    from layoutopt.optimizer.solve.resolve import OpenModel, Resolved
    from layoutopt.optimizer.solve.search.demands import Constrain
    from layoutopt.optimizer.space.options import Value
    from layoutopt.optimizer.specs.cluster import ClusterSpec
    from layoutopt.optimizer.specs.layout import Layout
    from layoutopt.optimizer.specs.partial_layout import PartialLayout
    from layoutopt.optimizer.specs.workload import Workload


@dataclass(frozen=True, kw_only=True)
class Answer(ABC):
    """An answer that shows itself: one line as repr, tables as text and in notebooks."""

    workload: Workload = field(repr=False)
    cluster: ClusterSpec = field(repr=False)
    options: SolveOptions = field(repr=False)

    @abstractmethod
    def _tables(self) -> RenderableType:
        """Return the tables that the command prints."""

    def _printed(self, **how: Any) -> Console:
        """Print the tables nowhere, and return the console, which holds what it was told to keep."""
        from io import StringIO

        from rich.console import Console

        from layoutopt.optimizer.report.tables.console import WIDTH, Printable

        # Names of models and files are no markup, whatever brackets they have.
        target = Console(width=WIDTH, highlight=False, emoji=False, markup=False, file=StringIO(), **how)
        target.print(Printable(self._tables()), crop=False)
        return target

    def __str__(self) -> str:
        # Without colours: print may lead into a file, of which this method knows nothing.
        target = self._printed(no_color=True, force_terminal=False)
        return "\n".join(line.rstrip() for line in target.file.getvalue().splitlines())  # type: ignore[attr-defined]

    def _repr_html_(self) -> str:
        target = self._printed(record=True, force_terminal=True)
        template = '<pre style="line-height:1.3;overflow-x:auto">{code}</pre>'
        return target.export_html(inline_styles=True, code_format=template)

    @property
    def question_line(self) -> str:
        """Return the model and the cluster in a few words."""
        return printable(
            f"{self.workload.model.name} on {self.cluster.gpu_count:,} x {self.cluster.gpu.name}"
        )


@dataclass(frozen=True, kw_only=True, repr=False)
class Result(Answer):
    """The answer of ``solve``. ``plan`` has everything; the properties are its most used parts."""

    plan: Plan

    @property
    def status(self) -> str:
        """``optimal``, ``stopped`` or ``infeasible``."""
        return self.plan.status.value

    @property
    def layout(self) -> Layout | None:
        """The layout, None if nothing fits."""
        return self.plan.layout

    @property
    def estimate(self) -> Estimate | None:
        """Its price."""
        return self.plan.estimate

    @property
    def step_time_s(self) -> float | None:
        """Estimated seconds per optimizer step."""
        return self.plan.estimate.step_time_s if self.plan.estimate else None

    @cached_property
    def honesty(self) -> Honesty | None:
        """How sure the answer is: error band and near-ties that the model can't tell apart; None without a layout."""
        from layoutopt.optimizer.evidence.honesty import assess

        # Near-ties are priced under sets of constants: once, however often an answer is shown.
        return assess(self.plan, self.workload, self.cluster, self.options)

    @cached_property
    def open_model(self) -> OpenModel:
        """The best tuples as one model, with the proven floor of all others; raises InputError without a layout."""
        from layoutopt.optimizer.solve.inputs import Question
        from layoutopt.optimizer.solve.resolve import open_model

        plan = self.plan
        if plan.layout is None or plan.estimate is None:
            raise input_error("there is no layout, so there is no model of one", key="model")
        # Cached, so that what a caller adds to ``model`` is there when ``resolve`` is called.
        question = Question(workload=self.workload, cluster=self.cluster, options=self.options)
        return open_model(question, plan.layout, plan.estimate.step_time_s, bound_s=plan.bound_s or 0.0)

    @property
    def model(self) -> CpModel:
        """The CP-SAT model of the best tuples: add constraints to ``model.model`` over ``model.variables``; ``resolve``."""
        return self.open_model.model

    def resolve(self) -> Resolved:
        """Solve again with the constraints that were added to ``model``: its tuples alone, the others by their bound."""
        return self.open_model.resolve()

    def again(
        self,
        constrain: Constrain | None = None,
        *,
        require: str | Sequence[str] = (),
        then: str | None = None,
    ) -> Result:
        """Ask the same question with more constraints, proven over the whole space: ``result.again(require="tp*cp<=2")``."""
        from layoutopt.optimizer.report.api import solve

        return solve(
            self.workload, self.cluster, options=self.options, constrain=constrain, require=require, then=then
        )

    def explain(self, layout: Layout | PartialLayout | str) -> Reasons:
        """Explain another layout under the same question; this result is its optimum."""
        from layoutopt.optimizer.report.api import explain

        return explain(
            self.workload, self.cluster, layout,
            framework=self.options.framework.value, software=self.options.space.software,
        )  # fmt: skip

    def why_not(self, **fixed: Value | tuple[Value, ...]) -> WhyNot:
        """Say what the best layout with other values costs: ``result.why_not(tp=4)``."""
        from layoutopt.optimizer.solve.explain.api import why_not

        return why_not(self.workload, self.cluster, fixed, self.options, best=self.plan)

    def export(self, to: str, *, release: str | None = None) -> ExportedJob:
        """Write the launch configuration for a trainer; raises InputError for what it can't launch.

        Without ``release``: for the release that was asked about, if that is the trainer's, else for the newest.
        """
        from layoutopt.optimizer.interop.launch.export import export
        from layoutopt.optimizer.interop.launch.target import release_for

        if self.plan.layout is None:
            raise input_error("there is no layout to export", key="export")
        release = release or release_for(to, self.options.framework, self.options.space.software)
        return export(self.plan.layout, self.workload, self.cluster, to, version=release)

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as ``layoutopt solve --json`` prints it."""
        from layoutopt.optimizer.report.json_forms import plan_to_plain

        return plan_to_plain(self.plan, self.honesty)

    def save(self, path: str | Path) -> None:
        """Write the plan for ``layoutopt verify``, ``export`` and ``simulate``."""
        from layoutopt.optimizer.specs.writing import write_json

        write_json(Path(path), self.to_dict(), key="path")

    def __repr__(self) -> str:
        if self.plan.layout is None or self.plan.estimate is None:
            why = self.plan.infeasibility.message if self.plan.infeasibility else "no layout found yet"
            return f"<{self.status}: {self.question_line}: {why}>"
        from layoutopt.optimizer.report.tables.layout import layout_text
        from layoutopt.optimizer.report.tables.proof import gap_words

        step, gap = self.plan.estimate.step_time_s, gap_words(self.plan.gap)
        proof = "proven" if gap == "none" else f"gap {gap}"
        return f"<{self.status}: {self.question_line}: {step:.5g} s per step, {proof}; {layout_text(self.plan.layout)}>"

    def _tables(self) -> RenderableType:
        from layoutopt.optimizer.report.tables.plan import Shown, plan_tables
        from layoutopt.optimizer.solve.run_preset import preset_of_plan

        options, shown = self.options, Shown(python=True)
        preset = preset_of_plan(self.workload, self.cluster, options)
        return plan_tables(
            self.plan, self.workload, self.cluster, preset,
            framework=options.framework.value, honesty=self.honesty, shown=shown,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True, repr=False)
class Evaluation(Answer):
    """The answer of ``evaluate``."""

    judgement: Judgement

    @property
    def verdict(self) -> str:
        """``fits``, ``borderline``, ``does_not_fit`` or ``invalid``."""
        return self.judgement.verdict.value

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why, one line each."""
        return self.judgement.reasons

    @property
    def estimate(self) -> Estimate | None:
        """The price, None where the layout has none."""
        return self.judgement.estimate

    def __repr__(self) -> str:
        priced = self.judgement.estimate
        price = f" {priced.step_time_s:.5g} s per step" if priced else ""
        return f"<{self.verdict}: {self.question_line}:{price}{''.join(f'; {reason}' for reason in self.reasons)}>"

    def _tables(self) -> RenderableType:
        from layoutopt.optimizer.evidence.honesty import assess_layout
        from layoutopt.optimizer.report.tables.answer import judgement_tables
        from layoutopt.optimizer.solve.run_preset import preset_of_plan

        options = self.options
        preset = preset_of_plan(self.workload, self.cluster, options)
        name = options.framework.value
        honesty = assess_layout(
            self.judgement.layout, self.workload, self.cluster, framework=options.framework
        )
        return judgement_tables(
            self.judgement, self.workload, self.cluster, preset, framework=name, honesty=honesty
        )


@dataclass(frozen=True, kw_only=True, repr=False)
class Reasons(Answer):
    """The answer of ``explain``; ``explanation`` has everything."""

    explanation: Explanation

    @property
    def verdict(self) -> str:
        """``fits``, ``borderline``, ``does_not_fit`` or ``invalid``."""
        return self.explanation.judgement.verdict.value

    def __repr__(self) -> str:
        found = self.explanation
        if found.gap is not None:
            first = found.gap.steps[0].changes if found.gap.steps else ()
            most = f"; first {', '.join(first)}" if first else ""
            return f"<{self.verdict}: {self.question_line}: {found.gap.slower:+.1%} over the optimum{most}>"
        helps = f"; {', '.join(found.remedies[0].changes)} helps" if found.remedies else ""
        return f"<{self.verdict}: {self.question_line}{helps}>"

    def _tables(self) -> RenderableType:
        from layoutopt.optimizer.evidence.honesty import assess_layout
        from layoutopt.optimizer.report.tables.explain import explanation_tables

        trainer, found = self.options.framework, self.explanation
        honesty = assess_layout(found.judgement.layout, self.workload, self.cluster, framework=trainer)
        return explanation_tables(
            found, self.workload, self.cluster, framework=trainer.value, honesty=honesty
        )


@dataclass(frozen=True, kw_only=True, repr=False)
class Diagnosed(Answer):
    """The answer of ``diagnose``; ``diagnosis`` has everything."""

    diagnosis: Diagnosis | LogDiagnosis

    @property
    def step_s(self) -> float:
        """Measured seconds per optimizer step."""
        return self.diagnosis.step_s

    @property
    def causes(self) -> tuple[Cause, ...]:
        """Why the step is longer than predicted, the cause that costs most first."""
        return self.diagnosis.causes

    def to_dict(self) -> dict[str, Any]:
        """Return the diagnosis as ``layoutopt diagnose --json`` prints it."""
        from layoutopt.optimizer.report.json_forms import run_diagnosis_to_plain

        return run_diagnosis_to_plain(self.diagnosis)

    def __repr__(self) -> str:
        apart = self.diagnosis.difference
        predicted = f", {apart.predicted_s:.5g} s predicted" if apart else ""
        first = f"; {self.causes[0].words}" if self.causes else ""
        return f"<{self.question_line}: {self.step_s:.5g} s measured{predicted}{first}>"

    def _tables(self) -> RenderableType:
        from layoutopt.optimizer.report.tables.diagnosis import run_diagnosis_tables

        return run_diagnosis_tables(self.diagnosis)
