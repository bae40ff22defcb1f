"""What the host's named ranges tell: where steps begin and end on the device, what may keep it waiting."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.diagnose.kernels import stall_of
from layoutopt.optimizer.diagnose.profile import HostRange
from layoutopt.optimizer.specs.errors import input_error

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from layoutopt.optimizer.diagnose.profile import Events
    from layoutopt.optimizer.interop.profiles.options import ProfileOptions

    IntArray = NDArray[np.int64]

MARK = "ProfilerStep#"
OVERLAP = 0.01
"""Share of a step by which its mark may reach into the next one's."""

STEP_OF_OPTIMIZER = "Optimizer.step#"


def step_windows(
    annotations: dict[str, IntArray],
    names: tuple[str, ...],
    events: Events,
    options: ProfileOptions,
    *,
    base_ns: int,
    file: str,
) -> tuple[IntArray, IntArray]:
    """Return the (n, 2) nanoseconds at which each step begins and ends, and when the host began each, (n,).

    A step's device time begins where the kernels launched before it have ended, not before the host began it, and lasts
    until the next one's begins. Steps are those that the profiler's schedule marks, else from one optimizer call to the
    next, else what ``options`` says. Raises ``InputError`` where nothing tells.
    """
    marks = _marked(annotations, names, MARK)
    if len(marks):
        _check_marks(annotations, names, marks, file)
        _check_count(options.steps, len(marks), file)
        begun = marks[:, 0] + base_ns
        return _on_device(begun, int(marks[-1, 1]) + base_ns, events), begun
    calls = _marked(annotations, names, STEP_OF_OPTIMIZER)
    ends = calls[:, 1] + base_ns
    if len(ends) > 1:  # the first call ends a step whose start the profile may not hold
        _check_count(options.steps, len(ends) - 1, file)
        return _on_device(ends[:-1], int(ends[-1]), events), ends[:-1]
    if options.steps is None:
        what = "marks no step: neither ProfilerStep# nor two optimizer calls"
        raise input_error(what, "--steps N says how many it holds", file=file)
    if options.steps > len(events.start_ns):
        what = f"has {len(events.start_ns):,} events, too few for {options.steps:,} steps"
        raise input_error(what, "--steps as many as it holds", file=file)
    # Nothing says where one step ends: equal parts are right in the mean, and no step by itself is to be believed.
    low, high = int(events.start_ns[0]), int(events.end_ns.max())
    cuts = np.linspace(low, high, options.steps + 1).round().astype(np.int64)
    return np.stack([cuts[:-1], cuts[1:]], axis=1), cuts[:-1]


def host_begins(annotations: dict[str, IntArray], names: tuple[str, ...]) -> IntArray:
    """Return when the host began each step that is marked, (n,), else each optimizer call's end; none where neither is."""
    marks = _marked(annotations, names, MARK)
    return marks[:, 0] if len(marks) else np.sort(_marked(annotations, names, STEP_OF_OPTIMIZER)[:, 1])


def _check_marks(
    annotations: dict[str, IntArray], names: tuple[str, ...], marks: IntArray, file: str
) -> None:
    """Refuse steps that are marked twice, overlap or have no length: several traces in one, or an edited file."""
    kinds, counts = np.unique(annotations["name"], return_counts=True)
    twice = [names[one] for one in kinds[counts > 1].tolist() if names[one].startswith(MARK)]
    if twice:
        raise input_error(f"marks {twice[0][:60]} twice", "one profile of one rank", file=file)
    if (marks[:, 1] <= marks[:, 0]).any():
        raise input_error("marks a step of no length", "steps from their begin to their end", file=file)
    late = marks[:-1, 1] - marks[1:, 0]
    if (late > OVERLAP * (marks[:-1, 1] - marks[:-1, 0])).any():
        allowed = "steps one after another, as the profiler's schedule marks them"
        raise input_error("has steps that overlap", allowed, file=file)


def _check_count(said: int | None, marked: int, file: str) -> None:
    """Refuse another number of steps than the file's own marks."""
    if said not in (None, marked):
        what = f"marks {marked:,} steps, not {said:,}"
        raise input_error(what, "--steps as it marks them, or no --steps", file=file)


def _marked(annotations: dict[str, IntArray], names: tuple[str, ...], word: str) -> IntArray:
    """Return the (n, 2) host times of annotations that begin with a word, in order."""
    chosen = np.array([name.startswith(word) for name in names], dtype=bool)
    mine = chosen[annotations["name"]] if len(names) else np.zeros(0, dtype=bool)
    times = np.stack([annotations["start"][mine], annotations["end"][mine]], axis=1)
    return times[np.argsort(times[:, 0])]


def _on_device(begun: IntArray, ended: int, events: Events) -> IntArray:
    """Turn the host's times into the device's.

    What was launched before a step ends before the step's own device time begins. Of events without a launch their own start
    counts.
    """
    # The host runs ahead of the device: its marks lie before the kernels that they speak of.
    launched = np.where(events.launch_ns >= 0, events.launch_ns, events.start_ns)
    order = np.argsort(launched, kind="stable")
    reach = np.maximum.accumulate(events.end_ns[order])
    cuts = []
    for moment in [*begun.tolist(), ended]:
        before = int(np.searchsorted(launched[order], moment, side="left"))
        cuts.append(max(moment, int(reach[before - 1])) if before else moment)
    edges = np.array(cuts, dtype=np.int64)
    return np.stack([edges[:-1], edges[1:]], axis=1)


def stalls_in(
    ranges: dict[str, IntArray], names: tuple[str, ...], base_ns: int = 0
) -> dict[str, tuple[HostRange, ...]]:
    """Return those of the ranges, columns (n,), in which the host may keep the device waiting, by what they are."""
    found: dict[str, list[HostRange]] = {}
    kinds = [stall_of(name) for name in names]
    columns = (ranges[column].tolist() for column in ("start", "end", "name"))
    for start, end, name in zip(*columns, strict=True):
        if kinds[name]:
            one = HostRange(name=names[name], start_ns=start + base_ns, end_ns=end + base_ns)
            found.setdefault(kinds[name], []).append(one)
    return {kind: tuple(listed) for kind, listed in found.items()}
