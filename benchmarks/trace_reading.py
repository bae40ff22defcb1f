"""Memory and CPU time of reading a large trace: ``python benchmarks/trace_reading.py --gigabytes 1``.

A job's trace is repeated step by step until its JSON has the size that is asked for, and compressed. One child process
reads it as ``diagnose`` does, another only decompresses it and parses its events; peak memory and the ratio of their CPU
times, both of this run, are compared with ``trace_reading_baseline.json``, which ``--write`` writes anew.
"""

from __future__ import annotations

import argparse
import gzip
import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

BASELINE = Path(__file__).with_name("trace_reading_baseline.json")
MOST_BYTES = 600e6
MOST_RATIO = 6.0
BATCH = 2000


def write_trace(path: Path, size_bytes: float) -> int:
    """Write a compressed trace of about so many bytes of JSON, an event per line, and return the bytes."""
    from checks.traced_faults import clean
    from checks.traced_files import trace_of
    from checks.traced_run import Run

    case = clean(0)
    plain = trace_of(case.job, Run(case.job).ranks[0])
    events: list[dict[str, Any]] = plain.pop("traceEvents")
    for event in events:  # operators carry shapes and stacks in real traces, about as long as this
        event["args"] = {
            **event.get("args", {}),
            "Input Dims": "[[8192, 4096], [4096, 4096], [], []]",
            "Ev Idx": 123456,
        }
    span = max(event["ts"] + event.get("dur", 0) for event in events if event["ph"] == "X")
    written, step = 0, 0
    with gzip.open(path, "wb", compresslevel=1) as file:
        head = json.dumps(plain)[:-1] + ', "traceEvents": [\n'
        file.write(head.encode())
        first = True
        while written < size_bytes:
            lines = []
            for event in events:
                moved = {**event, "ts": round(event["ts"] + step * span, 3)}
                if event["name"].startswith("ProfilerStep#"):
                    moved["name"] = f"ProfilerStep#{int(event['name'][13:]) + 2 * step}"
                args = moved["args"]
                if "correlation" in args:
                    moved["args"] = {**args, "correlation": args["correlation"] + step * 10**6}
                lines.append(json.dumps(moved))
            text = ("" if first else ",\n") + ",\n".join(lines)
            file.write(text.encode())
            written, step, first = written + len(text), step + 1, False
        file.write(b"\n]}")
    return written


def read(path: str) -> int:
    """Read as the product does and return the events on the device."""
    from layoutopt.optimizer.interop.profiles.kineto import read_kineto
    from layoutopt.optimizer.interop.profiles.options import ProfileOptions

    return len(read_kineto(Path(path), ProfileOptions()).events.start_ns)


def parse(path: str) -> int:
    """Decompress and parse the events alone, many lines at a time."""
    count, lines = 0, list[str]()
    with gzip.open(path, "rt", encoding="utf-8") as file:
        next(file)
        for line in file:
            if line.startswith("]"):
                break
            lines.append(line)
            if len(lines) == BATCH:
                count += len(json.loads("[" + "".join(lines).rstrip(",\n") + "]"))
                lines.clear()
        count += len(json.loads("[" + "".join(lines).rstrip(",\n") + "]"))
    return count


def child(task: str, path: Path) -> dict[str, float]:
    """Run a task in a process of its own and return its CPU seconds and peak bytes."""
    found = subprocess.run(
        [sys.executable, __file__, "--task", task, str(path)], check=True, capture_output=True, text=True
    )
    measured: dict[str, float] = json.loads(found.stdout)
    return measured


def main() -> int:
    """Measure and compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", nargs="?")
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--task", choices=("read", "parse"))
    parser.add_argument("--write", action="store_true", help="Write the baseline.")
    asked = parser.parse_args()
    if asked.task:
        count = {"read": read, "parse": parse}[asked.task](asked.path)
        used = resource.getrusage(resource.RUSAGE_SELF)
        print(
            json.dumps(
                {"count": count, "cpu_s": used.ru_utime + used.ru_stime, "peak_bytes": used.ru_maxrss * 1024}
            )
        )
        return 0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rank0_trace.json.gz"
        size = write_trace(path, asked.gigabytes * 1e9)
        ours, alone = child("read", path), child("parse", path)
    ratio = ours["cpu_s"] / alone["cpu_s"]
    plain = {
        "json_bytes": size, "events": alone["count"], "device_events": ours["count"], "peak_bytes": ours["peak_bytes"],
        "cpu_ratio": round(ratio, 3),
    }  # fmt: skip
    print(json.dumps(plain, indent=2))
    if asked.write:
        BASELINE.write_text(json.dumps(plain, indent=2) + "\n", encoding="utf-8")
    return int(ours["peak_bytes"] > MOST_BYTES or ratio > MOST_RATIO)


if __name__ == "__main__":
    sys.exit(main())
