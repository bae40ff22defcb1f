"""Constraints of one's own on real questions: ten for each, proven, against enumeration over ``fix``; second goals.

    python benchmarks/constraints.py [MODEL...] [--only TEXT] [--renew]

Each requirement over axes is also answered by fixing every combination of the axes that meets it, one solve each, and
``peak_gb`` by taking memory away from every GPU. Requirements over stages are compared with enumeration of every layout
in ``tests/solve/test_search_exhaustive.py``, on small spaces; here their CPU time is measured, as a multiple of that of the
same question without requirements. Exit code 1 if an answer is not proven, differs by more than the solver's rounding,
takes three times the multiple of ``constraints_baseline.json``, or has none there.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import click
import numpy as np

from layoutopt.optimizer.solve.api import solve_layout
from layoutopt.optimizer.solve.certificate import Status
from layoutopt.optimizer.solve.inputs import Question
from layoutopt.optimizer.solve.plan import Plan, SolveOptions
from layoutopt.optimizer.space.options import SpaceOptions
from layoutopt.optimizer.specs.loading import load_cluster, load_workload, override_training

QUESTIONS = (("llama3-70b", "h100x64"), ("mixtral-8x7b", "h100x64"), ("llama3-405b", "h100x512"))
AXES = (
    ("tp*cp <= 2", ("tp", "cp")),
    ("tp == 4", ("tp",)),
    ("tp*pp <= 16", ("tp", "pp")),
    ("pp*vp <= 8", ("pp", "vp")),
    ("dp >= 2*tp", ("dp", "tp")),
    ("micro_batch*cp >= 2", ("micro_batch", "cp")),
    ("tp + pp <= 9", ("tp", "pp")),
    ("vp % 3 == 1", ("vp",)),
    ("ep*tp != 8", ("ep", "tp")),
)
"""Requirements, and the axes that decide them."""

MEMORY = "peak_gb <= 65"
STAGES = ("layers[0] <= 5", "layers[0] <= layers[-1]", "tp*layers[0] <= 24", "recomputed[0] <= 1")
NEAR = 1e-6
LONGER = 3.0
BASELINE = Path(__file__).with_name("constraints_baseline.json")
TOKENS = 15e12
"""Of the whole run, where cost is a goal; the built-in files do not all say."""


@dataclass(frozen=True, slots=True)
class Timed:
    """A plan and the CPU seconds it took."""

    plan: Plan
    seconds: float

    @property
    def step_s(self) -> float:
        """Step time, infinite without a layout."""
        return self.plan.estimate.step_time_s if self.plan.estimate else float("inf")


def timed(question: Question, space: SpaceOptions, **options: object) -> Timed:
    """Solve a question over a space."""
    start = time.process_time()
    chosen = replace(question.options, space=space, top=1, **options)  # type: ignore[arg-type]
    plan = solve_layout(question.workload, question.cluster, chosen)
    return Timed(plan, time.process_time() - start)


def enumerated_s(question: Question, text: str, axes: tuple[str, ...]) -> tuple[float, int]:
    """Fix every combination of values that meets a requirement and return the least step time, and the solves."""
    rows = question.costed_space().degrees
    known = {axis: np.unique(getattr(rows, axis)).tolist() for axis in axes}
    least, solves = float("inf"), 0
    for values in product(*(known[axis] for axis in axes)):
        named = dict(zip(axes, values, strict=True))
        if eval(text, {}, dict(named)):
            fixed = SpaceOptions(fix={axis: (value,) for axis, value in named.items()})
            least, solves = min(least, timed(question, fixed).step_s), solves + 1
    return least, solves


def less_memory(question: Question, gigabytes: float) -> Question:
    """Reserve so much memory of every GPU that tensors may take no more than a number of GB."""
    source = question.costed_space()
    usable = float(source.terms(source.degrees.take(np.array([0]))).capacity_bytes[0])
    factor = 1 + source.cost.preset.allocator_reserve
    reserve = question.cluster.reserve_bytes + (usable - gigabytes * 1e9) * factor
    return replace(question, cluster=replace(question.cluster, reserve_bytes=reserve))


@dataclass(frozen=True, slots=True)
class Asker:
    """A question with its free answer, and the multiples of its time that requirements took before and take now."""

    question: Question
    free: Timed
    before: dict[str, float]
    now: dict[str, float]
    renew: bool

    def ask(self, text: str, other_s: float | None, solves: int) -> bool:
        """Print a line about a requirement and tell whether the answer is proven, equal to the other one, and in time."""
        found = timed(self.question, SpaceOptions(require=(text,)))
        proven = found.plan.status in (Status.OPTIMAL, Status.INFEASIBLE)
        same = other_s is None or found.step_s == other_s or abs(found.step_s / other_s - 1) <= NEAR
        multiple = found.seconds / self.free.seconds
        self.now[text] = round(multiple, 2)
        known = self.renew or text in self.before
        in_time = self.renew or multiple <= LONGER * max(self.before.get(text, multiple), 1.0)
        words = "" if other_s is None else f"enumeration {other_s:9.5g} s in {solves:3} solves"
        state = "proven" if proven else str(found.plan.status)
        faults = ("" if same else "  DIFFERS") + ("" if in_time else "  SLOWER THAN BEFORE")
        faults += "" if known else "  NOT IN THE BASELINE"
        print(
            f"  {text:26} {found.step_s:9.5g} s  {multiple:5.2f} times  {state}  {words}{faults}", flush=True
        )
        return proven and same and in_time and known


def second_goal(question: Question, goal: str, within: float) -> bool:
    """Print what a second goal brings among layouts near the fastest."""
    found = timed(question, SpaceOptions(gpu_hour_cost=2.0), then=goal, within=within)
    second = found.plan.then
    if second is None:
        return False
    print(
        f"  --then {goal} --within {within:.0%}: {second.value:.6g} {second.unit} instead of {second.first_value:.6g}, "
        f"{found.step_s:.6g} s, {second.tuples} tuples near enough, {found.seconds:.2f} s"
    )
    return second.proven


@click.command(help=__doc__)
@click.argument("models", nargs=-1)
@click.option("--only", default="", help="Ask only requirements and goals that contain this text.")
@click.option("--renew", is_flag=True, help="Write the multiples as the new baseline.")
def main(models: tuple[str, ...], only: str, renew: bool) -> None:
    """Ask three questions, or those about MODELS, under ten requirements each."""
    good, baseline = True, json.loads(BASELINE.read_text(encoding="utf-8")) if BASELINE.exists() else {}
    for model, cluster in QUESTIONS:
        if models and model not in models:
            continue
        workload = override_training(load_workload(model), total_tokens=TOKENS)
        question = Question(workload=workload, cluster=load_cluster(cluster), options=SolveOptions())
        free, name = timed(question, SpaceOptions()), f"{model} on {cluster}"
        print(f"{name}: {free.step_s:.6g} s, solved in {free.seconds:.2f} CPU s", flush=True)
        asker = Asker(question, free, baseline.get(name, {}), {}, renew)
        for text, axes in AXES:
            if only in text:
                good &= asker.ask(text, *enumerated_s(question, text, axes))
        if only in MEMORY:
            good &= asker.ask(MEMORY, timed(less_memory(question, 65.0), SpaceOptions()).step_s, 1)
        for text in STAGES:
            if only in text:
                good &= asker.ask(text, None, 0)
        for goal, within in (("memory", 0.0), ("memory", 0.01), ("cost", 0.01)):
            if only in goal:
                good &= second_goal(question, goal, within)
        baseline[name] = asker.before | asker.now
    if renew:
        BASELINE.write_text(json.dumps(baseline, indent=1) + "\n", encoding="utf-8")
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
