"""Collectives of a step: what torch's own APIs call in tiny jobs on this machine, against what we count for them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from checks.counted import JOBS, alive, counted, states

if TYPE_CHECKING:
    from checks.counted import Calls, Job

INSIDE = Path(__file__).parent / "inside" / "torch_job.py"
RECORDED = Path(__file__).parents[2] / "tests" / "data" / "referees" / "collectives.json"


def called(python: Path, one: Job) -> list[dict[str, Any]]:
    """What the ranks of a job called."""
    done = subprocess.run([str(python), str(INSIDE)], input=json.dumps(one), capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or ["no word"])[-1])
    ranks: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return ranks


def by_stage(one: Job, ranks: list[dict[str, Any]]) -> list[tuple[Calls, dict[str, Any]]]:
    """Calls and state bytes of every pipeline rank, if all ranks of a stage have the same, and the fullest one's peak."""
    stages: list[list[dict[str, Any]]] = [[] for _ in range(one["pp"])]
    for rank in ranks:
        stages[rank["rank"] * one["pp"] // one["world"]].append(rank)
    found = []
    for same in stages:
        peaks = [rank["state"].pop("peak") for rank in same if "peak" in rank["state"]]
        kept = [(calls_of(rank["calls"]), rank["state"]) for rank in same]
        if any(other != kept[0] for other in kept):
            raise RuntimeError(f"ranks of one stage differ: {one}")
        most = {"peak": max(peaks, key=lambda peak: peak["all"])} if peaks else {}
        found.append((kept[0][0], kept[0][1] | most))
    return found


def calls_of(calls: list[dict[str, Any]]) -> Calls:
    """Rows as ours: both parts of the data-parallel mesh are dp."""
    named = {"shard": "dp", "replicas": "dp"}
    rows = [[named.get(c["axis"], c["axis"]), c["kind"], c["ranks"], c["bytes"], c["count"]] for c in calls]
    return sorted(row for row in rows if row[2] > 1)


def referee(python: Path, *, record: bool) -> int:
    """Print every job's verdict; return the number of those that differ."""
    wrong, rows = 0, []
    for one in JOBS:
        found, ours = by_stage(one, called(python, one)), counted(one)
        theirs, kept = [calls for calls, _ in found], [state for _, state in found]
        same = theirs == ours and all(
            mine.items() <= state.items() for mine, state in zip(states(one), kept, strict=True)
        )
        peaks = [
            max(mine.values()) / state["peak"]["all"]
            for state, mine in zip(kept, alive(one), strict=True)
            if "peak" in state
        ]
        names = ("backend", "tp", "cp", "ep", "pp", "vp", "dp", "shard", "zero", "schedule")
        print(
            f"{'exact' if same else 'OTHER'}  {sum(map(len, theirs)):3} rows  {[one[name] for name in names]}"
            f"  ours over most alive {', '.join(f'{peak:.2f}' for peak in peaks)}",
            flush=True,
        )
        if not same:
            wrong += 1
            print(f"  state theirs: {kept}, ours: {states(one)}")
            for stage, (left, right) in enumerate(zip(theirs, ours, strict=True)):
                print(f"  stage {stage} theirs: {[row for row in left if row not in right]}")
                print(f"  stage {stage} ours:   {[row for row in right if row not in left]}")
        rows.append({"job": one, "calls": theirs, "states": kept})
    if record:
        RECORDED.write_text("[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n")
    return wrong
