"""Does what we call valid start, by the trainers' own code? Random layouts against each validator, without a GPU.

python benchmarks/referees/run.py --megatron PATH [--layouts 100] [--seed 7] [--record] [--folder FOLDER]

PATH is a checkout (or a bare repository) of Megatron-LM with its tags. The environment is made in FOLDER, by default
``layoutopt-referees`` under the system's temporary folder, and kept. What cannot be had is skipped with a line.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from benchmarks.referees import megatron  # noqa: E402
from benchmarks.referees.environments import environment  # noqa: E402


def table(checkout: Path, python: Path, folder: Path, layouts: int, seed: int) -> list[megatron.Tally]:
    """Judge every release and print its row."""
    print(
        "release  launches  both valid  ours valid, theirs not  other sizes  theirs valid, ours not  seconds"
    )
    tallies = []
    for release in megatron.ENGINES:
        start = time.perf_counter()
        tally = megatron.referee(checkout, python, folder, release, layouts, seed)
        spent_s = time.perf_counter() - start
        columns = (tally.launches, tally.both_valid, len(tally.false_valid), len(tally.other_sizes))
        row = "{:8}  {:10}  {:22}  {:11}".format(*columns)
        print(f"{release:7}  {row}  {tally.stricter.total():22}  {spent_s:7.0f}", flush=True)
        tallies.append(tally)
    return tallies


def details(tally: megatron.Tally) -> list[str]:
    """Why verdicts differ."""
    lines = [f"{tally.release}: valid here, refused there: {text}" for text in tally.false_valid]
    lines += [f"{tally.release}: other sizes (theirs, ours): {text}" for text in tally.other_sizes]
    lines += [f"{tally.release}: not judged, {count}: {text}" for text, count in tally.not_judged.items()]
    rules = ", ".join(f"{rule} {count}" for rule, count in tally.stricter.most_common())
    return [*lines, f"{tally.release}: valid there, refused here by: {rules or 'none'}"]


def main() -> int:
    """Print the table; return 1 if a launch that we call valid is refused, comes to other sizes, or is not judged."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--megatron", type=Path)
    parser.add_argument("--layouts", type=int, default=100)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--record", action="store_true", help="write tests/data/referees/megatron_flags.json")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "layoutopt-referees")
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    if asked.megatron is None:
        print("Megatron-LM: skipped, its parser is in no package: give a checkout with --megatron PATH")
        return 0
    made = environment("megatron", asked.folder)
    if made.python is None:
        print(f"Megatron-LM: skipped, {made.reason}")
        return 0
    print(f"environment: {made.size_bytes / 1e9:.1f} GB")
    if asked.record:
        megatron.record(asked.megatron, made.python, asked.folder)
    tallies = table(asked.megatron, made.python, asked.folder, asked.layouts, asked.seed)
    for tally in tallies:
        print("\n".join(details(tally)))
    return 1 if any(tally.false_valid or tally.other_sizes or tally.not_judged for tally in tallies) else 0


if __name__ == "__main__":
    sys.exit(main())
