"""The page of a diagnosis: measured over predicted, from one step to the other, ranks, and the step over time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from layoutopt.optimizer.cost.components import Component
from layoutopt.optimizer.diagnose.diagnosis import answers, slowest_words
from layoutopt.optimizer.diagnose.log_diagnosis import LogDiagnosis, answers_of_log
from layoutopt.optimizer.diagnose.parts import Activity
from layoutopt.optimizer.diagnose.timeline import tracks
from layoutopt.optimizer.diagnose.unexplained import without_cause
from layoutopt.optimizer.report.html.chart import Chart, Figure, Section, axis, layout, named_bars, render
from layoutopt.optimizer.report.html.markup import Markup, Table, bullets, element, joined
from layoutopt.optimizer.report.html.page import page, tiles
from layoutopt.optimizer.report.html.palette import variable
from layoutopt.optimizer.specs.units import counted, format_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from layoutopt.optimizer.diagnose.cause import Cause
    from layoutopt.optimizer.diagnose.diagnosis import Diagnosis
    from layoutopt.optimizer.diagnose.difference import Compared, StepDifference

LEAST_SHARE = 0.002
"""Terms below this share of the step are in the tables only."""


def diagnosis_page(found: Diagnosis | LogDiagnosis, model: str) -> str:
    """Write the page; raises ``InputError`` when the plotting library is not installed."""
    apart: StepDifference[Any] | None = found.difference
    numbers = [("measured step", format_seconds(found.step_s if apart is None else apart.measured_s))]
    charts: list[Chart] = []
    sections: list[Section] = []
    if apart is not None:
        numbers += [
            ("predicted step", format_seconds(apart.predicted_s)),
            ("measured over predicted", f"{apart.measured_s / apart.predicted_s:.3f}"),
        ]
        charts += [bars_chart(apart), waterfall_chart(apart)]
        sections.append(Section(title="Causes", blocks=[_causes(found.causes, apart)]))
    if isinstance(found, LogDiagnosis):
        subject, lines = f"log of {found.profile.trainer}, {found.profile.steps_words}", answers_of_log(found)
    else:
        ranks, steps = counted(len(found.ranks), "rank"), counted(found.ranks[0].steps, "step")
        subject, lines = f"{ranks}, {steps}", answers(found)
        charts += [ranks_chart(found), time_chart(found)]
    sections.append(Section(title="The step", blocks=[render(chart) for chart in charts]))
    lead = [tiles(numbers), bullets([*lines, *(f"open: {note}" for note in found.notes)])]
    return page(f"{model}: a run against its plan", subject, lead, sections)


def _causes(causes: Sequence[Cause], apart: StepDifference[Any]) -> Markup:
    if not causes:
        return element("p", f"{_sentence(without_cause(apart))}.")
    return joined(
        joined(
            (
                element("p", element("b", cause.words), f": {format_seconds(cause.seconds)} of a step"),
                bullets([*cause.evidence, *([f"try: {cause.remedy}"] if cause.remedy else [])]),
            )
        )
        for cause in causes
    )


def _sentence(words: str) -> str:
    return f"{words[0].upper()}{words[1:]}"


def _shown(apart: StepDifference[Any]) -> list[Compared]:
    least_s = LEAST_SHARE * apart.measured_s
    return [row for row in apart.rows if max(row.measured_s, row.predicted_s) > least_s]


def _terms_table(apart: StepDifference[Any]) -> Table:
    rows = [
        [
            row.words,
            format_seconds(row.predicted_s),
            format_seconds(row.measured_s),
            f"{row.gap_s:+.3g} s",
        ]
        for row in apart.rows
        if row.measured_s or row.predicted_s
    ]
    return Table(columns=["component", "predicted", "measured", "gap"], rows=rows)


def bars_chart(apart: StepDifference[Any]) -> Chart:
    """Draw both steps as stacked bars on one time axis, the measured one above."""
    shown = _shown(apart)
    data = [
        {
            "type": "bar",
            "orientation": "h",
            "y": ["predicted", "measured"],
            "x": [row.predicted_s, row.measured_s],
            "name": row.words,
            "marker": {"color": variable(row.hue)},
            "hovertemplate": f"{row.words}: %{{x:.4g}} s<extra></extra>",
        }
        for row in shown
    ]
    share = apart.measured_s / apart.predicted_s - 1
    return Chart(
        key="bars",
        title="Measured above predicted",
        message=f"The step takes {format_seconds(apart.measured_s)}, {share:+.1%} against the prediction.",
        description="Two stacked bars over seconds: components of the measured step above those of the predicted one.",
        drawing={
            "data": data,
            "layout": layout(190, x=axis("seconds", rangemode="tozero"), y=axis(), barmode="stack"),
        },
        legend=[(row.words, row.hue) for row in shown],
        table=_terms_table(apart),
    )


def waterfall_chart(apart: StepDifference[Any]) -> Chart:
    """Draw how the predicted step becomes the measured one, the largest difference first."""
    changed = sorted((row for row in apart.rows if row.gap_s), key=lambda row: -abs(row.gap_s))
    shown = [row for row in changed if abs(row.gap_s) > LEAST_SHARE * apart.predicted_s]
    rest = sum(row.gap_s for row in changed if row not in shown)
    steps = [(row.words, row.gap_s) for row in shown] + ([("all others", rest)] if rest else [])
    first = f" Most of it: {steps[0][0]}, {steps[0][1]:+.3g} s." if shown else ""
    return Chart(
        key="waterfall",
        title="From predicted to measured",
        message=f"{format_seconds(apart.predicted_s)} predicted, {format_seconds(apart.measured_s)} measured.{first}",
        description="A waterfall over seconds: the predicted step, each component's difference, the measured step.",
        drawing=_waterfall(apart, steps),
        legend=[("step", "blue"), ("longer", "red"), ("shorter", "green")],
    )


def _waterfall(apart: StepDifference[Any], steps: Sequence[tuple[str, float]]) -> Figure:
    rows = [("predicted", 0.0, apart.predicted_s, "blue")]
    signs = ["", *("+" if gap_s > 0 else "-" for _, gap_s in steps), ""]
    at = apart.predicted_s
    for words, gap_s in steps:
        # A bar has no direction: of a shorter term it starts where the sum ends, and the sign is in its name.
        rows.append((words, min(at, at + gap_s), abs(gap_s), "red" if gap_s > 0 else "green"))
        at += gap_s
    rows.append(("measured", 0.0, apart.measured_s, "blue"))
    names = [
        f"{words}  <b>{sign}{format_seconds(size)}</b>"
        for (words, _, size, _), sign in zip(rows, signs, strict=True)
    ]
    _, starts, sizes, hues = zip(*rows, strict=True)
    return named_bars(names, sizes, hues, "seconds", starts=starts)


RANK_PARTS = (
    ("kernels", "blue"),
    ("traffic", "orange"),
    ("waiting for peers", "grey"),
    ("host and copies", "slate"),
)
"""What a rank's step is divided into for comparing ranks, with colours."""


def ranks_chart(found: Diagnosis) -> Chart:
    """Draw every rank's step, divided into kernels, traffic, waiting and host."""
    divided = [_divided(found, place) for place in range(len(found.ranks))]
    names = [f"rank {terms.rank}" for terms in found.ranks]
    data = [
        {
            "type": "bar", "orientation": "h", "y": names, "x": [seconds[part] for seconds in divided],
            "marker": {"color": variable(hue)}, "hovertemplate": f"%{{y}}: {words} %{{x:.4g}} s<extra></extra>",
        }
        for part, (words, hue) in enumerate(RANK_PARTS)
    ]  # fmt: skip
    words = slowest_words(found)
    message = f"{_sentence(words)}."
    rows = [
        [name, *(format_seconds(seconds[part]) for part in range(len(RANK_PARTS)))]
        for name, seconds in zip(names, divided, strict=True)
    ]
    return Chart(
        key="ranks",
        title="Ranks",
        message=message,
        description=f"A stacked bar per rank over seconds. {message}",
        drawing={
            "data": data,
            "layout": layout(
                22 * len(names) + 80,
                x=axis("seconds", rangemode="tozero"),
                # Plotly counts rows from below.
                y=axis(autorange="reversed"),
                barmode="stack",
            ),
        },
        legend=RANK_PARTS,
        table=Table(columns=["rank", *(words for words, _ in RANK_PARTS)], rows=rows),
    )


def _divided(found: Diagnosis, place: int) -> tuple[float, float, float, float]:
    """Return a rank's seconds in kernels with their gaps, in transfer, waiting for peers, and the rest."""
    terms = found.ranks[place]
    kernels = terms.computing_s + terms.seconds(part=Activity.GAP)
    traffic, waiting = terms.seconds(part=Activity.TRANSFER), terms.seconds(part=Activity.PEER)
    return kernels, traffic, waiting, max(terms.step_s - kernels - traffic - waiting, 0.0)


def time_chart(found: Diagnosis) -> Chart:
    """Draw the first step over time, a row per rank by stage."""
    rows = tracks(found)
    data = []
    for component in Component:
        bars = [
            (f"stage {track.stage}, rank {track.rank}", start, end)
            for track in rows
            for start, end, most in track.runs
            if most is component
        ]
        if bars:
            data.append(
                {
                    "type": "bar", "orientation": "h", "y": [name for name, _, _ in bars],
                    "base": [start for _, start, _ in bars], "x": [end - start for _, start, end in bars],
                    "marker": {"color": variable(component.record.hue)},
                    "hovertemplate": f"%{{y}}: {component.words}<extra></extra>",
                }
            )  # fmt: skip
    shown = {most for track in rows for _, _, most in track.runs if most is not None}
    names = [f"stage {track.stage}, rank {track.rank}" for track in rows]
    return Chart(
        key="time",
        title="The first step over time",
        message="What each rank mostly does in each 160th of the step; clocks are aligned by collectives.",
        description="Rows of ranks by stage over seconds, coloured by component.",
        drawing={
            "data": data,
            "layout": layout(
                24 * len(names) + 80,
                x=axis("seconds"),
                y=axis(categoryorder="array", categoryarray=names[::-1]),
                barmode="overlay",
            ),
        },
        legend=[(component.words, component.record.hue) for component in Component if component in shown],
    )
