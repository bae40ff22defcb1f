"""What the backtest of choosing among measured layouts found, as lines of docs/fidelity.md."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

WAYS = {
    "time": "the fastest prediction (default)",
    "expected": "least expected step",
    "mean regret": "least mean regret (`--robust`)",
    "worst regret": "least worst regret",
}

KNOWN = {
    "bigscience": "each time is that of one run's second iteration alone",
    "flagperf-paddle": "its trainer has no preset and is priced as the nearest one",
}
"""What the tables of runs say of groups, by the start of their names."""


def _known(name: str) -> list[str]:
    return [why for start, why in KNOWN.items() if name.startswith(start)]


def _percents(shares: list[float]) -> str:
    return f"{', '.join(f'{100 * share:.1f}' for share in shares)}%"


def lines(found: Mapping[str, Any]) -> list[str]:
    """Write the section from ``benchmarks/next_runs_baseline.json``."""
    carried, expected = found["carried by"], found["attainable"]
    after = found["runs"]
    sources = "; ".join(
        f"{source} {100 * mean:.1f} ({number})"
        for source, (number, mean) in sorted(carried["by publication"].items(), key=lambda pair: -pair[1][1])
    )
    promised, repeats = (100 * expected[name] for name in ("expected by the belief", "repeats alone"))
    return [
        f"Regret of choosing among measured layouts in {found['groups']['of 3']} groups of at least three, newer runs among "
        "them,",
        "faulty builds out, the group's publication left out of the fit, percent of the fastest step",
        "(`benchmarks/next_runs.py`):",
        "",
        "| chosen by | mean | median | worst |",
        "|---|---|---|---|",
        *(
            f"| {words}{words_of} | {100 * one['mean']:.1f} | {100 * one['median']:.1f} | {100 * one['worst']:.0f} |"
            for choice, words_of in (
                ("choice", ""),
                ("choice, first iterations out", ", first iterations out"),
            )
            for way, words in WAYS.items()
            for one in [found[choice][way]]
        ),
        "",
        f"First iterations out: {found['groups']['of 3, first iterations out']} groups (see the order inside groups).",
        "",
        f"What is believed of the model's errors promises {promised:.1f}% in the mean: errors of components and",
        "layouts leave no less.",
        f"Who knew the fastest layout would lose {repeats:.1f}%, by how much repeats of a run differ.",
        f"{len(carried['worst'])} groups carry most of the rest; without them the mean is "
        f"{100 * carried['mean of the others']:.1f}%:",
        "",
        *(
            "; ".join([f"- {name}: {100 * value:.0f}%", *_known(name)])
            for name, value in carried["worst"].items()
        ),
        "",
        f"By publication, percent (groups): {sources}.",
        "",
        f"In {found['groups']['of 6']} groups of at least six layouts, after 0, 1, 2 and 3 runs that `next-runs`",
        f"suggests the choice loses {_percents(after['suggested'])}, after as many at random {_percents(after['random'])}.",
        "",
    ]
