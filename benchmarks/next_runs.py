"""Choose among layouts that were really run: regret of each way to choose, and after the runs that next-runs would suggest.

    python benchmarks/next_runs.py [--renew]

Groups of measured runs that differ in layout alone, faulty builds out, each predicted with its publication left out of the
fit. Writes nothing without --renew, which updates the baseline and the package's errors of components and layouts
(optimizer/evidence/discrepancy.yaml). Exit code 1 if the choice after three suggested runs got worse.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np
import yaml

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from checks.choosing import (
    at_random,
    choices,
    fit_discrepancy,
    regret_by_repeats,
    regrets_of_runs,
    run_groups,
    suggested,
)
from checks.fit import derivatives
from checks.fit_plan import parse_plan
from checks.healthy import STARTING, healthy
from checks.pricing import Pricer
from checks.published import NEWER, read_runs
from checks.residuals import from_csv

from layoutopt.optimizer.evidence.cases import build_cases
from layoutopt.optimizer.evidence.posterior import posterior
from layoutopt.optimizer.evidence.validate import validate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from checks.choosing import RunGroup
    from numpy.typing import NDArray

    from layoutopt.optimizer.evidence.discrepancy import Discrepancy

HERE = Path(__file__).parent
BASELINE = HERE / "next_runs_baseline.json"
ERRORS = HERE.parent / "optimizer" / "evidence" / "discrepancy.yaml"

RUNS = 3
"""Suggested runs."""

SMALLEST = 6
"""Distinct layouts of a group from which on three runs are a choice."""

LEAST = 3
"""Distinct layouts of a group from which on there is a choice at all."""

CARRY = 4
"""Groups named as those that carry most of the regret."""

RANDOM_SEEDS = 20

REPEAT = 0.03
"""Standard deviation of one layout's log step time with the same flags: 2.5 to 3.5% (tests/data/README.md)."""

MORE = 0.002
"""Mean regret that a change may add."""

HEAD = (
    "# Written by benchmarks/next_runs.py --renew. Standard deviations of log errors beside the constants': of a component\n"
    "# that the network does not take and of one that it takes, and of a layout by itself: most likely values over\n"
    "# measured groups, publications left out of the fit. network: of a collective by itself\n"
    "# (benchmarks/network_baseline.json); repeat: of a run repeated.\n"
)


def network_error() -> float:
    """Return the standard deviation of large collectives' log times, fabric and publication left out."""
    table = json.loads((HERE / "network_baseline.json").read_text(encoding="utf-8"))
    medians = [
        entry["median"]
        for name, entry in table.items()
        if name.endswith("bandwidth")
        for _ in range(entry["rows"])
    ]
    return float(f"{1.4826 * float(np.median(medians)):.2g}")


def slopes() -> dict[str, NDArray[np.float64]]:
    """Return the derivatives of every fitted run's log seconds by the log constants, by id."""
    cases, _ = build_cases(read_runs())
    timed = healthy([case for case in cases if case.measured_s is not None])
    plan = parse_plan(yaml.safe_load((HERE / "fit.yaml").read_text(encoding="utf-8")), timed, "fit.yaml")
    assert list(plan.names) == posterior()["names"]
    logs = np.array(plan.start())
    with Pricer(timed) as pricer:
        table = derivatives(pricer, timed, plan, logs, pricer.log_times(plan.values(logs.tolist())))
    return {case.run.id: row for case, row in zip(timed, table, strict=True)}


def starting_groups() -> set[str]:
    """Return the names of groups with times of a job's first iterations alone."""
    runs = [run for tables in (read_runs(), read_runs([NEWER])) for run in tables if run.group]
    return {str(run.group) for run in runs if STARTING.search(run.notes or "")}


def measured_groups(smallest: int) -> list[RunGroup]:
    """Return the groups of the fitted and the newer tables."""
    rows = [row for tables in (read_runs(), read_runs([NEWER])) for row in validate(tables).results]
    table = from_csv((HERE / "left_out.csv").read_text(encoding="utf-8"))
    left_out = {one.id: one.left_out for one in table if one.quantity == "step"}
    return run_groups(rows, left_out, slopes(), np.array(posterior()["covariance"]), smallest=smallest)


def after_runs(groups: Sequence[RunGroup], errors: Discrepancy) -> dict[str, list[float]]:
    """Return the mean regret before the first and after each run, suggested and at random."""
    chosen = [regrets_of_runs(group, errors, RUNS, suggested(RUNS)) for group in groups]
    chance = [
        regrets_of_runs(group, errors, RUNS, at_random(seed))
        for group in groups
        for seed in range(RANDOM_SEEDS)
    ]
    return {
        "suggested": np.mean(chosen, axis=0).round(5).tolist(),
        "random": np.mean(chance, axis=0).round(5).tolist(),
        "worst suggested": np.max(chosen, axis=0).round(5).tolist(),
    }


def by_choice(groups: Sequence[RunGroup], errors: Discrepancy) -> dict[str, dict[str, float]]:
    """Return mean, median and worst regret of each way to choose without any run."""
    regrets: dict[str, list[float]] = {}
    for group in groups:
        for name, layout in choices(group, errors).items():
            regrets.setdefault(name, []).append(group.regret(layout))
    return {
        name: {
            "mean": round(float(np.mean(values)), 5),
            "median": round(float(np.median(values)), 5),
            "worst": round(float(np.max(values)), 5),
        }
        for name, values in regrets.items()
    }


def attainable(groups: Sequence[RunGroup], errors: Discrepancy) -> dict[str, float]:
    """Return what regret is to be expected: by what is believed, and of who knows the fastest layout but for repeats."""
    return {
        "expected by the belief": round(
            float(np.mean([one.belief(errors).expected_loss() for one in groups])), 5
        ),
        "repeats alone": round(float(np.mean([regret_by_repeats(one, errors) for one in groups])), 5),
    }


def carried_by(groups: Sequence[RunGroup], errors: Discrepancy) -> dict[str, Any]:
    """Return the groups that carry most of the default choice's regret, and what is left in the mean without them."""
    regrets = {one.name: one.regret(one.belief(errors).best) for one in groups}
    worst = sorted(regrets, key=lambda name: -regrets[name])[:CARRY]
    rest = [value for name, value in regrets.items() if name not in worst]
    by_source: dict[str, list[float]] = {}
    for one in groups:
        by_source.setdefault(one.source, []).append(regrets[one.name])
    return {
        "worst": {name: round(regrets[name], 5) for name in worst},
        "mean of the others": round(float(np.mean(rest)), 5),
        "by publication": {
            name: [len(values), round(float(np.mean(values)), 5)]
            for name, values in sorted(by_source.items())
        },
    }


@click.command(help=__doc__)
@click.option("--renew", is_flag=True, help="Write the baseline and the errors.")
def main(renew: bool) -> None:
    """Fit the errors, choose, run, and compare."""
    groups = measured_groups(2)
    errors = fit_discrepancy(groups, network=network_error(), repeat=REPEAT)
    several = [group for group in groups if len(group.measured) >= LEAST]
    large = [group for group in groups if len(group.measured) >= SMALLEST]
    starting = starting_groups()
    settled = [group for group in several if group.name not in starting]
    found = {
        "groups": {
            "of 2": len(groups),
            "of 3": len(several),
            "of 6": len(large),
            "of 3, first iterations out": len(settled),
        },
        "errors": asdict(errors),
        "choice": by_choice(several, errors),
        "choice, first iterations out": by_choice(settled, errors),
        "attainable": attainable(several, errors),
        "carried by": carried_by(several, errors),
        "runs": after_runs(large, errors),
    }
    click.echo(json.dumps(found, indent=1))
    for group in large:
        regrets = regrets_of_runs(group, errors, RUNS, suggested(RUNS))
        words = ", ".join(f"{100 * one:.1f}" for one in regrets)
        click.echo(f"{group.name:44} {len(group.measured):3} layouts: {words}%")
    if renew:
        BASELINE.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        ERRORS.write_text(HEAD + yaml.safe_dump(asdict(errors), sort_keys=False), encoding="utf-8")
        return
    before = json.loads(BASELINE.read_text(encoding="utf-8"))["runs"]["suggested"][-1]
    if found["runs"]["suggested"][-1] > before + MORE:
        click.echo(f"after {RUNS} suggested runs the choice loses more than {before:.2%}", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
