"""The smallest experiment as files: launch files and benchmark lines of what to measure, and what to expect of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutopt.optimizer.evidence.next_runs import STEPS, ProbeKind
from layoutopt.optimizer.interop.launch.export import export
from layoutopt.optimizer.report.json_forms import to_plain
from layoutopt.optimizer.report.tables.next_runs import probe_words, turn_words
from layoutopt.optimizer.specs.errors import InputError
from layoutopt.optimizer.specs.writing import to_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from layoutopt.optimizer.evidence.next_runs import NextRuns, Probe, ProbeJob
    from layoutopt.optimizer.solve.plan import SolveOptions

PAGE = "README.md"
EXPECTED = "expected.json"

PROFILER = (
    "Time steps 11 to 20 of each run. Megatron-LM: --profile --use-pytorch-profiler --profile-step-start 12",
    "--profile-step-end 14 --profile-ranks 0; torchtitan: profiling.enable_profiling with profile_freq 14. The trace goes",
    "into `layoutopt diagnose`.",
)


def experiment_files(found: NextRuns, options: SolveOptions) -> dict[str, str]:
    """Return texts by path below the folder: one folder per measurement, a page, and the numbers to expect."""
    files: dict[str, str] = {}
    launches: dict[int, str] = {}
    lines = ["# What to measure", ""]
    for place, one in enumerate(found.suggestions, start=1):
        folder = f"{place}-{one.probe.kind.value}"
        written, said = _files(one.probe, options)
        files |= {f"{folder}/{name}": text for name, text in written.items()}
        if written:
            launches[place] = f"{folder}/{next(iter(written))}"
        lines += [f"{place}. {probe_words(one.probe)}: {turn_words(one)}.", f"   {said}", ""]
    if not found.suggestions:
        lines += ["Nothing that can be measured would change the choice.", ""]
    lines += [*PROFILER, ""]
    lines += _again(found, launches)
    return {**files, PAGE: "\n".join(lines) + "\n", EXPECTED: to_json(to_plain(found))}


def _again(found: NextRuns, launches: Mapping[int, str]) -> list[str]:
    """Say how what was read enters, and that the choice is made again; ``launches`` are launch files by their place."""
    if not found.suggestions:
        return []
    lines = [
        "Then make the choice again. What was read enters the cluster, one run after the other:",
        "",
        "```",
    ]
    cluster = "CLUSTER"
    for place, one in enumerate(found.suggestions, start=1):
        folder = f"{place}-{one.probe.kind.value}"
        if one.probe.kind is ProbeKind.BENCHMARK:
            told = f"--nccl {folder}/LOG"
        elif place in launches:
            told = f"--profile {folder}/LOG --plan {launches[place]}"
        # What the trainer's exporter can't launch leaves no log to read.
        else:
            continue
        # Each step goes on from the file that the one before wrote: a calibration keeps what was read earlier.
        lines.append(f"layoutopt calibrate --cluster {cluster} {told} -o own-{place}.yaml")
        cluster = f"own-{place}.yaml"
    lines += [f"layoutopt next-runs MODEL {cluster}", "```", ""]
    places = [one.probe.layout + 1 for one in found.suggestions if one.probe.kind is ProbeKind.RUN]
    if not places:
        return lines
    measured = " ".join(f"--measured {place}=SECONDS" for place in places)
    again = f"layoutopt next-runs MODEL CLUSTER {measured}"
    return [*lines, "Or with the seconds per step alone:", "", "```", again, "```"]


def _files(probe: Probe, options: SolveOptions) -> tuple[dict[str, str], str]:
    """Return the files of one measurement and how to start it."""
    if probe.benchmark is not None:
        one = probe.benchmark
        line = f"{one.program} -b {round(one.size_bytes)} -e {round(one.size_bytes)} -n 20 -g 1"
        lines = (
            "#!/bin/sh",
            f"# One process per GPU, {one.members} GPUs placed as those of a {one.axis} group.",
            f"mpirun -np {one.members} {line}",
        )
        said = f"Bus bandwidth {one.bus_bytes_per_s / 1e9:.0f} GB/s is expected."
        return {"benchmark.sh": "\n".join(lines) + "\n"}, said
    assert probe.job is not None
    return _launch(probe.job, options)


def _launch(job: ProbeJob, options: SolveOptions) -> tuple[dict[str, str], str]:
    framework = options.framework.value
    try:
        written = export(job.layout, job.workload, job.cluster, framework, version=options.space.software)
    except InputError as error:
        return {}, f"No launch file: {error.problems[0].what}"
    return dict(written.files), f"Start: {written.command} (stop it after {STEPS} steps)"
