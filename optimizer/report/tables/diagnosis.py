"""A diagnosis on the terminal: step, the three questions, causes, terms, traffic, ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.text import Text

from layoutopt.optimizer.cost.components import Component
from layoutopt.optimizer.diagnose.diagnosis import answers
from layoutopt.optimizer.diagnose.log_diagnosis import LogDiagnosis, answers_of_log
from layoutopt.optimizer.diagnose.unexplained import without_cause
from layoutopt.optimizer.diagnose.utilization import COUNT_WORDS
from layoutopt.optimizer.report.tables.console import bullets, facts, grid, section
from layoutopt.optimizer.specs.units import counted, format_bytes, format_count, format_rate, format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from rich.console import RenderableType
    from rich.table import Table

    from layoutopt.optimizer.diagnose.cause import Cause
    from layoutopt.optimizer.diagnose.diagnosis import Diagnosis, Operation
    from layoutopt.optimizer.diagnose.difference import Compared, StepDifference
    from layoutopt.optimizer.diagnose.utilization import Utilization


SHOWN_CAUSES = 3
SHOWN_OPERATIONS = 12
NAME_LENGTH = 38
"""Characters of a kernel's name that a line of a hundred has room for; JSON has all."""

LEAST_SHARE = 5e-4
"""Share of the step below which a term is not shown."""


def run_diagnosis_tables(found: Diagnosis | LogDiagnosis, *, verbose: bool = False) -> RenderableType:
    """Show the diagnosis of profiles or of a log."""
    if not isinstance(found, LogDiagnosis):
        return diagnosis_tables(found, verbose=verbose)
    apart = found.difference
    head = f"{_both_steps(apart)} (log of {found.profile.trainer}, {found.profile.steps_words})"
    rows = [_row(row, row.words) for row in apart.rows]
    step = section("Step", _sums(apart, rows))
    return Group(
        Text(head, style="bold"), facts(_named(answers_of_log(found))), *_causes(found.causes, apart), step
    )


def diagnosis_tables(found: Diagnosis, *, verbose: bool = False) -> RenderableType:
    """Show what was found; ``verbose`` adds parts of components, operations and all ranks."""
    parts: list[RenderableType] = [Text(_headline(found), style="bold"), facts(_named(answers(found)))]
    if found.difference is not None:
        parts += _causes(found.causes, found.difference)
    parts.append(section("Step", _terms(found, verbose=verbose), note=_terms_note(found)))
    if found.overlaps:
        parts.append(
            section("Traffic", _traffic(found), note="seconds of a step; exposed: no kernel runs beside")
        )
    if verbose:
        parts.append(section("Operations", _operations(found)))
    if len(found.speeds) > 1:
        parts.append(section("Ranks", _ranks(found, verbose=verbose)))
    return Group(*parts)


def _headline(found: Diagnosis) -> str:
    ranks = f"{counted(len(found.ranks), 'rank')}, {counted(found.ranks[0].steps, 'step')}"
    if found.devices:
        ranks += f" on {', '.join(found.devices)[:60]}"
    apart = found.difference
    if apart is None:
        return f"measured {format_seconds(found.step_s)} per step ({ranks})"
    return f"{_both_steps(apart)} ({ranks})"


def _both_steps(apart: StepDifference[Any]) -> str:
    share = apart.measured_s / apart.predicted_s - 1
    steps = (
        f"measured {format_seconds(apart.measured_s)} per step, predicted {format_seconds(apart.predicted_s)}"
    )
    return f"{steps}: {share:+.1%}"


def _named(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    for line in lines:
        name, _, words = line.partition(": ")
        yield name, words


def _causes(causes: tuple[Cause, ...], apart: StepDifference[Any]) -> Iterator[RenderableType]:
    if not causes:
        yield section("Causes", Text(without_cause(apart)))
        return
    for place, cause in enumerate(causes[:SHOWN_CAUSES]):
        lines = [*cause.evidence, *([f"try: {cause.remedy}"] if cause.remedy else [])]
        title = "Causes" if place == 0 else ""
        body = (Text(f"{place + 1}. {cause.words} ({format_seconds(cause.seconds)})"), bullets(lines))
        # One heading over all of them: the others stand under it, indented alike.
        yield section(title, *body) if title else Group(*(section("", *body).renderables[2:]))


def _terms_note(found: Diagnosis) -> str:
    return "mean over ranks" if len(found.ranks) > 1 else ""


def _terms(found: Diagnosis, *, verbose: bool) -> Table:
    """Show the components that sum to the step."""
    if found.difference is None:
        step_s = sum(terms.step_s for terms in found.ranks) / len(found.ranks)
        listed = []
        for component in Component:
            seconds = sum(terms.seconds(component) for terms in found.ranks) / len(found.ranks)
            if seconds > LEAST_SHARE * step_s:
                listed.append((component.words, format_seconds(seconds), f"{seconds / step_s:.1%}"))
        total = ("step", format_seconds(step_s), "100.0%")
        return grid(["component", "measured", "share"], [*listed, total], wraps=True)
    apart = found.difference
    rows: list[tuple[str, ...]] = []
    for row in apart.rows:
        if max(row.measured_s, row.predicted_s) <= LEAST_SHARE * apart.measured_s:
            continue
        rows.append(_row(row, row.words))
        if verbose:
            mine = (one for one in apart.parts if one.component is row.component)
            rows += [_row(one, f"  {one.words}") for one in mine]
    return _sums(apart, rows)


def _sums(apart: StepDifference[Any], rows: Sequence[tuple[str, ...]]) -> Table:
    """Put the step under its terms."""
    total = (format_seconds(apart.predicted_s), format_seconds(apart.measured_s))
    step = ("step", *total, f"{apart.measured_s / apart.predicted_s:.2f}", _signed(apart.gap_s), "")
    return grid(
        ["component", "predicted", "measured", "ratio", "gap", "of the gap"], [*rows, step], wraps=True
    )


def _signed(seconds: float) -> str:
    return f"{'+' if seconds > 0 else ''}{format_seconds(seconds)}"


def _row(row: Compared, words: str) -> tuple[str, ...]:
    ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
    # Of a gap of next to nothing a term is many times as much, which tells nobody anything.
    share = "" if row.gap_share is None or abs(row.gap_share) > 10 else f"{row.gap_share:.0%}"
    return (
        words,
        format_seconds(row.predicted_s),
        format_seconds(row.measured_s),
        ratio,
        _signed(row.gap_s),
        share,
    )


def _traffic(found: Diagnosis) -> Table:
    rows = []
    for one in found.overlaps:
        size = "" if one.bytes is None else format_bytes(one.bytes)
        rate = "" if one.bytes_per_s is None else format_rate(one.bytes_per_s)
        # A wait for a rank that was not profiled can't be told from its transfer.
        waiting = format_seconds(one.waiting_s) if one.whole or one.waiting_s else "not told"
        planned = "" if one.predicted_bytes_per_s is None else format_rate(one.predicted_bytes_per_s)
        kind = one.kind.replace("_", " ")
        rows.append(
            (
                f"{one.axis or '?'} {kind}", str(one.ranks or ""), f"{one.calls:,.0f}", size, format_seconds(one.busy_s),
                format_seconds(one.exposed_s), waiting, rate, planned,
            )
        )  # fmt: skip
    return grid(
        ["traffic", "ranks", "calls", "bytes", "busy", "exposed", "waiting", "rate", "predicted"],
        rows,
        wraps=True,
    )


def _operations(found: Diagnosis) -> Table:
    rows = [
        (
            one.name[:NAME_LENGTH],
            _does(one),
            f"{one.calls:,.0f}",
            format_seconds(one.seconds),
            f"{one.share:.1%}",
        )
        for one in found.operations[:SHOWN_OPERATIONS]
    ]
    return grid(["kernel", "does", "calls", "time", "share"], rows, left=(0, 1))


def _does(one: Operation) -> str:
    """Say what a kernel does; of a multiplication whose shape is known that, and its rate."""
    if one.product is None or one.flops_per_s is None:
        return one.part.words
    return f"{one.product.words} at {format_rate(one.flops_per_s, 'FLOP/s')}"


def _ranks(found: Diagnosis, *, verbose: bool) -> Table:
    listed = sorted(found.speeds, key=lambda one: -one.ratio)
    # The two slowest and the two fastest: what lies between differs by less.
    shown = found.speeds if verbose or len(listed) <= 4 else (*listed[:2], *listed[-2:])
    rows = [
        (
            f"rank {one.rank}", str(one.stage), format_seconds(one.step_s), format_seconds(one.kernels_s),
            f"{one.ratio:.3f}", format_seconds(one.waiting_s), f"{one.late_share:.0%}",
        )
        for one in shown
    ]  # fmt: skip
    return grid(["", "stage", "step", "kernels", "over the others", "waiting", "comes last"], rows)


def utilization_table(found: Utilization, model: str) -> RenderableType:
    """Show throughput, parameters, and utilisation in every count of FLOPs."""
    counts, peak = found.parameters, found.peak_flops_per_gpu / 1e12
    pairs = [
        ("throughput", f"{found.tokens_per_s:,.6g} tokens/s, {found.tokens_per_s_per_gpu:,.5g} per GPU"),
        (
            "step",
            f"{format_seconds(found.step_time_s)} of {found.global_batch:,} x {found.sequence_length:,} tokens",
        ),
        (
            "parameters",
            f"{format_count(counts.matrices)} take part: matrices, with the output's and without the input embedding",
        ),
        ("", f"of {format_count(counts.total)} in all, {format_count(counts.active)} passed by one token"),
        ("peak", f"{peak:,.5g} TFLOP/s per GPU, {found.gpus:,} GPUs"),
    ]
    rows = [
        (
            COUNT_WORDS[count],
            f"{use.flops_per_token / 1e9:,.5g}",
            f"{use.tflops_per_gpu:,.1f}",
            f"{use.mfu:.1%}",
            f"{use.hfu:.1%}",
        )
        for count, use in found.by_count.items()
    ]
    table = grid(["counting", "GFLOP per token", "TFLOP/s per GPU", "MFU", "HFU"], rows)
    repeated = f"HFU: backward repeats {found.repeated:.0%} of the forward pass"
    note = repeated if found.repeated else "HFU is MFU: nothing is recomputed (--repeated says what is)"
    return Group(
        Text(f"{model} on {found.gpus:,} GPUs", style="bold"),
        facts(pairs),
        section("Utilisation", table, note=note),
    )
