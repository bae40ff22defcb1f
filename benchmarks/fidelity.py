"""Write docs/fidelity.md, the package's error bands, and the baseline that benchmarks/check.py compares with.

    python benchmarks/fidelity.py

Reads the measured runs that the constants were fitted to (tests/data), benchmarks/fitted.yaml and the reference layouts.
Run it after benchmarks/fit.py and benchmarks/intervals.py.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter, defaultdict
from itertools import combinations
from math import expm1, log
from pathlib import Path
from statistics import fmean, median
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import click
import yaml

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from checks.ablation import ablate
from checks.baseline import figures, percent
from checks.bounds import at_bound, constants_at_bounds
from checks.choosing_text import lines as choosing_lines
from checks.experiment import calibration_gain
from checks.healthy import FAULTY, faulty_builds, order_of, steady
from checks.hierarchy import coverages
from checks.pair_tables import lines as pair_lines
from checks.published import newer_runs, read_runs
from checks.residuals import FEWEST, from_csv, unseen_errors

from layoutopt.optimizer.cost.constants import constant_table
from layoutopt.optimizer.evidence.band import ALL, SHARES
from layoutopt.optimizer.evidence.case import RunFamily
from layoutopt.optimizer.evidence.cases import build_cases, is_recounted
from layoutopt.optimizer.evidence.metrics import summarize
from layoutopt.optimizer.evidence.published import references
from layoutopt.optimizer.evidence.robust import MAD_TO_SIGMA
from layoutopt.optimizer.evidence.validate import ranked_groups, validate
from layoutopt.optimizer.topology.links import link_table

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from checks.ablation import AblationRow
    from checks.healthy import Order
    from checks.hierarchy import Coverage

    from layoutopt.optimizer.cost.constants import Constant
    from layoutopt.optimizer.evidence.metrics import ErrorSummary
    from layoutopt.optimizer.evidence.validate import RowResult, ValidationReport
    from layoutopt.optimizer.topology.links import LinkConstant

HERE = Path(__file__).parent
ROOT = HERE.parent
BASELINE, FITTED = HERE / "fidelity_baseline.json", HERE / "fitted.yaml"
PAGE = ROOT / "docs" / "fidelity.md"
BANDS = ROOT / "optimizer" / "evidence" / "bands.yaml"

RIGHT_SPREADS = 1.2816
"""Quantile of the normal distribution at 0.9."""

OWN_RUNS = 3
"""Own runs of a group that give its scale."""

LARGEST_NANOTRON_PIPELINE = 4

INTERVAL_POINTS = 0.05
"""How far a share of runs inside may be from the percent stated."""

TESTED_SHARE = 0.01
"""Of a step: smaller parts are below what repeated runs differ by."""


def write(path: Path, text: str) -> None:
    """Replace a file in one step."""
    temporary = path.with_name(f"{path.name}.new")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Write a Markdown table."""
    head = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    return ["", *head, *("| " + " | ".join(row) + " |" for row in rows), ""]


def errors_table(name: str, errors: dict[str, dict[str, float]]) -> list[str]:
    """Write errors in percent by name."""
    rows = [
        (
            key,
            f"{e['rows']:.0f}",
            f"{e['mape']:.1f}",
            f"{e['median']:.1f}",
            f"{e['p90']:.1f}",
            f"{e['bias']:+.1f}",
        )
        for key, e in errors.items()
    ]
    return table((name, "rows", "MAPE", "median", "P90", "bias"), rows)


def indistinct(rows: Sequence[RowResult]) -> float:
    """Return the relative distance of two predictions from which on nine of ten pairs are expected in the right order.

    The spread of two layouts' errors against each other is measured inside groups (median over pairs and over
    groups, as a standard deviation); a distance of 1.28 such spreads is right with 0.9 (normal distribution).
    """
    cases = [row.case for row in rows]
    predicted = {index: row.prediction.step_time_s for index, row in enumerate(rows)}
    spreads = []
    for group in ranked_groups(cases, predicted):
        ratios = [log(p / m) for p, m in zip(group.predicted_s, group.measured_s, strict=True)]
        spreads.append(median(abs(one - other) for one, other in combinations(ratios, 2)))
    return round(expm1(RIGHT_SPREADS * MAD_TO_SIGMA * median(spreads)), 3)


def band_table(report: ValidationReport, fitted: dict[str, Any], unseen: dict[str, ErrorSummary]) -> str:
    """Write the error bands that ship with the package."""
    complete = [row for row in report.results if row.counted and row.case.complete]
    others = [row for row in report.results if row.counted and row.case.family is not RunFamily.NANOTRON]
    families = {"all": report.step_time, **report.families}
    data = {
        "families": {name: _band(summary, unseen[name]) for name, summary in families.items()},
        "indistinct": {
            "dense": indistinct([row for row in others if not row.case.model.is_moe]),
            "moe": indistinct([row for row in others if row.case.model.is_moe]),
        },
        "constants": {
            name: entry["spread"] for name, entry in fitted["constants"].items() if entry["spread"] > 0
        },
        "measured": measured_clusters(complete),
        "tested": tested_components(complete),
    }
    head = (
        "# Written by benchmarks/fidelity.py. families: errors of complete rows, and of rows whose publication the\n"
        "# fit had not seen; indistinct: distance of two predictions from which on nine of ten pairs are expected in\n"
        "# the right order; constants: standard error of each fitted constant's log over publications left out;\n"
        "# measured: complete rows by GPU, GPUs per node and fabric; tested: those of them of whose step a component is\n"
        "# predicted to be at least 1%.\n"
    )
    return head + yaml.safe_dump(data, sort_keys=False)


def measured_clusters(rows: Sequence[RowResult]) -> list[dict[str, Any]]:
    """Count rows by what their clusters are made of."""
    clusters = [row.case.cluster for row in rows]
    counts = Counter(
        (one.gpu.generation.name, one.gpu.name, one.gpus_per_node, one.fabric.value) for one in clusters
    )
    names = ("generation", "gpu", "gpus_per_node", "fabric")
    return [dict(zip(names, key, strict=True), rows=count) for key, count in sorted(counts.items())]


def tested_components(rows: Sequence[RowResult]) -> dict[str, int]:
    """Count the rows that say something of each component of the step."""
    counts: Counter[str] = Counter()
    for row in rows:
        least_s = TESTED_SHARE * row.prediction.step_time_s
        counts.update(
            name.value for name, seconds in row.prediction.breakdown_s.items() if seconds >= least_s
        )
    return dict(sorted(counts.items()))


def _band(summary: ErrorSummary, unseen: ErrorSummary) -> dict[str, float]:
    own = {
        "median_ape": summary.median_ape,
        "p90_ape": summary.p90_ape,
        "bias": summary.bias,
        "unseen_median_ape": unseen.median_ape,
        "unseen_p90_ape": unseen.p90_ape,
    }
    return {"rows": summary.rows, **{name: round(value or 0.0, 4) for name, value in own.items()}}


def ranking_table(report: ValidationReport) -> list[str]:
    """Write the order inside groups."""
    order, settled = healthy_order(report), healthy_order(report, settled=True)
    kinds = {
        "faulty builds out": order.summary,
        "first iterations out too": settled.summary,
        "all": report.ranking,
        **report.ranking_by_kind,
    }
    rows = [
        (
            name,
            f"{one.groups}",
            f"{one.kendall_tau or 0:.2f}",
            f"{one.pairs_over_10pct or 0:.3f} of {one.clear_pairs:,}",
            f"{100 * (one.top1_regret_mean or 0):.1f}",
            f"{100 * (one.top1_regret_median or 0):.2f}",
            f"{100 * (one.top3_regret_mean or 0):.2f}",
        )
        for name, one in kinds.items()
    ]
    columns = (
        "",
        "groups",
        "Kendall tau",
        "pairs over 10% apart in order",
        "regret mean, %",
        "median",
        "best of 3",
    )
    return [
        *table(columns, rows),
        f"Faulty builds out, the worst regret is {100 * order.worst_regret:.0f}%, and the picks' predictions lie "
        f"{100 * order.curse:.1f} points below",
        f"their groups' medians in the mean (the optimizer's curse); first iterations out too, "
        f"{100 * settled.worst_regret:.0f}% and {100 * settled.curse:.1f}.",
        "First iterations: rows whose notes say that their time is that of one of a job's first five iterations alone",
        "(`STARTING` in `tests/checks/healthy.py`): BigScience's sweep, the second one of each job. They stay in every",
        "table of errors. Where such a job was repeated, its times agree within 1%: they are measured in another way,",
        "not proven wrong, and the rule was written when they carried the regret. The goals are held against the first",
        "line, which has them.",
        "",
    ]


def healthy_order(report: ValidationReport, *, settled: bool = False) -> Order:
    """Return the order inside groups without faulty builds; ``settled``: and without times of first iterations."""
    rows = [row for row in report.results if row.case.measured_s is not None]
    predicted = {row.case.run.id: row.prediction.step_time_s for row in rows}
    cases = [row.case for row in rows]
    return order_of(steady(cases) if settled else cases, predicted)


def memory_groups(report: ValidationReport) -> dict[str, ErrorSummary]:
    """Summarize memory errors by what was run and what the figure counts."""
    cases = {row.case.run.id: row.case for row in report.results}
    groups: dict[str, list[float]] = defaultdict(list)
    for row in report.memory.rows:
        case = cases[row.id]
        known = case.run.moment_dtype or "moment_bytes" in case.switches
        dtypes = ", state formats stated" if row.framework == "megatron-bridge" and known else ""
        if row.framework == "nanotron" and case.layout.pp > LARGEST_NANOTRON_PIPELINE:
            continue
        groups[f"{row.framework}, {row.kind}{dtypes}"].append(row.error)
    return {name: summarize(errors) for name, errors in sorted(groups.items())}


def memory_lines(report: ValidationReport) -> list[str]:
    """Write memory errors and verdicts."""
    memory = report.memory
    errors = {name: percent(summary) for name, summary in memory_groups(report).items()}
    return [
        *errors_table("memory", errors),
        f"Runs that ran and state their ZeRO stage and recomputation: {memory.ran:,}, judged `does_not_fit`: "
        f"{len(memory.ran_but_does_not_fit)}. Runs that died: {memory.died}, judged `fits`: {len(memory.died_but_fits)}.",
        "nanotron is counted up to 4 pipeline stages; figures of unstated kind are compared with reserved memory.",
        "State formats are stated by the row or by its publication's recipe (`optimizer/evidence/recipes.yaml`).",
    ]


def own_runs(report: ValidationReport) -> tuple[int, float]:
    """Scale every dense group of at least four rows with three of its rows; groups, and mean MAPE of their rest."""
    rows = [row for row in report.results if row.counted and row.case.family is not RunFamily.NANOTRON]
    dense = [row for row in rows if not row.case.model.is_moe]
    predicted = {index: row.prediction.step_time_s for index, row in enumerate(dense)}
    gains = calibration_gain([row.case for row in dense], predicted, own=OWN_RUNS)
    return len(gains), fmean(gain.after for gain in gains)


def reference_lines() -> list[str]:
    """Write the published layouts beside their predictions."""
    rows, ranges = [], []
    for one in references():
        estimate, published = one.estimate, one.case.run.mfu_pct
        rows.append(
            (
                one.case.run.id,
                f"{one.case.measured_s:.2f}",
                f"{estimate.step_time_s:.2f}",
                f"{100 * one.error:+.1f}",
                "-" if published is None else f"{published:g}",
                f"{100 * estimate.mfu_full:.1f}",
                f"{100 * estimate.mfu_causal:.1f}",
            )
        )
        if one.by_vp:
            steps = ", ".join(f"{seconds:.2f} s with {vp}" for vp, seconds in one.by_vp.items())
            ranges.append(f"- {one.case.run.id}: by virtual stages {steps}")
    columns = (
        "layout",
        "published, s",
        "predicted, s",
        "error, %",
        "MFU published",
        "full count",
        "causal count",
    )
    return [*table(columns, rows), *ranges]


def ablation_lines(rows: Sequence[AblationRow]) -> list[str]:
    """Write what each term is worth: MAPE by family and Kendall's tau without it."""
    families = sorted(rows[0].errors)
    columns = ("left out", *families, "tau")
    cells = [
        (
            row.term or "nothing",
            *(f"{100 * (row.errors[name].mape or 0):.1f}" for name in families),
            f"{row.ranking.kendall_tau or 0:.2f}",
        )
        for row in rows
    ]
    return table(columns, cells)


def constant_lines(fitted: dict[str, Any]) -> list[str]:
    """Write every constant with the range of its source; the fitted ones with priors, posteriors and spreads."""
    known: list[tuple[str, Constant | LinkConstant]] = [*constant_table().items(), *link_table().items()]
    rows = [
        _constant_cells(fitted["constants"].get(name), name, one.value, one.bounds, one.exact, one.source)
        for name, one in known
    ]
    plan = yaml.safe_load((HERE / "fit.yaml").read_text(encoding="utf-8"))["per_framework"]
    own = [
        _constant_cells(entry, name, entry["value"], tuple(entry["range"]), False, plan[name]["source"])
        for name, entry in fitted["constants"].items()
        if name in plan
    ]
    columns = ("constant", "range", "value", "", "prior", "posterior", "spread", "source")
    ends = constants_at_bounds()
    said = (
        f"{len(rows)} constants, {len(fitted['constants'])} fitted; {len(ends)} at an end of their range: "
        f"{', '.join(ends) or 'none'}."
    )
    return ["", said, *table(columns, rows), "Fields of presets, fitted:", *table(columns, own)]


def _constant_cells(
    entry: dict[str, Any] | None,
    name: str,
    value: float,
    bounds: tuple[float, float],
    exact: bool,
    source: str,
) -> tuple[str, ...]:
    """Return one constant's cells."""
    near = "exact" if exact else "end" if at_bound(value, bounds) else ""
    fit = ("", "", "")
    if entry is not None:
        fit = (f"{entry['prior']:.4g}", f"{100 * entry['posterior']:.0f}%", f"{100 * entry['spread']:.0f}%")
    scope = f"{bounds[0]:g}-{bounds[1]:g}"
    return name, scope, f"{value:.4g}", near, *fit, " ".join(source.replace("|", "/").split())


SETTINGS = ("fabrics", "releases", "flop_counts", "recipes")
"""Data files of the evidence room that state something of one publication, by phrase."""


def setting_lines() -> list[str]:
    """Write every setting that belongs to one source or to a trainer without a preset."""
    folder = ROOT / "optimizer" / "evidence"
    read = {name: yaml.safe_load((folder / f"{name}.yaml").read_text(encoding="utf-8")) for name in SETTINGS}
    nearest = yaml.safe_load((folder / "nearest.yaml").read_text(encoding="utf-8"))
    entries = [(name, entry["phrase"], entry) for name, listed in read.items() for entry in listed]
    entries += [("nearest", entry["phrase"], entry) for entry in nearest["publications"]]
    entries += [("nearest", name, entry) for name, entry in nearest["frameworks"].items()]
    rows = []
    for file, name, entry in entries:
        stated = {key: value for key, value in entry.items() if key not in ("phrase", "source")}
        flat = {**{k: v for k, v in stated.items() if not isinstance(v, dict)}, **_inner(stated)}
        said = ", ".join(f"{key} {value}" for key, value in flat.items())
        rows.append((name, file, said, " ".join(entry["source"].split()).replace("|", "/")))
    return table(("source or trainer", "file", "setting", "why"), rows)


def _inner(stated: dict[str, Any]) -> dict[str, Any]:
    return {
        key: value for inner in stated.values() if isinstance(inner, dict) for key, value in inner.items()
    }


def newer_lines() -> list[str]:
    """Write the errors of the newer table, to which nothing was fitted: rows with a preset, and priced as the nearest."""
    runs = newer_runs()
    report = validate(runs)
    wanted = [run for run in runs if run.method == "pretrain"]
    priced = sum(row.case.run.method == "pretrain" for row in report.results)
    rows = [row for row in report.results if row.case.run.method == "pretrain" and row.error is not None]
    named = {
        "all pretraining rows": summarize([row.error or 0.0 for row in rows]),
        "with a preset": report.step_time,
        "as the nearest preset or with assumptions": report.assumed,
        **{f"assumed: {name}": one for name, one in report.assumed_families.items()},
        **{f"assumed: {name}": one for name, one in report.assumed_frameworks.items()},
    }
    return [
        "",
        f"`runs_more.csv` (2024-26; nothing was fitted to it): {priced} of {len(wanted)} pretraining rows priced. Trainers",
        "and precisions without a preset are priced as the nearest (`optimizer/evidence/nearest.yaml`), apart; arms",
        "that are bound by their host's library are left out (`SHOWN_ONLY` in `tests/checks/published.py`). Percent:",
        *errors_table("rows", {name: percent(one) for name, one in named.items()}),
    ]


def interval_lines() -> list[str]:
    """Write how many runs lie inside intervals that their publication had no part in."""
    found = coverages(from_csv((HERE / "left_out.csv").read_text(encoding="utf-8")))
    rows = [
        (
            f"{quantity}, {one.family}",
            f"{one.rows}",
            f"{one.sources}",
            *(_inside(one, name) for name in SHARES),
            *(f"{100 * one.widths[name]:.0f}" for name in SHARES),
        )
        for quantity, kinds in found.items()
        for one in kinds
        if one.rows >= FEWEST
    ]
    columns = ("", "rows", "publications", *SHARES, *(f"width {name}" for name in SHARES))
    return [
        "## Intervals",
        "",
        "Every answer carries intervals in which 50, 80 and 95% of runs predicted so are expected, of publications that",
        "nobody has seen. Publications err apart from each other, and the runs of one alike: a random-effects model",
        "(DerSimonian and Laird 1986) with effects of Student's distribution, of the next run of a new publication. A kind",
        "of run with few publications borrows the spread between them from the others (`tests/checks/hierarchy.py`).",
        "Percent of the runs inside intervals that were made without their publication, fit and all, with the standard",
        "error of that share where publications are its unit (- of one alone); kinds of at least "
        f"{FEWEST} runs. Width: of the",
        "shipped intervals, percent of the prediction.",
        *table(columns, rows),
        *_interval_verdict([(quantity, one) for quantity, kinds in found.items() for one in kinds]),
        "",
    ]


def _inside(one: Coverage, name: str) -> str:
    error = one.error[name]
    return f"{100 * one.inside[name]:.0f} ± {'-' if error is None else f'{100 * error:.0f}'}"


def _interval_verdict(found: Sequence[tuple[str, Coverage]]) -> list[str]:
    """Write which shares are more than five points from what is stated, and what that says."""
    judged = [(quantity, one) for quantity, one in found if one.rows >= FEWEST and one.family != ALL]
    pairs = [(quantity, one, name) for quantity, one in judged for name in SHARES]
    off = [each for each in pairs if abs(each[1].inside[each[2]] - int(each[2]) / 100) > INTERVAL_POINTS]
    words = ", ".join(f"{quantity} of {one.family} {name}" for quantity, one, name in off)
    return [
        *wrap(
            f"Within five points: {len(pairs) - len(off)} of {len(pairs)} shares of kinds. Beyond: {words or 'none'}.",
            width=115,
        ),
        "There the rows of one publication decide, whose shift nothing foretells: where the standard error is larger than",
        "five points, or there is none, rows are too few publications to tell such a share from what is stated.",
    ]


def skipped_lines(report: ValidationReport) -> Iterator[str]:
    """Count the reasons of rows that were not priced."""
    for reason, count in Counter(skip.reason for skip in report.skipped).most_common(12):
        yield f"- {count} x {reason}"


def page(
    report: ValidationReport,
    fitted: dict[str, Any],
    unseen: dict[str, ErrorSummary],
    ablation: Sequence[AblationRow],
) -> str:
    """Write the page."""
    faulty = faulty_builds(row.case for row in report.results)
    groups, rest = own_runs(report)
    fits = f"{fitted['rows']} timed rows of {fitted['sources']} publications"
    lines = [
        "# Fidelity",
        "",
        "How far predictions are from published, measured training runs. Written by `python benchmarks/fidelity.py`.",
        "Errors are shares of the measured step time; bias is positive where predictions are too slow.",
        "",
        f"The constants were fitted to {fits} (`benchmarks/fit.py`); those of 8- and 4-bit",
        "multiplications anew, with the others held, when casts and gathers by recipe came in. "
        f"The seconds of {sum(is_recounted(row.case.run) for row in report.results)} rows",
        "were recounted since (`flop_counts` below), and what Megatron-DeepSpeed does came in, no constant with them:",
        "fitted anew, newer runs came out worse (13.6% instead of 12.4) and a constant ended at its bound. All timed rows,",
        "each with its own publication left out of the fit (`benchmarks/intervals.py`), percent:",
        *errors_table("family", {name: percent(one) for name, one in unseen.items()}),
        f"{len(faulty)} rows are left out as faulty builds: per token they took more than {FAULTY:g} times what the same",
        "layout takes elsewhere in its source with a micro-batch that is no larger (`tests/checks/healthy.py`).",
        "",
        f"In sample, rows that leave nothing unstated ({report.rows} read, {len(report.skipped)} not priced), faulty builds",
        "among them:",
        *errors_table("family", figures(report)),
        f"After one scale from {OWN_RUNS} own runs the rest of a dense group of at least {OWN_RUNS + 1} rows is "
        f"{100 * rest:.1f}% off in the mean over {groups} groups.",
        "",
        *newer_lines(),
        *interval_lines(),
        "## Order inside groups",
        "",
        "Groups of at least three layouts of one model, cluster and batch; repeats are averaged.",
        *ranking_table(report),
        "## Choosing a layout",
        "",
        *choosing_lines(json.loads((HERE / "next_runs_baseline.json").read_text(encoding="utf-8"))),
        *pair_lines(),
        "## Memory",
        *memory_lines(report),
        "",
        "## Published layouts",
        "",
        "What their authors leave open is assumed as stated in `optimizer/evidence/reference.yaml`; `layoutopt published`",
        "compares them with the optimum. None of the four rows is in the fit: no constant was fitted to them. Their presets",
        "hold what the papers state, the speed of multiplications fitted to llm-foundry's runs of the same time, and",
        "FlashAttention-2's published speed; these switches were chosen with the published step times in view.",
        *reference_lines(),
        "",
        "## What each term is worth",
        "",
        "MAPE in percent of each family, and Kendall's tau, with one term left out and the constants unchanged.",
        *ablation_lines(ablation),
        "## Constants",
        "",
        "Range: what the source allows. Of those that were fitted: prior, the middle of the range; posterior, the standard",
        "deviation of the logarithm (`optimizer/evidence/posterior.yaml` has all of them jointly); spread, its standard",
        "error when publications are left out one by one.",
        *constant_lines(fitted),
        "## Settings of single sources",
        *setting_lines(),
        "## Rows that were not priced",
        "",
        *skipped_lines(report),
    ]
    return "\n".join(lines) + "\n"


@click.command(help=__doc__)
def main() -> None:
    """Validate, ablate, and write."""
    runs = read_runs()
    report = validate(runs)
    fitted = yaml.safe_load(FITTED.read_text(encoding="utf-8"))
    write(BASELINE, json.dumps(figures(report), indent=2) + "\n")
    unseen = unseen_errors(from_csv((HERE / "left_out.csv").read_text(encoding="utf-8")))
    write(BANDS, band_table(report, fitted, unseen))
    cases, _ = build_cases(runs)
    rows = ablate(cases, progress=lambda term: click.echo(f"without {term or 'nothing'}", err=True))
    write(PAGE, page(report, fitted, unseen, rows))


if __name__ == "__main__":
    main()
