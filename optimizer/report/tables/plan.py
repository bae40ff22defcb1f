"""A solved plan on the terminal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Group
from rich.text import Text

from layoutopt.optimizer.frameworks.registry import Framework, framework_named
from layoutopt.optimizer.report.tables.answer import layout_section, price_sections
from layoutopt.optimizer.report.tables.console import bullets, facts, section, verdict_text
from layoutopt.optimizer.report.tables.honesty import claim_size_words, honesty_section, tie_words
from layoutopt.optimizer.report.tables.proof import gap_words, proof_table
from layoutopt.optimizer.report.tables.short import answer_table, step_words, ties_section
from layoutopt.optimizer.space.requirement import parse_requirement

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from layoutopt.optimizer.cost.estimate import Estimate
    from layoutopt.optimizer.evidence.honesty import Honesty
    from layoutopt.optimizer.frameworks.preset import FrameworkPreset
    from layoutopt.optimizer.solve.plan import Infeasibility, Plan, Suggestion
    from layoutopt.optimizer.solve.search.best_by import ObjectiveAnswer
    from layoutopt.optimizer.solve.search.second import Second
    from layoutopt.optimizer.specs.cluster import ClusterSpec
    from layoutopt.optimizer.specs.workload import Workload

MEANING = {
    "optimal": "No layout of the declared space is faster under this cost model.",
    "within_gap": "No layout of the declared space is faster by more than the gap that was asked for.",
    "stopped": "The search was stopped before the proof.",
    "infeasible": "No layout of the declared space runs.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """How an answer is shown: all of it or one screen, and by which name its plan, if written, and its options go."""

    verbose: bool = False
    file: str | None = None
    python: bool = False


ONE_SCREEN = Shown()


def plan_tables(
    plan: Plan,
    workload: Workload,
    cluster: ClusterSpec,
    preset: FrameworkPreset,
    *,
    framework: str,
    honesty: Honesty | None = None,
    shown: Shown = ONE_SCREEN,
) -> RenderableType:
    """Show the answer on one screen, and with ``shown.verbose`` also where its time and memory go, and the proof."""
    parts: list[RenderableType] = [
        _headline(plan, honesty),
        answer_table(plan.layout, plan.estimate, workload, cluster, framework, plan.switches_worth),
    ]
    if plan.infeasibility is not None:
        parts.append(_infeasibility(plan.infeasibility))
    if plan.alternatives:
        parts.append(ties_section(plan, honesty))
    parts.extend(_notes(plan, cluster, honesty))
    if honesty is not None:
        parts.append(honesty_section(honesty, brief=not shown.verbose))
    steps = next_lines(plan, honesty, framework, shown)
    if steps:
        parts.append(section("Next", bullets(steps)))
    if shown.verbose:
        parts.extend(_details(plan, workload, preset, honesty))
    return Group(*parts)


def _headline(plan: Plan, honesty: Honesty | None) -> Text:
    """Status, step time with its interval, gap and memory on one line; what had to be met on the next."""
    line = Text.assemble(verdict_text(plan.status.value))
    line.append(" under this cost model" if plan.status.value == "optimal" else "")
    if plan.estimate is not None:
        line = step_words(line, plan.estimate, honesty)
        gap = gap_words(plan.gap)
        # Of an optimal answer the gap is the rounding of the solver's integers, which is no news.
        if plan.status.value != "optimal" or gap != "none":
            line.append(f", proven within {'rounding' if gap == 'none' else gap}")
    elif plan.infeasibility is None:
        line.append(": no layout was found", style="bold")
    if plan.verdict is not None and plan.verdict.value != "fits":
        line.append(", memory ").append_text(verdict_text(plan.verdict.value))
    if plan.status.value == "optimal" and not demanded(plan):
        return line  # the first words say it: the second line is for what is not the usual case
    return line.append(f"\n{meaning(plan)}")


def next_lines(plan: Plan, honesty: Honesty | None, framework: str, shown: Shown) -> list[str]:
    """Say what to do with the answer, and what would make it surer or roomier."""
    if plan.infeasibility is not None:
        return [suggestion_words(one, python=shown.python) for one in plan.infeasibility.suggestions]
    if plan.layout is None or plan.estimate is None:
        return []
    lines = [_launch_line(framework, shown)]
    if plan.verdict is not None and plan.verdict.value == "borderline":
        lines.append(_roomier_line(plan, plan.estimate, shown))
    open_ties = [tie for tie in honesty.ties if not tie.distinguishable] if honesty else []
    if open_ties:
        lines.append(f"to tell it from the next best: {open_ties[0].measurement}")
    return lines


def _roomier_line(plan: Plan, estimate: Estimate, shown: Shown) -> str:
    """Say what memory to spare costs, and how to ask for it."""
    free = 1 - estimate.memory.borderline_bytes / estimate.memory.capacity_bytes
    limit = f"peak_gb<={int(estimate.memory.borderline_bytes / 1e8) / 10}"  # rounded down
    option = f'result.again(require="{limit}")' if shown.python else f"--reserve {free:.0%}"
    other = plan.comfortable
    if other is None:
        return f"the fastest with {free:.0%} of memory free: {option}"
    return f"with {free:.0%} of memory free at most {other.slower:+.1%}; the fastest such layout, proven: {option}"


def suggestion_words(one: Suggestion, *, python: bool = False) -> str:
    """Write a suggestion as the caller would give it."""
    # A suggestion may open several savers, which are one option each.
    values = one.value.split("+")
    if python:
        return f"{one.option} {', '.join(values)}: {one.effect}"
    name = f"--{one.option.replace('_', '-')}"
    return f"{' '.join(f'{name} {value}' for value in values)}: {one.effect}"


def _launch_line(framework: str, shown: Shown) -> str:
    """Say how the answer becomes files that start it, and how its proof is checked."""
    known = framework_named(framework)
    target = framework if known.record.exports is not None else "TRAINER"
    if target == "TRAINER" and known is not Framework.ANY:
        file = shown.file or "plan.json"
        saved = (
            'result.save("plan.json"): the plan for' if shown.python else "" if shown.file else f"-o {file}; "
        )
        return f"there is no exporter for {framework}; {saved} layoutopt verify {file}: proof".replace(
            "  ", " "
        )
    if shown.python:
        return f'result.export("{target}") writes launch files, result.save("plan.json") the plan for layoutopt verify'
    file = shown.file or "plan.json"
    first = "" if shown.file else f"-o {file}; "
    return f"{first}layoutopt export {file} --to {target}: launch files; verify {file}: proof"


def _details(
    plan: Plan, workload: Workload, preset: FrameworkPreset, honesty: Honesty | None
) -> Iterator[RenderableType]:
    """Stages, components of time and memory, what binds, every near-tie's measurement, and the proof."""
    if plan.layout is not None and plan.estimate is not None:
        yield layout_section(plan.layout)
        yield from price_sections(plan.layout, plan.estimate, preset, workload)
    if plan.binds:
        yield section("What binds", bullets(plan.binds))
    if honesty is not None and honesty.ties:
        lines = [
            f"{other.why}{tie_words(tie)}" for other, tie in zip(plan.alternatives, honesty.ties, strict=True)
        ]
        yield section("What tells near-ties apart", bullets(lines))
    # An infeasible answer would have a proof of zeros: why nothing fits stands above.
    if plan.layout is not None or plan.infeasibility is None:
        yield section("Proof", proof_table(plan))


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


def outcome_words(outcome: ObjectiveAnswer) -> str:
    """Say what an objective came to, and what the fastest layout comes to."""
    value, first = (_in_unit(number, outcome.unit) for number in (outcome.value, outcome.first_value))
    beside = "the fastest layout too" if value == first else f"the fastest layout: {first}"
    proof = "no layout is better" if outcome.proven else f"at least {_in_unit(outcome.bound, outcome.unit)}"
    over = f" over {outcome.samples} sets of constants" if outcome.samples else ""
    words = f"{outcome.name} {value} ({outcome.meaning}{over}): {proof}; {beside}"
    if outcome.mean_regret is not None:
        words += f"; regret {outcome.mean_regret:.2%} in the mean, {outcome.worst_regret:.2%} at worst"
    return words if outcome.why is None else f"{words}; {outcome.why}"


def _in_unit(value: float, unit: str) -> str:
    return f"{value:,.6g} {unit}".strip()


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


def _notes(plan: Plan, cluster: ClusterSpec, honesty: Honesty | None) -> Iterator[RenderableType]:
    notes = plan_notes(plan, cluster, honesty)
    if notes:
        yield section("Notes", bullets(notes))


def plan_notes(plan: Plan, cluster: ClusterSpec, honesty: Honesty | None = None) -> list[str]:
    """Return remarks on idle GPUs and on what a freer framework would gain, and the warnings."""
    # Each is put in front: goals come first, then idle GPUs, then what limits the answer.
    notes = [*plan.warnings, *_absent_ranks(plan, cluster.gpu_count)]
    if plan.layout is not None and plan.idle_gpus:
        notes.insert(0, f"{plan.idle_gpus:,} of {cluster.gpu_count:,} GPUs stay idle")
    if plan.outcome is not None:
        notes.insert(0, outcome_words(plan.outcome))
        if plan.outcome.name == "gpus" and plan.inputs["space"].get("allow_idle") is None:
            notes.insert(1, "every layout uses all GPUs: --allow-idle 50% lets up to half of them stay idle")
    if plan.then is not None:
        notes.insert(0, second_words(plan.then))
    if plan.freer_gain is not None:
        notes.append(_freer_words(plan.freer_gain, honesty))
    return notes


def _absent_ranks(plan: Plan, gpus: int) -> Iterator[str]:
    """Name requirements on pipeline ranks that so many GPUs never have: they count no layer there."""
    for text in plan.inputs["space"].get("require", ()):
        for rank in sorted(parse_requirement(text).ranks):
            if not -gpus <= rank < gpus:
                yield f"{text}: no layout on {gpus:,} GPUs has a pipeline rank {rank}, where 0 layers are counted"


def _freer_words(gain: float, honesty: Honesty | None) -> str:
    if gain < 5e-5:
        return "a trainer without this framework's rules would gain nothing"
    words = f"a trainer without this framework's rules could be {gain:.1%} faster (framework any)"
    return words if honesty is None else f"{words}; {claim_size_words(gain, honesty.band)}"
