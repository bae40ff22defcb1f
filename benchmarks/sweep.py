"""Sweeps: local speed-up over serial, flat memory over many points, monotone step times. Ratios within one run.

    python benchmarks/sweep.py [--points 1000] [--workers 2]

Three parts. The speed-up solves the same 100 points serially and in local processes, each in a fresh store;
its ratio is judged only where two processes that count get at least 1.9 times the work of one done, before and after
(``machine_speed_up``): elsewhere the cores are at other work. ``cpu_overhead`` is the CPU time that processes add. Memory
solves ``--points`` points and compares the largest process after a tenth of them with the largest at the end. The
monotone part sweeps llama3-70b over 256 to 16,384 H100 and checks that nested step times never rise. Exit code 1 when
a limit is missed.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from layoutopt.optimizer.report.json_forms import plan_to_plain
from layoutopt.optimizer.solve.plan import SolveOptions
from layoutopt.optimizer.specs.loading import load_workload
from layoutopt.optimizer.sweep.executors.local import LocalExecutor, SerialExecutor
from layoutopt.optimizer.sweep.families import load_family
from layoutopt.optimizer.sweep.nested import best_within
from layoutopt.optimizer.sweep.points import SweepGrid
from layoutopt.optimizer.sweep.ranges import parse_counts
from layoutopt.optimizer.sweep.run import run_sweep
from layoutopt.optimizer.sweep.store import SweepStore

if TYPE_CHECKING:
    from layoutopt.optimizer.specs.workload import Workload
    from layoutopt.optimizer.sweep.points import SweepPoint
    from layoutopt.optimizer.sweep.run import SweepProgress

LEAST_SPEED_UP = 1.7
MOST_GROWTH = 1.15
"""Largest process at the end over that after a tenth of the points."""

SPEED_UP_POINTS = 100
LEAST_MACHINE_SPEED_UP = 1.9
"""What as many processes as workers must gain by mere counting, over two workers, for the speed-up to be judged."""

COUNTED = 20_000_000
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def main() -> int:
    """Run the parts and print their figures as JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--points", type=int, default=1000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--part", choices=("speed-up", "memory", "monotone"), help="Only one part.")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        figures: dict[str, Any] = {}
        if asked.part in (None, "speed-up"):
            figures |= speed_up(Path(folder), asked.workers)
        if asked.part in (None, "memory"):
            figures |= memory(Path(folder), asked.points, asked.workers)
        if asked.part in (None, "monotone"):
            figures |= monotone(Path(folder), asked.workers)
    print(json.dumps(figures, indent=2))
    return int(any(value is False for name, value in figures.items() if name.endswith("_ok")))


def small_points(count: int) -> tuple[SweepPoint, ...]:
    """Points of a model of eight layers: sizes by batches by networks, about a tenth of a second each."""
    base = load_workload("llama3-8b")
    model = replace(base.model, name="small", runs=(replace(base.model.runs[0], count=8),))
    batches = tuple(range(64, 64 * (count // 10 + 2), 64))
    grid = SweepGrid(
        workloads=[replace(base, model=model)],
        families=[load_family("h100")],
        gpus=(8, 16, 32, 64, 128),
        global_batches=batches,
        network_gbit_per_s=(200, 400),
        options=SolveOptions(top=1),
    )
    return grid.points()[:count]


def speed_up(folder: Path, workers: int) -> dict[str, Any]:
    """Solve the same points serially and in processes. Starting the processes counts."""
    workload: Workload = load_workload("llama3-70b")
    grid = SweepGrid(
        workloads=[workload],
        families=[load_family("h100")],
        gpus=parse_counts("256:4096:x2", key="gpus"),
        global_batches=(256, 512, 1024, 2048),
        network_gbit_per_s=(100, 200, 400, 800, 1600),
        options=SolveOptions(top=1),
    )
    points = grid.points()[:SPEED_UP_POINTS]
    seconds, cpu, failed = {}, {}, 0
    machine = machine_speed_up(workers)
    for name, executor in (("serial", SerialExecutor()), ("local", LocalExecutor(workers))):
        store, before = folder / f"{name}.db", sum(os.times()[:4])
        result = run_sweep(points, store, executor, write_plan=plan_to_plain, warm_start=False)
        seconds[name], failed = result.seconds, failed + result.failed
        cpu[name] = sum(os.times()[:4]) - before
    ratio = seconds["serial"] / seconds["local"]
    machine = min(machine, machine_speed_up(workers))
    judged = machine >= LEAST_MACHINE_SPEED_UP * workers / 2
    return {
        "speed_up_points": len(points),
        "serial_s": seconds["serial"],
        "local_s": seconds["local"],
        "workers": workers,
        "cpu_overhead": cpu["local"] / cpu["serial"] - 1,
        "speed_up": ratio,
        "machine_speed_up": machine,
        "failed": failed,
        "speed_up_ok": not failed and (ratio >= LEAST_SPEED_UP if judged else None),
    }


def machine_speed_up(workers: int) -> float:
    """How many times the counting of one process ``workers`` processes get done: what the machine has to give."""
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        pool.map(_count_s, [1] * workers, chunksize=1)  # the start of the processes is not measured
        alone_s = pool.apply(_count_s, (COUNTED,))
        together_s = max(pool.map(_count_s, [COUNTED] * workers, chunksize=1))
    return workers * float(alone_s) / together_s


def _count_s(number: int) -> float:
    start, total = time.perf_counter(), 0
    for value in range(number):
        total += value
    return time.perf_counter() - start


def memory(folder: Path, count: int, workers: int) -> dict[str, Any]:
    """Solve many points and watch the largest process."""
    points, early, largest = small_points(count), 0, 0

    def watch(progress: SweepProgress) -> None:
        nonlocal early, largest
        if progress.solved % 10 == 0:
            largest = max(largest, _largest_bytes())
        if progress.solved <= len(points) // 10:
            early = largest

    start = time.perf_counter()
    result = run_sweep(
        points, folder / "many.db", LocalExecutor(workers), write_plan=plan_to_plain, on_progress=watch
    )
    growth = largest / max(early, 1)
    return {
        "points": result.total,
        "failed": result.failed,
        "points_per_s": result.solved / (time.perf_counter() - start),
        "largest_process_bytes": largest,
        "store_bytes": (folder / "many.db").stat().st_size,
        "growth": growth,
        "growth_ok": growth <= MOST_GROWTH and result.failed == 0,
    }


def _largest_bytes() -> int:
    """Return the resident bytes of the largest of this process and its children (proc(5), statm)."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    sizes = []
    for process in ("self", *children):
        try:
            sizes.append(int(Path(f"/proc/{process}/statm").read_text().split()[1]) * PAGE_BYTES)
        except OSError:
            continue
    return max(sizes)


def monotone(folder: Path, workers: int) -> dict[str, Any]:
    """Sweep llama3-70b over one nested family, odd sizes too."""
    grid = SweepGrid(
        workloads=[load_workload("llama3-70b")],
        families=[load_family("h100")],
        gpus=parse_counts("256:16384:x2,384:12288:x2,320,1000,3000,5000", key="gpus"),
        options=SolveOptions(top=1),
    )
    store = folder / "family.db"
    run_sweep(grid.points(), store, LocalExecutor(workers), write_plan=plan_to_plain)
    with SweepStore(store) as opened:
        rows = sorted(best_within(opened.rows()), key=lambda row: row["gpus"])
    nested = [row["nested_step_time_s"] for row in rows]
    return {
        "sizes": [row["gpus"] for row in rows],
        "step_time_s": [row["step_time_s"] for row in rows],
        "nested_step_time_s": nested,
        "used_gpus": [row["used_gpus"] for row in rows],
        "monotone_ok": None not in nested and nested == sorted(nested, reverse=True),
    }


if __name__ == "__main__":
    sys.exit(main())
