"""Does what we call valid start, by the trainers' own code? Does it call what we count? Without a GPU.

python benchmarks/referees/run.py [--megatron PATH] [--torchtitan PATH] [--nanotron PATH] [--megatron-deepspeed PATH]
    [--bridge PATH] [--transformer-engine PATH] [--layouts 100] [--seed 7]
    [--only NAME ...] [--releases 0.16 ...] [--record] [--folder FOLDER]

A PATH is a checkout (or a bare repository) of the trainer; of Megatron-LM with its tags. Environments are made in FOLDER, by
default ``layoutopt-referees`` under the system's temporary folder, and kept. What cannot be had is skipped with a line.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from benchmarks.referees import (  # noqa: E402
    answers,
    bridge,
    collectives,
    configs,
    core,
    megatron,
    models,
    orders,
    saved,
    verdicts,
)
from benchmarks.referees.environments import environment, tree_of  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.referees.verdicts import Tally

HEAD = "release  launches  both valid  ours valid, theirs not  other sizes  theirs valid, ours not  not judged  seconds"


def judged(judge: Callable[[], Tally]) -> Tally:
    """Judge a release and print its row, and why verdicts differ."""
    start = time.perf_counter()
    tally = judge()
    sizes = (tally.launches, tally.both_valid, len(tally.false_valid), len(tally.other_sizes))
    rest = (tally.stricter.total(), tally.not_judged.total(), round(time.perf_counter() - start))
    print(f"{tally.release:22}", *(f"{count:6}" for count in (*sizes, *rest)), flush=True)
    for text in tally.false_valid:
        print(f"  valid here, refused there: {text}")
    for text in tally.other_sizes:
        print(f"  other sizes (theirs, ours): {text}")
    for text, count in tally.not_judged.items():
        print(f"  not judged, {count}: {text}")
    if tally.stricter:
        rules = ", ".join(f"{rule} {count}" for rule, count in tally.stricter.most_common())
        print(f"  valid there, refused here by: {rules}")
    return tally


def had(name: str, folder: Path) -> Path | None:
    """The interpreter of an environment; a line where there is none."""
    made = environment(name, folder)
    if made.python is None:
        print(f"{name}: skipped, {made.reason}")
    else:
        print(f"environment {name}: {made.size_bytes / 1e9:.2f} GB")
    return made.python


def of_megatron(asked: argparse.Namespace) -> list[Tally]:
    """Megatron-LM's releases."""
    if asked.megatron is None:
        print("Megatron-LM: skipped, its parser is in no package: give a checkout with --megatron PATH")
        return []
    python = had("torch", asked.folder)
    if python is None:
        return []
    if asked.record and not asked.releases:
        megatron.record(asked.megatron, python, asked.folder)
    options = (asked.megatron, python, asked.folder)
    return [
        judged(lambda release=release: megatron.referee(*options, release, asked.layouts, asked.seed))  # type: ignore[misc]
        for release in asked.releases or megatron.ENGINES
    ]


def of_models(asked: argparse.Namespace) -> int:
    """Parameters of Megatron-LM's models on the meta device; how many plans differ."""
    if asked.megatron is None or asked.transformer_engine is None:
        flags = "--megatron PATH --transformer-engine PATH"
        print(f"Megatron-LM's models: skipped, give checkouts of it and of Transformer Engine with {flags}")
        return 0
    python = had("torch", asked.folder)
    options = (asked.megatron, asked.transformer_engine, asked.folder)
    return models.referee(python, *options, record=asked.record) if python else 0


def of_configs(asked: argparse.Namespace) -> list[Tally]:
    """Frameworks that are started from files."""
    tallies = []
    for one in configs.REFEREES:
        checkout = getattr(asked, one.checkout) if one.checkout else None
        if asked.only and one.reader not in asked.only:
            continue
        if one.checkout and checkout is None:
            flag = one.checkout.replace("_", "-")
            print(f"{one.trainer}: skipped, it is read from a checkout: give one with --{flag} PATH")
            continue
        python = had(one.environment, asked.folder)
        if python is not None:
            tree = tree_of(checkout, one.commit, one.part, asked.folder) if checkout else None
            judge = (one, python, tree, asked.layouts, asked.seed)
            tallies.append(judged(lambda judge=judge: configs.judged(*judge)))  # type: ignore[misc]
    return tallies


def of_answers(asked: argparse.Namespace) -> list[Tally]:
    """What the search answers, as every trainer reads it that can be had."""
    names = {"torch", *(one.environment for one in configs.REFEREES)}
    python = {name: made for name in sorted(names) if (made := had(name, asked.folder))}
    given = {"megatron", *(one.checkout for one in configs.REFEREES if one.checkout)}
    checkouts = {name: path for name in given if (path := getattr(asked, name)) is not None}
    found = answers.referee(python, checkouts, asked.folder)
    return [judged(lambda tally=tally: tally) for tally in found]  # type: ignore[misc]


def of_bridge(asked: argparse.Namespace) -> int:
    """Words of Megatron-Bridge's launches; how many launches hold unknown ones."""
    if asked.bridge is None or asked.megatron is None:
        print(
            "Megatron-Bridge: skipped, give checkouts of it and of Megatron-LM with --bridge PATH --megatron PATH"
        )
        return 0
    options = (asked.bridge, asked.megatron, asked.folder, asked.layouts, asked.seed)
    return bridge.referee(*options, record=asked.record)


def of_blocks(asked: argparse.Namespace) -> int:
    """Saved activations of real blocks; how many differ."""
    places: dict[str, tuple[Path, Path | None]] = {}
    for source, name in saved.ENVIRONMENTS.items():
        checkout = asked.torchtitan if source == "torchtitan" else None
        if source == "torchtitan" and checkout is None:
            print("blocks of torchtitan: skipped, give a checkout with --torchtitan PATH")
            continue
        python = had(name, asked.folder)
        if python is not None:
            tree = tree_of(checkout, "HEAD", "torchtitan", asked.folder) if checkout else None
            places[source] = (python, tree)
    return saved.referee(places, record=asked.record)


def main() -> int:
    """Print the tables; return 1 if a valid launch is refused, comes to other sizes, or calls other collectives."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in ("megatron", "torchtitan", "nanotron", "megatron-deepspeed", "bridge", "transformer-engine"):
        parser.add_argument(f"--{name}", type=Path)
    parser.add_argument("--layouts", type=int, default=100)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument(
        "--only",
        nargs="+",
        default=[],
        help="megatron, answers, models, core, bridge, collectives, saved or a reader of configs.py",
    )
    parser.add_argument("--releases", nargs="+", default=[], choices=megatron.ENGINES, help="of Megatron-LM")
    parser.add_argument("--record", action="store_true", help="write tests/data/referees")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "layoutopt-referees")
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    print(HEAD)
    tallies = of_megatron(asked) if not asked.only or "megatron" in asked.only else []
    tallies += of_configs(asked)
    recorded = list(tallies)
    tallies += of_answers(asked) if not asked.only or "answers" in asked.only else []
    wrong = sum(len(tally.false_valid) + len(tally.other_sizes) for tally in tallies)
    if asked.record:
        verdicts.record(recorded)
    if not asked.only or "collectives" in asked.only:
        python = had("torch", asked.folder)
        if python is not None:
            wrong += orders.referee(python, record=asked.record)
            wrong += collectives.referee(python, record=asked.record)
    if not asked.only or "core" in asked.only:
        python = had("megatron", asked.folder)
        wrong += core.referee(python, record=asked.record) if python else 0
    if not asked.only or "models" in asked.only:
        wrong += of_models(asked)
    if not asked.only or "bridge" in asked.only:
        wrong += of_bridge(asked)
    if not asked.only or "saved" in asked.only:
        wrong += of_blocks(asked)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
