"""How often the first-named cause is the one that was put in: jobs with one fault of twelve kinds, and clean ones.

``python benchmarks/causes.py`` compares with ``causes_baseline.json`` and fails below it, ``--write`` writes it anew. Noise
is 3%; faults, their sizes, models and layouts are drawn by seed (``tests/checks/traced_faults.py``).
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from checks.traced_faults import clean, faulty, named

BASELINE = Path(__file__).with_name("causes_baseline.json")
LEAST = 0.95


def main() -> int:
    """Count and compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faulty", type=int, default=200)
    parser.add_argument("--clean", type=int, default=100)
    parser.add_argument("--write", action="store_true", help="Write the baseline.")
    asked = parser.parse_args()
    right, wrong = Counter[str](), []
    for seed in range(asked.faulty):
        case = faulty(seed)
        with tempfile.TemporaryDirectory() as folder:
            found = named(case, Path(folder))
        if found and found[0].kind is case.expected:
            right[str(case.expected)] += 1
        else:
            wrong.append(
                f"{seed}: {case.name}: {found[0].kind.value if found else 'nothing'} instead of {case.expected}"
            )
    for seed in range(asked.clean):
        case = clean(seed)
        with tempfile.TemporaryDirectory() as folder:
            found = named(case, Path(folder))
        if found:
            wrong.append(f"{seed}: {case.name}: {found[0].words}")
        else:
            right["clean"] += 1
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
