"""Pairs inside the tables of measured runs that differ in one switch, recomputation or precision; all pairs as a page."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

from checks.pairs import Effect, effects, figures, pair_rows
from checks.published import read_runs
from layoutopt.optimizer.evidence.cases import build_cases
from layoutopt.optimizer.evidence.predict import price
from layoutopt.optimizer.specs.layout import Recompute
from layoutopt.optimizer.specs.vocabulary import Fp8Recipe, Precision

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from layoutopt.optimizer.evidence.case import Case


def effects_in_tables() -> tuple[Effect, ...]:
    """Return the runs of a publication that state everything and differ from its first such run in one axis alone.

    What ``ab.csv`` has too is left out here. These runs were in the fit of the constants.
    """
    known = {float(row[name]) for row in pair_rows() for name in FIGURES if row[name]}
    groups: dict[str, list[Case]] = defaultdict(list)
    for case in build_cases(read_runs())[0]:
        if case.measured_s is not None and case.complete:
            groups[repr(_rest(case))].append(case)
    return tuple(
        _effect(first, second, axis)
        for first, *others in groups.values()
        for second in others
        if (axis := _changed(first, second)) and not known & {*_figures(second)}
    )


FIGURES = ("step_time_s", "tflops_gpu", "tokens_s_gpu")


def _figures(case: Case) -> tuple[float | None, ...]:
    return tuple(getattr(case.run, name) for name in FIGURES)


def _rest(case: Case) -> tuple[object, ...]:
    """Return everything of a case but what a pair's arms may differ in."""
    layout = replace(case.layout, recompute=Recompute(), precision=Precision.BF16, stages=())
    training = replace(case.training, precision=Precision.BF16, fp8_recipe=Fp8Recipe.DELAYED)
    return case.run.source, case.framework, case.software, case.model, case.cluster, layout, training


def _changed(first: Case, second: Case) -> str:
    """Name the one thing that two cases differ in; empty where it is none or several."""
    names = sorted({*first.switches, *second.switches})
    found = [name for name in names if first.switches.get(name) != second.switches.get(name)]
    if first.layout.recompute != second.layout.recompute:
        found.append("recompute")
    formats = [(one.training.precision, one.training.fp8_recipe) for one in (first, second)]
    if formats[0] != formats[1]:
        found.append("precision")
    return found[0] if len(found) == 1 else ""


def _effect(first: Case, second: Case, axis: str) -> Effect:
    assert first.measured_s is not None
    assert second.measured_s is not None
    return Effect(
        pair=first.run.id,
        switch=axis,
        value=_words(second, axis),
        measured=second.measured_s / first.measured_s,
        predicted=price(second).step_time_s / price(first).step_time_s,
    )


def _words(case: Case, axis: str) -> str:
    if axis == "precision":
        return case.training.precision.value
    if axis == "recompute":
        return "+".join(case.layout.recompute.modules) or case.layout.recompute.granularity.value
    return str(case.switches.get(axis, "as the trainer has it"))


def lines() -> Iterator[str]:
    """Write all pairs: what was measured, what is predicted, and why the others are not counted."""
    apart, inside = effects(), effects_in_tables()
    yield "## Pairs that differ in one switch"
    yield ""
    yield "Step time of the changed run over that of its baseline: `tests/data/evidence/ab.csv`, published as pairs, and"
    yield "the pairs inside the tables of runs (which were in the fit). Sign: of effects above 3%, predicted to help where"
    yield "they helped."
    yield ""
    yield "| pairs | effects | median miss | above 3% | sign right |"
    yield "|---|---|---|---|---|"
    for name, listed in (
        ("published as pairs", apart),
        ("inside the tables", inside),
        ("all", (*apart, *inside)),
    ):
        own = figures(listed)
        yield (
            f"| {name} | {own['effects']:.0f} | {own['median_miss']:.3f} | {own['large']:.0f} "
            f"| {100 * own['sign_right']:.0f}% |"
        )
    yield ""
    yield "Wrong in sign: Qwen3-30B's expert overlap and one dispatcher of Kimi K2 on EFA, whose ranks wait for each other's"
    yield "virtual hosts at every exchange, which nothing here prices; HybridEP on GB200 beside merged passes, whose fused"
    yield "permutation is priced as won; block-scaled against tensor-scaled 8 bits of an 8B model on Blackwell, whose"
    yield "multiplications are priced as equally fast: their casts and weights, which are, come out even."
    yield ""
    yield from _table([one for one in (*apart, *inside) if one.counted])
    yield ""
    yield "Not counted, with what would be predicted where it can be:"
    yield ""
    yield from _table([one for one in apart if not one.counted])
    yield ""


def _table(listed: Sequence[Effect]) -> Iterator[str]:
    reasons = any(one.reason for one in listed)
    yield "| pair | switch | changed to | measured | predicted |" + (" reason |" if reasons else "")
    yield "|---|---|---|---|---|" + ("---|" if reasons else "")
    for one in listed:
        numbers = ("-" if value is None else f"{value:.3f}" for value in (one.measured, one.predicted))
        cells = [one.pair, one.switch, one.value, *numbers, *([one.reason] if reasons else [])]
        yield f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"
