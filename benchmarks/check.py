"""Compare the cost model's errors on measured runs with the committed baseline; exit 1 where one has grown.

    python benchmarks/check.py

The tables are those that the constants were fitted to (tests/data). benchmarks/fidelity.py renews the baseline.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from checks.baseline import contradictions, figures, grown
from checks.published import read_runs

from layoutopt.optimizer.evidence.validate import validate

HERE = Path(__file__).resolve().parent
BASELINE = HERE / "fidelity_baseline.json"


@click.command(help=__doc__)
def main() -> None:
    """Validate and compare."""
    report = validate(read_runs())
    before = json.loads(BASELINE.read_text(encoding="utf-8"))
    worse = grown(figures(report), before) + contradictions(report)
    for line in worse:
        click.echo(f"fidelity: {line}")
    click.echo("fidelity: an error has grown" if worse else "fidelity: within the baseline")
    sys.exit(int(bool(worse)))


if __name__ == "__main__":
    main()
