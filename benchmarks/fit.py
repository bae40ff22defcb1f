"""Fit the cost model's constants to measured runs; print in-sample beside leave-one-source-out errors.

    python benchmarks/fit.py RUNS.csv... [--plan benchmarks/fit.yaml] [--workers 2] [--write]

Nothing is written without --write, which updates the values in the package's constants.yaml, links.yaml and
the frameworks' presets and notes the fit beside each.
"""

from __future__ import annotations

import sys
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

import click
import numpy as np
import yaml

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from checks.fit import (
    errors_by_family,
    fit,
    leave_one_source_out,
    posterior,
    refits,
    source_of,
    spreads,
)
from checks.fit_plan import parse_plan
from checks.fit_text import split_names, with_constants, with_preset
from checks.healthy import healthy
from checks.pricing import Pricer

from layoutopt.optimizer.cost.constants import constant_table
from layoutopt.optimizer.evidence.cases import build_cases
from layoutopt.optimizer.evidence.table import parse_runs
from layoutopt.optimizer.frameworks.preset import MEASURED
from layoutopt.optimizer.frameworks.registry import framework_named
from layoutopt.optimizer.specs.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from checks.fit import FitResult
    from checks.fit_plan import FitPlan
    from numpy.typing import NDArray

    from layoutopt.optimizer.evidence.case import Case
    from layoutopt.optimizer.evidence.metrics import ErrorSummary

HERE = Path(__file__).parent


def read_cases(tables: Sequence[Path]) -> list[Case]:
    """Return the timed cases of the tables that state what decides their price, without assumptions and faulty builds."""
    cases: list[Case] = []
    for table in tables:
        built, _ = build_cases(parse_runs(table.read_bytes(), str(table)))
        cases += [case for case in built if case.measured_s is not None and case.training.adapter is None]
    return healthy(cases)


def print_errors(title: str, errors: Mapping[str, ErrorSummary]) -> None:
    """Print one line per family: rows, MAPE, median, 90th percentile and bias in percent."""
    click.echo(f"\n{title:34}{'rows':>6}{'MAPE':>8}{'median':>8}{'P90':>8}{'bias':>8}")
    for name, summary in errors.items():
        figures = (summary.mape, summary.median_ape, summary.p90_ape, summary.bias)
        click.echo(f"{name:34}{summary.rows:6}" + "".join(f"{100 * (value or 0):8.1f}" for value in figures))


def print_values(plan: FitPlan, result: FitResult) -> None:
    """Print every constant before and after, and which of them physics stopped."""
    click.echo(f"\n{'constant':34}{'before':>12}{'after':>12}")
    for item in plan.parameters:
        mark = "  at its bound" if item.name in result.at_bounds else ""
        click.echo(f"{item.name:34}{item.value:12.4g}{result.values[item.name]:12.4g}{mark}")


def write_values(values: Mapping[str, float], note: str) -> None:
    """Put fitted values into the package's tables."""
    parts = split_names(values, MEASURED)
    constants = {name: value for name, value in parts[""].items() if name in constant_table()}
    links = {name: value for name, value in parts[""].items() if name not in constants}
    cost = Path(str(resources.files("layoutopt.optimizer.cost")))
    presets = Path(str(resources.files("layoutopt.optimizer.frameworks")))
    network = Path(str(resources.files("layoutopt.optimizer.topology")))
    _rewrite(cost / "constants.yaml", lambda text: with_constants(text, constants, note))
    _rewrite(network / "links.yaml", lambda text: with_constants(text, links, note))
    for framework, fields in parts.items():
        if framework:
            preset = presets / f"{framework_named(framework).record.folder}.yaml"
            _rewrite(preset, lambda text, v=fields: with_preset(text, v))


def write_result(plan: FitPlan, result: FitResult, cases: Sequence[Case]) -> None:
    """Keep what benchmarks/fidelity.py reports: values and their spread over sources (errors: benchmarks/intervals.py)."""
    left_out = refits(cases, plan, result)
    spread, covariance = spreads(plan, left_out), posterior(cases, plan, result, left_out)
    widths = dict(zip(plan.names, np.sqrt(np.diag(covariance)).tolist(), strict=True))
    centres = dict(zip(plan.names, np.exp(plan.centre()).tolist(), strict=True))
    data = {
        "rows": len(cases),
        "sources": len({source_of(case) for case in cases}),
        "constants": {
            item.name: {
                "value": float(f"{result.values[item.name]:.4g}"),
                "prior": float(f"{centres[item.name]:.4g}"),
                "range": list(item.bounds),
                "posterior": float(f"{widths[item.name]:.3g}"),
                "spread": float(f"{spread[item.name]:.3g}"),
                "at_bound": item.name in result.at_bounds,
            }
            for item in plan.parameters
        },
    }
    head = (
        "# Written by benchmarks/fit.py --write. prior: middle of the source's range; posterior: standard deviation of\n"
        "# the log; spread: standard error of the log over sources left out (jackknife).\n"
    )
    (HERE / "fitted.yaml").write_text(head + yaml.safe_dump(data, sort_keys=False), encoding="utf-8")
    write_posterior(plan, result, covariance)


def write_posterior(plan: FitPlan, result: FitResult, covariance: NDArray[np.float64]) -> None:
    """Put the fitted constants' joint distribution into the package: normal in their logs."""
    data = {
        "names": list(plan.names),
        "ties": {name: list(others) for name, others in plan.ties.items()},
        "logs": [float(f"{log:.5g}") for log in result.logs],
        "covariance": [[float(f"{value:.3g}") for value in row] for row in covariance],
    }
    head = (
        "# Written by benchmarks/fit.py --write: joint distribution of the fitted constants, normal in their natural\n"
        "# logs. names in order; ties: constants that equal a named one; covariance: inverse curvature of the fit plus\n"
        "# the jackknife over publications.\n"
    )
    path = Path(str(resources.files("layoutopt.optimizer.evidence"))) / "posterior.yaml"
    path.write_text(
        head + yaml.safe_dump(data, sort_keys=False, default_flow_style=None, width=110), encoding="utf-8"
    )


def _rewrite(path: Path, change: object) -> None:
    assert callable(change)
    path.write_text(change(path.read_text(encoding="utf-8")), encoding="utf-8")


@click.command(help=__doc__)
@click.argument(
    "tables", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path)
)
@click.option(
    "--plan", default=HERE / "fit.yaml", type=click.Path(exists=True, dir_okay=False, path_type=Path)
)
@click.option("--workers", default=1, show_default=True, help="Processes that price cases.")
@click.option("--write", is_flag=True, help="Update the package's tables.")
def main(tables: tuple[Path, ...], plan: Path, workers: int, write: bool) -> None:
    """Fit, report, and write if asked."""
    try:
        cases = read_cases(tables)
        chosen = parse_plan(yaml.safe_load(plan.read_text(encoding="utf-8")), cases, str(plan))
    except InputError as error:
        click.echo(str(error), err=True)
        sys.exit(2)
    with Pricer(cases, workers=workers) as pricer:
        before = pricer.log_times(chosen.values(chosen.start()))
        result = fit(pricer, cases, chosen, progress=_progress)
        left_out = leave_one_source_out(pricer, cases, chosen, result)
    unseen = np.full(len(cases), np.nan)
    sources = np.array([source_of(case) for case in cases])
    for name, log_times in left_out.items():
        unseen[sources == name] = log_times
    print_values(chosen, result)
    print_errors("present constants", errors_by_family(cases, before))
    print_errors("fitted, in sample", errors_by_family(cases, result.log_times))
    print_errors(f"each of {len(left_out)} sources left out", errors_by_family(cases, unseen))
    if write:
        write_result(chosen, result, cases)
        write_values(result.values, f"{len(cases)} runs of {len(left_out)} sources, benchmarks/fit.py")


def _progress(step: int, error: float) -> None:
    click.echo(f"step {step}: mean |log ratio| {error:.4f}", err=True)


if __name__ == "__main__":
    main()
