"""The megatron-core package: what its schedules hold, how it reads layout strings, which ranks its groups have."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from pathlib import Path

from checks.megatron_core import answer, questions

INSIDE = Path(__file__).parent / "inside" / "megatron_core.py"
RECORDED = Path(__file__).parents[2] / "tests" / "data" / "referees" / "megatron_core.json"


def referee(python: Path, *, record: bool) -> int:
    """Print how many questions of each kind are answered as we do; return the number of others."""
    asked = questions()
    lines = "\n".join(map(json.dumps, asked))
    done = subprocess.run([str(python), str(INSIDE)], input=lines, capture_output=True, text=True)
    theirs = [json.loads(line) for line in done.stdout.splitlines()]
    if len(theirs) != len(asked):
        raise RuntimeError((done.stderr.strip().splitlines() or ["no word"])[-1])
    rows = [{"question": one, "answer": said} for one, said in zip(asked, theirs, strict=True)]
    wrong = [row for row in rows if row["answer"] != answer(row["question"])]
    for kind, count in Counter(next(iter(one)) for one in asked).items():
        print(
            f"megatron-core {kind}: {count - sum(kind in row['question'] for row in wrong)} of {count} as we say"
        )
    for row in wrong:
        print(f"  {row['question']}: theirs {row['answer']}, ours {answer(row['question'])}")
    if record:
        RECORDED.write_text("[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n")
    return len(wrong)
