"""Prices of collectives against public measurements, each source left out of what tunes the constants.

    python benchmarks/network.py [--renew] [--rows] [--constants]

Reads tests/data/evidence/nccl.csv. A source is a repository; its rows are priced with constants that the other sources tune
(tests/checks/collectives.py). Prints the errors by fabric, collective and bound (latency below 256 MiB, bandwidth from
there), and what the bars hold. Exit code 1 where a bar or the committed baseline is exceeded.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import click

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from checks.collectives import (
    BARS,
    TUNED,
    Row,
    Tuning,
    barred,
    cells,
    left_out_errors,
    read_rows,
    sample_errors,
    summary,
    tune,
)

BASELINE = Path(__file__).resolve().parent / "network_baseline.json"
GROWTH = 0.01
"""An error may grow by one point before it counts."""


@click.command(help=__doc__)
@click.option("--renew", is_flag=True, help="Write the baseline.")
@click.option("--rows", "each", is_flag=True, help="Print every row.")
@click.option("--constants", is_flag=True, help="Print what every source asks of every tuned constant.")
def main(*, renew: bool, each: bool, constants: bool) -> None:
    """Price, compare, print."""
    rows, skipped = read_rows()
    tuning = tune(rows)
    left_out, sample = left_out_errors(rows, tuning), sample_errors(rows)
    click.echo(
        f"{len(rows)} rows priced, {len(skipped)} left out: {', '.join(sorted(set(skipped.values())))}"
    )
    found = {}
    for name, members in cells(rows).items():
        found[name] = summary(members, left_out)
        click.echo(_line(name, found[name], summary(members, sample)))
    if constants:
        _print_constants(tuning)
    if each:
        _print_rows(rows, left_out)
    failed = _over(rows, left_out) + ([] if renew else _grown(found))
    for text in failed:
        click.echo(f"network: {text}")
    if renew:
        BASELINE.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    sys.exit(int(bool(failed)))


def _line(name: str, out: dict[str, float], inside: dict[str, float]) -> str:
    return (
        f"{name:42} {out['rows']:4} rows  left out: median {out['median']:6.1%} P90 {out['p90']:6.1%} "
        f"bias {out['bias']:+6.1%}   with the tables: {inside['median']:6.1%} {inside['p90']:6.1%}"
    )


def _over(rows: list[Row], errors: dict[str, float]) -> list[str]:
    failed = []
    for name, members in barred(rows).items():
        got, (median, p90) = summary(members, errors), BARS[name]
        click.echo(
            f"bar {name}: median {got['median']:.1%} of {median:.0%}, P90 {got['p90']:.1%} of {p90:.0%}"
        )
        if got["median"] > median or got["p90"] > p90:
            failed.append(f"{name} exceeds its bar")
    return failed


def _grown(found: dict[str, dict[str, float]]) -> list[str]:
    if not BASELINE.exists():
        return ["no baseline"]
    before = json.loads(BASELINE.read_text(encoding="utf-8"))
    return [
        f"{name}: {key} {found[name][key]:.1%}, was {entry[key]:.1%}"
        for name, entry in before.items()
        for key in ("median", "p90")
        if name not in found or found[name][key] > entry[key] + GROWTH
    ]


def _print_constants(tuning: Tuning) -> None:
    values = tuning.values()
    for tuned in TUNED:
        asked = {
            source: tuned.start * math.exp(factor) for source, factor in tuning.asked[tuned.name].items()
        }
        text = ", ".join(f"{source} {value:.3g}" for source, value in asked.items()) or "no row"
        click.echo(f"{tuned.name}: {values[tuned.name]:.3g} from {tuned.start:g} ({tuned.origin}): {text}")


def _print_rows(rows: list[Row], errors: dict[str, float]) -> None:
    for row in sorted(rows, key=lambda row: -abs(errors[row.id])):
        click.echo(
            f"{row.id} {row.repository} {row.fabric} {row.cluster.gpu.name} {row.collective} {row.ranks} ranks, "
            f"{row.per_node} per node, {row.size_bytes / 2**20:g} MiB: {row.measured_s * 1e6:.1f} us, {errors[row.id]:+.0%}"
        )


if __name__ == "__main__":
    main()
