"""Write benchmarks/left_out.csv, how far every measured run is from its prediction with its publication left out of the
fit, and the package's intervals made of it (optimizer/evidence/intervals.yaml).

    python benchmarks/intervals.py [--workers 2 | --of-table]

The constants stay as they are; without a publication they are refitted by one step (``tests/checks/fit.py``). Runs of
``runs_more.csv`` are in no fit, and no constant of memory is fitted. Run it after benchmarks/fit.py and before
benchmarks/fidelity.py. ``--of-table`` prices nothing and makes the intervals of the table as it is.
"""

from __future__ import annotations

import sys
from math import log
from pathlib import Path
from typing import TYPE_CHECKING

import click
import numpy as np
import yaml

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from checks.fit import FitResult, derivatives, leave_one_source_out, log_measured, source_of
from checks.fit_plan import parse_plan
from checks.healthy import healthy
from checks.hierarchy import hierarchy
from checks.pricing import Pricer
from checks.published import newer_runs as newer_rows
from checks.published import read_runs
from checks.residuals import Residual, from_csv, to_csv

from layoutopt.optimizer.evidence.band import ALL
from layoutopt.optimizer.evidence.cases import build_cases
from layoutopt.optimizer.evidence.validate import validate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from layoutopt.optimizer.evidence.case import Case
    from layoutopt.optimizer.evidence.validate import ValidationReport

HERE = Path(__file__).parent
TABLE = HERE / "left_out.csv"
INTERVALS = HERE.parent / "optimizer" / "evidence" / "intervals.yaml"
HEAD = (
    "# Written by benchmarks/intervals.py of benchmarks/left_out.csv: measured over predicted between which 50, 80 and 95%\n"
    "# of runs are expected, by kind of run (step) and by trainer (memory). unseen: of a publication that the fit had not\n"
    "# seen; seen: of a cluster whose scale three own runs gave. The model: tests/checks/hierarchy.py.\n"
)


def fitted_runs(workers: int) -> list[Residual]:
    """Return the runs that the constants were fitted to."""
    cases, _ = build_cases(read_runs())
    timed = healthy([case for case in cases if case.measured_s is not None])
    plan = parse_plan(yaml.safe_load((HERE / "fit.yaml").read_text(encoding="utf-8")), timed, "fit.yaml")
    logs = np.array(plan.start())
    with Pricer(timed, workers=workers) as pricer:
        log_times = pricer.log_times(plan.values(logs.tolist()))
        result = FitResult(
            values=plan.values(logs.tolist()),
            logs=logs,
            log_times=log_times,
            jacobian=derivatives(pricer, timed, plan, logs, log_times),
            at_bounds=(),
        )
        apart = leave_one_source_out(pricer, timed, plan, result)
    sources, unseen = np.array([source_of(case) for case in timed]), np.empty(len(timed))
    for name, log_seconds in apart.items():
        unseen[sources == name] = log_seconds
    measured = log_measured(timed)
    return [
        Residual(
            quantity="step",
            id=case.run.id,
            family=case.family.value,
            source=source_of(case),
            left_out=float(measured[row] - unseen[row]),
            in_fit=float(measured[row] - log_times[row]),
        )
        for row, case in enumerate(timed)
    ]


def newer_runs(report: ValidationReport) -> list[Residual]:
    """Return the runs that no constant was fitted to; for the shipped constants they are left out as well."""
    return [
        _unfitted("step", row.case, row.case.family.value, row.case.measured_s, row.prediction.step_time_s)
        for row in report.results
        if row.case.measured_s is not None
    ]


def memory_runs(report: ValidationReport) -> list[Residual]:
    """Return the runs that report a peak; no constant of memory is fitted to runs."""
    cases = {row.case.run.id: row.case for row in report.results}
    return [
        _unfitted("memory", cases[row.id], row.framework, row.measured_bytes, row.predicted_bytes)
        for row in report.memory.rows
    ]


def _unfitted(quantity: str, case: Case, family: str, measured: float, predicted: float) -> Residual:
    error = log(measured / predicted)
    return Residual(
        quantity=quantity,
        id=case.run.id,
        family=family,
        source=source_of(case),
        left_out=error,
        in_fit=None,
    )


def write(path: Path, text: str) -> None:
    """Replace a file in one step."""
    temporary = path.with_name(f"{path.name}.new")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


def intervals_table(residuals: Sequence[Residual]) -> str:
    """Write the intervals of every kind of run, and of those that have none."""
    found = hierarchy(residuals)
    data: dict[str, dict[str, dict[str, dict[str, list[float]]]]] = {}
    for quantity, kinds in {
        "step": {"unseen": found.unseen, "seen": found.own},
        "memory": {"unseen": found.unseen},
    }.items():
        data[quantity] = {
            family: {
                name: {
                    share: [round(end, 3) for end in ends]
                    for share, ends in intervals(quantity, family).items()
                }
                for name, intervals in kinds.items()
            }
            for family in (ALL, *found.families(quantity))
        }
    return HEAD + yaml.safe_dump(data, sort_keys=False, default_flow_style=None, width=110)


@click.command(help=__doc__)
@click.option("--workers", default=1, show_default=True, help="Processes that price cases.")
@click.option("--of-table", is_flag=True, help="Make the intervals of left_out.csv as it is.")
def main(workers: int, of_table: bool) -> None:
    """Price, refit without each publication, and write."""
    if of_table:
        write(INTERVALS, intervals_table(from_csv(TABLE.read_text(encoding="utf-8"))))
        return
    newer = validate(newer_rows())
    residuals = [
        *fitted_runs(workers),
        *newer_runs(newer),
        *memory_runs(validate(read_runs())),
        *memory_runs(newer),
    ]
    text = to_csv(residuals)
    write(TABLE, text)
    write(INTERVALS, intervals_table(from_csv(text)))  # what the table says, to its last digit
    click.echo(f"{len(residuals)} figures of {len({one.source for one in residuals})} publications")


if __name__ == "__main__":
    main()
