"""Validate the cost model against the measured runs and write docs/fidelity.md and the baseline that CI compares with.

python benchmarks/fidelity.py [EVIDENCE_FOLDER]
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from layoutopt.optimizer.evidence.assumptions import built_in
from layoutopt.optimizer.evidence.plain import plain_report
from layoutopt.optimizer.evidence.table import parse_runs
from layoutopt.optimizer.evidence.validate import validate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from layoutopt.optimizer.evidence.validate import ValidationReport

ROOT = Path(__file__).parents[1]
EVIDENCE = ROOT.parent / "shared" / "evidence"
BASELINE = Path(__file__).parent / "fidelity_baseline.json"
PAGE = ROOT / "docs" / "fidelity.md"


def read_report(folder: Path) -> ValidationReport:
    """Validate every table of a folder, with the built-in assumptions for the reference rows."""
    runs = [
        run for path in sorted(folder.glob("runs_*.csv")) for run in parse_runs(path.read_bytes(), path.name)
    ]
    return validate(runs, built_in("reference"))


def family_errors(report: ValidationReport) -> dict[str, dict[str, float]]:
    """Errors in percent of the rows of each family that leave no deciding cell unstated."""
    ratios: dict[str, list[float]] = {}
    for row in report.results:
        if row.error is not None and row.case.complete and row.counted:
            measured = row.case.run.measured_step_s or row.prediction.step_time_s
            ratios.setdefault(row.case.family.value, []).append(row.prediction.step_time_s / measured - 1)
    return {name: _summary(np.array(values)) for name, values in sorted(ratios.items())}


def _summary(errors: np.ndarray) -> dict[str, float]:
    size = np.abs(errors)
    figures = {
        "rows": len(errors),
        "mape": size.mean(),
        "median": np.median(size),
        "p90": np.quantile(size, 0.9),
        "bias": errors.mean(),
    }
    return {name: round(float(value) * (1 if name == "rows" else 100), 2) for name, value in figures.items()}


def flat(figures: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, float | None]]:
    """Yield numbers of nested mappings under joined names."""
    for name, value in figures.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{name} ")
        else:
            yield prefix + name, value


def page(report: ValidationReport, families: dict[str, dict[str, float]]) -> str:
    """Write the page."""
    plain = plain_report(report)
    ranking = plain["ranking"]
    lines = [
        "# Fidelity",
        "",
        "How far predicted step times are from published, measured runs. Written by `benchmarks/check.py --write`;",
        "the constants were fitted to these runs (`benchmarks/fit.py`), so errors on other runs are larger.",
        "",
        f"{plain['rows']} rows read, {len(plain['skipped'])} skipped with a reason.",
        "Families of rows that leave nothing unstated, percent:",
        "",
        "| family | rows | MAPE | median | P90 | bias |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {name} | {f['rows']:.0f} | {f['mape']:.1f} | {f['median']:.1f} | {f['p90']:.1f} | {f['bias']:+.1f} |"
        for name, f in families.items()
    ]
    lines += [
        "",
        "Order inside groups of one model, cluster and batch:",
        "",
        "| figure | value |",
        "|---|---|",
    ]
    lines += [
        f"| {name.replace('_', ' ')} | {value:.3g} |" for name, value in flat(ranking) if value is not None
    ]
    lines += ["", "Reference rows, with the stated assumptions of `optimizer/evidence/reference.yaml`:", ""]
    lines += ["| run | measured s | predicted s | error |", "|---|---|---|---|"]
    lines += [
        f"| {row.case.run.id} | {row.case.run.measured_step_s:.2f} | {row.prediction.step_time_s:.2f} | {row.error:.1%} |"
        for row in report.results
        if row.case.assumed and row.error is not None and row.case.run.measured_step_s
    ]
    return "\n".join(lines) + "\n"


def write(path: Path, text: str) -> None:
    """Replace a file in one step."""
    temporary = path.with_name(path.name + ".new")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)


TOLERANCE_POINTS = 0.5
COMPARED = ("mape", "median")


def grown(now: dict[str, dict[str, float]]) -> list[str]:
    """Name the figures that are worse than the baseline by more than the tolerance."""
    worse = []
    for family, before in json.loads(BASELINE.read_text(encoding="utf-8")).items():
        for figure in COMPARED:
            value = now.get(family, {}).get(figure, float("inf"))
            if value > before[figure] + TOLERANCE_POINTS:
                worse.append(f"{family}: {figure} {value:.1f}%, baseline {before[figure]:.1f}%")
    return worse


@click.command()
@click.option("--write", "renew", is_flag=True, help="Renew the page and the baseline.")
def main(renew: bool) -> None:
    """Validate, then compare or renew."""
    if not EVIDENCE.is_dir():
        click.echo("fidelity: no measured runs beside the checkout, not compared")
        return
    report = read_report(EVIDENCE)
    families = family_errors(report)
    if renew:
        write(BASELINE, json.dumps(families, indent=2) + "\n")
        write(PAGE, page(report, families))
        return
    worse = grown(families)
    for line in worse:
        click.echo(f"fidelity: {line}")
    click.echo("fidelity: an error has grown" if worse else "fidelity: within the baseline")
    sys.exit(int(bool(worse)))


if __name__ == "__main__":
    main()
