"""Do the rules, the search, evaluate, the exporters and the importers agree? Random layouts and questions by the thousand.

python benchmarks/agreement.py [--layouts 2016] [--questions 315] [--seed 1905] [--renew]
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from checks.agreement import (
    TRAINERS,
    Trainer,
    answer,
    disagreement_on_layout,
    random_layout,
    random_question,
)

from layoutopt.optimizer.specs.loading import load_cluster

CLUSTER = "h100x256"
BASELINE = Path(__file__).with_name("agreement_baseline.json")


def own_seed(trainer: Trainer, seed: int, what: int) -> np.random.Generator:
    """Draw for each trainer anew: thousands of layouts, not the same hundred asked again and again."""
    return np.random.default_rng((seed, what, TRAINERS.index(trainer)))


def layouts_of(trainer: Trainer, number: int, seed: int) -> Counter[str]:
    """Ask about random layouts; count what each disagreement says."""
    rng, cluster = own_seed(trainer, seed, 0), load_cluster(CLUSTER)
    found: Counter[str] = Counter()
    for _ in range(number):
        layout, model = random_layout(rng)
        found[disagreement_on_layout(trainer, layout, model, cluster)] += 1
    return found


def questions_of(trainer: Trainer, number: int, seed: int) -> tuple[int, Counter[str]]:
    """Solve random questions; return how many have an answer, and what each disagreement says."""
    rng = own_seed(trainer, seed, 1)
    found: Counter[str] = Counter()
    solved = 0
    for _ in range(number):
        question = random_question(rng, trainer)
        came = answer(question)
        solved += came.solved
        found[f"{question}: {came.fault}" if came.fault else ""] += 1
    return solved, found


def compared(rows: dict[str, dict[str, int]], renew: bool, size: dict[str, int]) -> list[str]:
    """Say where fewer questions have an answer than in the committed counts, if as many were asked; write them on demand."""
    now = {"asked": size, "trainers": rows}
    if renew:
        BASELINE.write_text(json.dumps(now, indent=1) + "\n", encoding="utf-8")
        return []
    before = json.loads(BASELINE.read_text(encoding="utf-8"))
    if before["asked"] != size:
        print(f"not compared with the baseline, which was asked {before['asked']}")
        return []
    known = before["trainers"]
    other = [f"{name}: in the baseline alone, or not in it" for name in {*rows} ^ {*known}]
    return other + [
        f"{name}: {row['solved']} questions solved, {known[name]['solved']} before"
        for name, row in rows.items()
        if name in known and row["solved"] < known[name]["solved"]
    ]


def main() -> int:
    """Print a row for each trainer; return 1 if anything disagrees, or fewer questions have an answer than before."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layouts", type=int, default=2016)
    parser.add_argument("--questions", type=int, default=315)
    parser.add_argument("--seed", type=int, default=1905)
    parser.add_argument("--renew", action="store_true", help="write the counts as the new baseline")
    asked = parser.parse_args()
    layouts = -(-asked.layouts // len(TRAINERS))
    questions = -(-asked.questions // len(TRAINERS))
    print(f"{'trainer':28} layouts agree  questions solved agree  seconds")
    faults: list[str] = []
    rows: dict[str, dict[str, int]] = {}
    for trainer in TRAINERS:
        start = time.process_time()
        found = layouts_of(trainer, layouts, asked.seed)
        solved, came = questions_of(trainer, questions, asked.seed)
        spent_s = time.process_time() - start
        print(
            f"{trainer!s:28} {layouts:7} {found['']:5}  {questions:9} {solved:6} {came['']:5}  {spent_s:7.1f}",
            flush=True,
        )
        faults += [f"{trainer}: {text}" for text in (*found, *came) if text]
        rows[str(trainer)] = {
            "layouts": layouts, "layouts_agree": found[""], "questions": questions, "solved": solved,
            "questions_agree": came[""],
        }  # fmt: skip
    print({name: sum(row[name] for row in rows.values()) for name in next(iter(rows.values()))})
    size = {"layouts": asked.layouts, "questions": asked.questions, "seed": asked.seed}
    faults += compared(rows, asked.renew, size)
    for fault in faults:
        print(fault)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
