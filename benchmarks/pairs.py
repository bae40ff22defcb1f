"""Predicted against measured effects of one changed switch, over the pairs of ``tests/data/evidence/ab.csv``
and the pairs inside the tables of runs.

    python benchmarks/pairs.py [--all]

Exit code 1 when the figures are worse than ``pairs_baseline.json``; ``--update`` writes it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from checks.pair_tables import effects_in_tables
from checks.pairs import effects, figures

BASELINE = Path(__file__).with_name("pairs_baseline.json")


@click.command()
@click.option("--all", "everything", is_flag=True, help="Also list what has no prediction.")
@click.option("--update", is_flag=True, help="Write the baseline.")
def main(everything: bool, update: bool) -> None:
    """Compare and print."""
    listed = (*effects(), *effects_in_tables())
    for effect in listed:
        if effect.predicted is None and not everything:
            continue
        predicted = "-" if effect.predicted is None else f"{effect.predicted:.3f}"
        measured = "-" if effect.measured is None else f"{effect.measured:.3f}"
        mark = "" if effect.counted else f"({effect.reason})"
        click.echo(
            f"{effect.pair:34} {effect.switch[:26]:26} {effect.value[:34]:34} {measured:>7} {predicted:>7} {mark}"
        )
    own = figures(listed)
    click.echo(json.dumps(own))
    if update:
        BASELINE.write_text(json.dumps(own, indent=1) + "\n", encoding="utf-8")
        return
    known = json.loads(BASELINE.read_text(encoding="utf-8"))
    if own["median_miss"] > known["median_miss"] + 1e-9 or own["sign_right"] < known["sign_right"] - 1e-9:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
