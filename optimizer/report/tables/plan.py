"""A solved plan on the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group
from rich.text import Text

from layoutopt.optimizer.report.tables.answer import layout_section, price_sections, question_text
from layoutopt.optimizer.report.tables.console import bullets, facts, grid, section, verdict_text
from layoutopt.optimizer.report.tables.honesty import honesty_section, tie_words
from layoutopt.optimizer.report.tables.proof import gap_words, proof_table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from layoutopt.optimizer.evidence.honesty import Honesty
    from layoutopt.optimizer.frameworks.preset import FrameworkPreset
    from layoutopt.optimizer.solve.plan import Infeasibility, Plan
    from layoutopt.optimizer.solve.search.second import Second
    from layoutopt.optimizer.specs.cluster import ClusterSpec
    from layoutopt.optimizer.specs.workload import Workload

MEANING = {
    "optimal": "No layout of the declared space is faster under this cost model.",
    "within_gap": "No layout of the declared space is faster by more than the gap that was asked for.",
    "stopped": "The search was stopped before the proof.",
    "infeasible": "No layout of the declared space runs.",
}


def plan_tables(
    plan: Plan,
    workload: Workload,
    cluster: ClusterSpec,
    preset: FrameworkPreset,
    *,
    framework: str,
    honesty: Honesty | None = None,
) -> RenderableType:
    """Show the answer, what it costs, why it is the best, what comes close, and how sure all that is."""
    parts: list[RenderableType] = [question_text(workload, cluster, framework), _headline(plan)]
    if plan.infeasibility is not None:
        parts.append(_infeasibility(plan.infeasibility))
    if plan.layout is not None and plan.estimate is not None:
        parts.append(layout_section(plan.layout))
        parts.extend(price_sections(plan.layout, plan.estimate, preset, workload))
    parts.extend(_remarks(plan, cluster, honesty))
    if honesty is not None:
        parts.append(honesty_section(honesty))
    parts.append(section("Proof", proof_table(plan)))
    return Group(*parts)


def _headline(plan: Plan) -> Text:
    """Status, step time and gap on one line."""
    line = Text.assemble(verdict_text(plan.status.value))
    if plan.estimate is not None:
        line.append(f": {plan.estimate.step_time_s:.6g} s per step", style="bold")
        gap = gap_words(plan.gap)
        if plan.status.value != "optimal" or gap != "none":
            line.append(f", proven within {'rounding' if gap == 'none' else gap}")
    elif plan.infeasibility is None:
        line.append(": no layout was found", style="bold")
    if plan.verdict is not None and plan.verdict.value != "fits":
        line.append(", memory ").append_text(verdict_text(plan.verdict.value))
    return line.append(f"\n{meaning(plan)}")


def meaning(plan: Plan) -> str:
    """Say what the status means, and what the layout had to meet."""
    words, asked = MEANING[plan.status.value], demanded(plan)
    if not asked:
        return words
    return words.replace("layout of the declared space", f"layout of the declared space that meets {asked}")


def demanded(plan: Plan) -> str:
    """Name what a question demands of its answer; empty where nothing is."""
    texts = list(plan.inputs["space"].get("require", ()))
    if "constrain" in plan.inputs:
        texts.append(f"the function {plan.inputs['constrain']}")
    return ", ".join(texts)


def second_words(second: Second) -> str:
    """Say what the second goal came to, and among which layouts."""
    among = f"that is up to {second.within:.2%} slower" if second.within else "as fast as the fastest"
    value, first = (f"{number:,.6g} {second.unit}".strip() for number in (second.value, second.first_value))
    proof = f"none {among} is better" if second.proven else "stopped before the proof"
    beside = "" if value == first else f" instead of {first}"
    return f"second goal {second.name}: {value}{beside}; {proof} ({second.tuples:,} tuples are near enough)"


def _infeasibility(found: Infeasibility) -> RenderableType:
    return section("Why", Text(found.message), facts(infeasibility_pairs(found)))


def infeasibility_pairs(found: Infeasibility) -> list[tuple[str, str]]:
    """Return names and values of what binds and what would fit."""
    pairs = [("binds", found.binding)]
    if found.least_bytes is not None:
        pairs.append(("least memory", f"{found.least_bytes / 1e9:.1f} GB per GPU that any layout needs"))
    if found.capacity_bytes is not None:
        pairs.append(("usable", f"{found.capacity_bytes / 1e9:.1f} GB per GPU"))
    if found.fewest_gpus is not None:
        pairs.append(("fewest GPUs", f"{found.fewest_gpus:,} of this kind fit"))
    if found.conflict:
        pairs.append(("conflict", _conflict_words(found.conflict)))
    return pairs


def _conflict_words(constraints: tuple[str, ...]) -> str:
    """Say which constraints exclude every layout together; without any one of them some layout is left."""
    if len(constraints) == 1:
        return f"{constraints[0]} alone excludes every layout"
    return f"{', '.join(constraints[:-1])} and {constraints[-1]} exclude every layout together"


def _remarks(plan: Plan, cluster: ClusterSpec, honesty: Honesty | None) -> Iterator[RenderableType]:
    """What binds, near-ties, idle GPUs, what a freer framework would gain, warnings."""
    if plan.binds:
        yield section("What binds", bullets(plan.binds))
    if plan.alternatives:
        ties = honesty.ties if honesty is not None else (None,) * len(plan.alternatives)
        rows = [
            (f"+{other.slower:.2%}", f"{other.estimate.step_time_s:.6g}", other.why + tie_words(tie))
            for other, tie in zip(plan.alternatives, ties, strict=True)
        ]
        yield section("Next best", grid(["slower", "step s", "differs in, and loses by"], rows, left=(2,)))
    notes = plan_notes(plan, cluster)
    if notes:
        yield section("Notes", bullets(notes))


def plan_notes(plan: Plan, cluster: ClusterSpec) -> list[str]:
    """Return remarks on idle GPUs and on what a freer framework would gain, and the warnings."""
    notes = list(plan.warnings)
    if plan.layout is not None and plan.idle_gpus:
        notes.insert(0, f"{plan.idle_gpus:,} of {cluster.gpu_count:,} GPUs stay idle")
    if plan.then is not None:
        notes.insert(0, second_words(plan.then))
    if plan.freer_gain is not None:
        notes.append(_freer_words(plan.freer_gain))
    return notes


def _freer_words(gain: float) -> str:
    if gain < 5e-5:
        return "a trainer without this framework's rules would gain nothing"
    return f"a trainer without this framework's rules could be {gain:.1%} faster (framework any)"
