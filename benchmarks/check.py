"""Compare the cost model's errors on measured runs with the committed baseline; exit 1 where one has grown.

    python benchmarks/check.py [--tables FOLDER]

The tables are kept beside the checkout; without them nothing is compared. benchmarks/fidelity.py renews the baseline.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from layoutopt.optimizer.evidence.baseline import contradictions, figures, grown
from layoutopt.optimizer.evidence.table import parse_runs
from layoutopt.optimizer.evidence.validate import validate

HERE = Path(__file__).resolve().parent
TABLES = HERE.parents[1] / "shared" / "evidence"
BASELINE = HERE / "fidelity_baseline.json"


@click.command(help=__doc__)
@click.option("--tables", default=TABLES, type=click.Path(file_okay=False, path_type=Path))
def main(tables: Path) -> None:
    """Validate and compare."""
    files = sorted(tables.glob("runs_*.csv"))
    if not files:
        click.echo(f"fidelity: no tables runs_*.csv in {tables}, nothing compared")
        return
    report = validate([run for path in files for run in parse_runs(path.read_bytes(), path.name)])
    before = json.loads(BASELINE.read_text(encoding="utf-8"))
    worse = grown(figures(report), before) + contradictions(report)
    for line in worse:
        click.echo(f"fidelity: {line}")
    click.echo("fidelity: an error has grown" if worse else "fidelity: within the baseline")
    sys.exit(int(bool(worse)))


if __name__ == "__main__":
    main()
