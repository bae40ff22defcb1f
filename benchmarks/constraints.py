"""Constraints of one's own on real questions: ten for each, proven, against enumeration over ``fix``; second goals.

    python benchmarks/constraints.py

Each requirement over axes is also answered by fixing every combination of the axes that meets it, one solve each, and
``peak_gb`` by taking memory away from every GPU. Requirements over stages are compared with enumeration of every layout
in ``tests/solve/test_search_exhaustive.py``, on small spaces; here their time is measured. Exit code 1 if an answer is not
proven or differs by more than the solver's rounding.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, replace
from itertools import product

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
TOKENS = 15e12
"""Of the whole run, where cost is a goal; the built-in files do not all say."""


@dataclass(frozen=True, slots=True)
class Timed:
    """A plan and the seconds it took."""

    plan: Plan
    seconds: float

    @property
    def step_s(self) -> float:
        """Step time, infinite without a layout."""
        return self.plan.estimate.step_time_s if self.plan.estimate else float("inf")


def timed(question: Question, space: SpaceOptions, **options: object) -> Timed:
    """Solve a question over a space."""
    start = time.perf_counter()
    chosen = replace(question.options, space=space, top=1, **options)  # type: ignore[arg-type]
    plan = solve_layout(question.workload, question.cluster, chosen)
    return Timed(plan, time.perf_counter() - start)


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


def report(text: str, found: Timed, other_s: float | None, solves: int) -> bool:
    """Print a line and tell whether the answer is proven and equal to the other one."""
    proven = found.plan.status in (Status.OPTIMAL, Status.INFEASIBLE)
    same = other_s is None or found.step_s == other_s or abs(found.step_s / other_s - 1) <= NEAR
    words = "" if other_s is None else f"enumeration {other_s:9.5g} s in {solves:3} solves"
    state = "proven" if proven else str(found.plan.status)
    print(
        f"  {text:26} {found.step_s:9.5g} s  {found.seconds:6.2f} s  {state}  {words}{'' if same else '  DIFFERS'}"
    )
    return proven and same


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


@click.command()
@click.argument("models", nargs=-1)
def main(models: tuple[str, ...]) -> None:
    """Ask three questions, or those about MODELS, under ten requirements each."""
    good = True
    for model, cluster in QUESTIONS:
        if models and model not in models:
            continue
        workload = override_training(load_workload(model), total_tokens=TOKENS)
        question = Question(workload=workload, cluster=load_cluster(cluster), options=SolveOptions())
        free = timed(question, SpaceOptions())
        print(f"{model} on {cluster}: {free.step_s:.6g} s, solved in {free.seconds:.2f} s")
        for text, axes in AXES:
            other_s, solves = enumerated_s(question, text, axes)
            good &= report(text, timed(question, SpaceOptions(require=(text,))), other_s, solves)
        lean = timed(less_memory(question, 65.0), SpaceOptions())
        good &= report(MEMORY, timed(question, SpaceOptions(require=(MEMORY,))), lean.step_s, 1)
        for text in STAGES:
            good &= report(text, timed(question, SpaceOptions(require=(text,))), None, 0)
        for goal, within in (("memory", 0.0), ("memory", 0.01), ("cost", 0.01)):
            good &= second_goal(question, goal, within)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
