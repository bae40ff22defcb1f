"""How often the first-named cause is the one that was put in: jobs with one fault of twelve kinds, and clean ones.

``python benchmarks/causes.py`` compares with 95%, ``--write`` writes ``causes_baseline.json`` anew, ``--kept FILE`` keeps
what was measured, so that a later run goes on from there. Noise is 3%; faults, their sizes, models and layouts are drawn by
seed (``tests/checks/traced_faults.py``).
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from checks.kept import measured
from checks.traced_faults import clean, faulty, named

BASELINE = Path(__file__).with_name("causes_baseline.json")
LEAST = 0.95


def outcome(words: str) -> dict[str, str]:
    """Diagnose a case, ``faulty 17`` or ``clean 3``: its kind where that was found first, else what was wrong."""
    kind, seed = words.split()
    case = {"faulty": faulty, "clean": clean}[kind](int(seed))
    with tempfile.TemporaryDirectory() as folder:
        found = named(case, Path(folder))
    first = found[0].kind if found else None
    if first is case.expected:
        return {"right": str(case.expected or "clean"), "wrong": ""}
    said = found[0].words if found else "nothing"
    return {
        "right": "",
        "wrong": f"{seed}: {case.name}: {first or said} instead of {case.expected or 'nothing'}",
    }


def main() -> int:
    """Count and compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faulty", type=int, default=200)
    parser.add_argument("--clean", type=int, default=100)
    parser.add_argument("--kept", type=Path, metavar="FILE", help="Go on from what an earlier run measured.")
    parser.add_argument("--write", action="store_true", help="Write the baseline.")
    asked = parser.parse_args()
    cases = [faulty] * asked.faulty + [clean] * asked.clean
    listed = [f"{case.__name__} {place - (case is clean) * asked.faulty}" for place, case in enumerate(cases)]
    found = measured(listed, lambda place: outcome(listed[place]), asked.kept)
    right = Counter[str](one["right"] for one in found if one["right"])
    wrong = [one["wrong"] for one in found if one["wrong"]]
    shares = {
        "first_cause_right": (sum(right.values()) - right["clean"]) / max(asked.faulty, 1),
        "clean_without_cause": right["clean"] / max(asked.clean, 1),
    }
    plain = {
        "faulty": asked.faulty,
        "clean": asked.clean,
        **shares,
        "right": dict(sorted(right.items())),
        "wrong": wrong,
    }
    print(json.dumps(plain, indent=2))
    if asked.write:
        BASELINE.write_text(json.dumps(plain, indent=2) + "\n", encoding="utf-8")
    return int(min(shares.values()) < LEAST)


if __name__ == "__main__":
    sys.exit(main())
