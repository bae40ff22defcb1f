"""Do the rules, the search, evaluate, the exporters and the importers agree? Random layouts and questions by the thousand.

python benchmarks/agreement.py [--layouts 2000] [--questions 300] [--seed 0]
"""

from __future__ import annotations

import argparse
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


def layouts_of(trainer: Trainer, number: int, seed: int) -> Counter[str]:
    """Ask about random layouts; count what each disagreement says."""
    rng, cluster = np.random.default_rng(seed), load_cluster(CLUSTER)
    found: Counter[str] = Counter()
    for _ in range(number):
        layout, model = random_layout(rng)
        found[disagreement_on_layout(trainer, layout, model, cluster)] += 1
    return found


def questions_of(trainer: Trainer, number: int, seed: int) -> tuple[int, Counter[str]]:
    """Solve random questions; return how many have an answer, and what each disagreement says."""
    rng = np.random.default_rng(seed)
    found: Counter[str] = Counter()
    solved = 0
    for _ in range(number):
        question = random_question(rng, trainer)
        came = answer(question)
        solved += came.solved
        found[f"{question}: {came.fault}" if came.fault else ""] += 1
    return solved, found


def main() -> int:
    """Print a row for each trainer; return 1 if anything disagrees."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layouts", type=int, default=2000)
    parser.add_argument("--questions", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    layouts = -(-asked.layouts // len(TRAINERS))
    questions = -(-asked.questions // len(TRAINERS))
    print(f"{'trainer':28} layouts agree  questions solved agree  seconds")
    faults: list[str] = []
    totals: Counter[str] = Counter()
    for trainer in TRAINERS:
        start = time.perf_counter()
        found = layouts_of(trainer, layouts, asked.seed)
        solved, came = questions_of(trainer, questions, asked.seed + 1)
        spent_s = time.perf_counter() - start
        row = (
            f"{trainer!s:28} {layouts:7} {found['']:5}  {questions:9} {solved:6} {came['']:5}  {spent_s:7.1f}"
        )
        print(row, flush=True)
        faults += [f"{trainer}: {text}" for text in (*found, *came) if text]
        totals += Counter(
            layouts=layouts, layouts_agree=found[""], questions=questions, solved=solved, agree=came[""]
        )
    print(dict(totals))
    for fault in faults:
        print(fault)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
