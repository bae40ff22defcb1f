"""Bad inputs and kills: nothing ends in a traceback or exit code 70, nothing is lost, no file is left half written.

    python benchmarks/hostile.py [--inputs 600] [--kills 40] [--seed 0] [--renew]

Every input is a command that works with one thing made wrong, drawn by seed (``tests/checks/hostile.py``) and run in a
forked child. It has to end with a documented exit code, in time, with one line for each problem where it is refused, and the
files that it would have replaced are the old ones or whole. Kills (SIGKILL, SIGTERM, SIGINT) hit whole processes of solve,
sweep (local and on a Dask scheduler) and plan at drawn moments (``tests/checks/killed.py``); afterwards the same command has
to come to the answer of an undisturbed one. Exit code 1 when anything fails; ``--renew`` writes ``hostile_baseline.json``.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from checks.forked import load_everything
from checks.hostile import make_folder
from checks.hostile_trial import tried
from checks.killed import kill_all

BASELINE = Path(__file__).with_name("hostile_baseline.json")


def main() -> int:
    """Try, count, compare with none."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=600)
    parser.add_argument("--kills", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0, help="First seed.")
    parser.add_argument("--renew", action="store_true", help="Write the figures.")
    parser.add_argument("--verbose", action="store_true", help="Print every case.")
    asked = parser.parse_args()
    codes, kinds, faults = Counter[str](), Counter[str](), []
    load_everything()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_folder(folder)
        for seed in range(asked.seed, asked.seed + asked.inputs):
            trial = tried(seed, folder)
            codes[str(trial.code)] += 1
            kinds[trial.kind] += 1
            faults += [f"input {seed}: {fault}" for fault in trial.faults]
            if asked.verbose or trial.faults:
                print(trial.words_for_people(seed), flush=True)
    killed = kill_all(asked.kills, asked.seed)
    faults += killed.faults
    plain = {
        "inputs": asked.inputs, "exit_codes": dict(sorted(codes.items())), "kinds": dict(sorted(kinds.items())),
        "kills": killed.counts, "faults": faults,
    }  # fmt: skip
    print(json.dumps(plain, indent=2))
    if asked.renew:
        BASELINE.write_text(json.dumps(plain, indent=2) + "\n", encoding="utf-8")
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
