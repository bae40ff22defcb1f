"""Launches by two verdicts: our rules' and a trainer's own code's."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

RECORDED = Path(__file__).parents[2] / "tests" / "data" / "referees" / "verdicts.json"

if TYPE_CHECKING:
    from checks.launches import Launch


@dataclass(slots=True, kw_only=True)
class Tally:
    """Launches of one release by both verdicts; ``false_valid`` must be empty."""

    release: str
    launches: int = 0
    both_valid: int = 0
    false_valid: list[str] = field(default_factory=list)
    other_sizes: list[str] = field(default_factory=list)
    not_judged: Counter[str] = field(default_factory=Counter)
    stricter: Counter[str] = field(default_factory=Counter)


def compare(release: str, launches: list[Launch], found: list[dict[str, Any]]) -> Tally:
    """Count verdicts; name every launch that we call valid and the trainer refuses or derives other sizes from."""
    tally = Tally(release=release, launches=len(launches))
    for launch, finding in zip(launches, found, strict=True):
        error = finding["error"]
        if error is not None and error.startswith("referee:"):
            tally.not_judged[error] += 1
        elif error is not None and not launch.broken:
            tally.false_valid.append(error)
        elif error is None and launch.broken:
            tally.stricter.update(launch.broken[:1])
        elif error is None:
            tally.both_valid += 1
            theirs = finding["derived"]
            other = {
                name: (theirs[name], value)
                for name, value in launch.derived().items()
                if name in theirs and theirs[name] != value
            }
            if other:
                tally.other_sizes.append(str(other))
    return tally


def record(tallies: list[Tally]) -> None:
    """Write the counts of the validators that were asked beside those that were not."""
    rows: dict[str, Any] = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
    for tally in tallies:
        rows[tally.release] = {
            "launches": tally.launches,
            "valid by both": tally.both_valid,
            "valid here, refused there": len(tally.false_valid),
            "other sizes": len(tally.other_sizes),
            "valid there, refused here": dict(tally.stricter.most_common()),
        }
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(rows[name])}" for name in sorted(rows))
    RECORDED.write_text(f"{{\n{lines}\n}}\n")
