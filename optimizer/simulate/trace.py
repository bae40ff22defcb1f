"""A simulated step as a Chrome trace, which chrome://tracing and Perfetto open."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from layoutopt.optimizer.cost.orders import Kind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from layoutopt.optimizer.simulate.result import SimulationResult

    Event = dict[str, object]

_LETTERS = {Kind.FORWARD: "F", Kind.BACKWARD: "B", Kind.DGRAD: "D", Kind.WGRAD: "W"}
# Names from Chrome's reserved palette; any other name is ignored by the viewers.
_COLOURS = {
    Kind.FORWARD: "thread_state_running",
    Kind.BACKWARD: "thread_state_iowait",
    Kind.DGRAD: "thread_state_runnable",
    Kind.WGRAD: "thread_state_unknown",
    Kind.PAIR: "rail_response",
}
_COMPUTE, _COMMUNICATION = 0, 1
_MICROSECONDS = 1e6


def chrome_trace(result: SimulationResult) -> dict[str, object]:
    """Return the trace as a JSON object in the Trace Event Format.

    Each rank is a process with a track for compute and one for communication (what it sends), and a counter
    of the bytes it holds. Names: F forward, B whole backward, D backward for inputs, W for weights, F+B a
    pair; then chunk.micro-batch. Times are microseconds from the step's start.
    """
    events = [*_track_names(result), *_compute(result), *_communication(result), *_memory(result)]
    pipeline = result.pipeline
    described = {
        "schedule": pipeline.schedule.value,
        "pp": pipeline.pp,
        "vp": pipeline.vp,
        "micro_batches": pipeline.micro_batches,
        "makespan_s": result.makespan_s,
    }
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": described}


def _track_names(result: SimulationResult) -> Iterator[Event]:
    for rank in range(result.pipeline.pp):
        yield {"ph": "M", "name": "process_name", "pid": rank, "args": {"name": f"stage {rank}"}}
        yield {"ph": "M", "name": "process_sort_index", "pid": rank, "args": {"sort_index": rank}}
        for track, name in ((_COMPUTE, "compute"), (_COMMUNICATION, "communication")):
            yield {"ph": "M", "name": "thread_name", "pid": rank, "tid": track, "args": {"name": name}}
            yield {
                "ph": "M",
                "name": "thread_sort_index",
                "pid": rank,
                "tid": track,
                "args": {"sort_index": track},
            }


def _slice(name: str, rank: int, track: int, start_s: float, end_s: float, args: dict[str, object]) -> Event:
    return {
        "ph": "X",
        "name": name,
        "pid": rank,
        "tid": track,
        "ts": start_s * _MICROSECONDS,
        "dur": (end_s - start_s) * _MICROSECONDS,
        "args": args,
    }


def _compute(result: SimulationResult) -> Iterator[Event]:
    ops = result.operations
    columns = (ops.rank, ops.kind, ops.chunk, ops.micro_batch, ops.backward_chunk, ops.backward_micro_batch)
    rows = zip(*(column.tolist() for column in (*columns, ops.start_s, ops.end_s)), strict=True)
    for rank, kind, chunk, i, backward_chunk, j, start_s, end_s in rows:
        args: dict[str, object] = {"chunk": chunk, "micro_batch": i}
        if kind == Kind.PAIR:
            name = f"F{chunk}.{i} + B{backward_chunk}.{j}"
            args |= {"backward_chunk": backward_chunk, "backward_micro_batch": j}
        else:
            name = f"{_LETTERS[Kind(kind)]}{chunk}.{i}"
        yield {
            **_slice(name, rank, _COMPUTE, start_s, end_s, args),
            "cat": "compute",
            "cname": _COLOURS[Kind(kind)],
        }


def _communication(result: SimulationResult) -> Iterator[Event]:
    """Yield what each rank sends; where two links are busy at once, one slice names both, for slices must not
    overlap.
    """
    moved = result.transfers
    columns = (moved.source, moved.target, moved.chunk, moved.micro_batch, moved.gradient)
    sent: dict[int, list[tuple[float, float, str]]] = {}
    for source, target, chunk, i, gradient, start_s, end_s in zip(
        *(column.tolist() for column in (*columns, moved.start_s, moved.end_s)), strict=True
    ):
        # A transfer of no time would be a slice of no width.
        if end_s > start_s:
            name = f"{'B' if gradient else 'F'}{chunk}.{i} to stage {target}"
            sent.setdefault(source, []).append((start_s, end_s, name))
    for rank, transfers in sorted(sent.items()):
        for start_s, end_s, names in _without_overlap(transfers):
            event = _slice(", ".join(names), rank, _COMMUNICATION, start_s, end_s, {"transfers": names})
            yield {**event, "cat": "p2p"}


def _without_overlap(transfers: list[tuple[float, float, str]]) -> Iterator[tuple[float, float, list[str]]]:
    """Cut possibly overlapping intervals at every start and end, and yield the busy pieces with all names in
    them.
    """
    waiting = sorted(transfers, reverse=True)
    active: list[tuple[float, float, str]] = []
    cuts = sorted({time for start, end, _ in transfers for time in (start, end)})
    for start_s, end_s in pairwise(cuts):
        active = [item for item in active if item[1] > start_s]
        while waiting and waiting[-1][0] <= start_s:
            active.append(waiting.pop())
        if active:
            yield start_s, end_s, [name for _, _, name in active]


def _memory(result: SimulationResult) -> Iterator[Event]:
    for rank, memory in enumerate(result.memory):
        last = -1.0
        for time_s, held in zip(memory.time_s[::-1].tolist(), memory.held_bytes[::-1].tolist(), strict=True):
            # Only the last of several changes at one moment is a state that lasts.
            if time_s != last:
                yield {
                    "ph": "C",
                    "name": "held bytes",
                    "pid": rank,
                    "ts": time_s * _MICROSECONDS,
                    "args": {"bytes": held},
                }
            last = time_s
