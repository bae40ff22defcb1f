"""One rank's PyTorch profile as a ``RankProfile``: device events with their phases, collectives, groups, steps."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from layoutopt.optimizer.diagnose.intervals import contains, enclosed, merged
from layoutopt.optimizer.diagnose.kernels import kernel_kind, stall_of
from layoutopt.optimizer.diagnose.parts import Activity, Phase
from layoutopt.optimizer.diagnose.profile import Events, HostRange, RankProfile
from layoutopt.optimizer.diagnose.terms import COLLECTIVE, PARTS
from layoutopt.optimizer.interop.profiles.calls import CallTable, call_table, listed_in
from layoutopt.optimizer.interop.profiles.kineto_events import KinetoEvents, whole
from layoutopt.optimizer.interop.profiles.phases import phases_by_name
from layoutopt.optimizer.interop.profiles.steps import step_windows
from layoutopt.optimizer.interop.profiles.trace_file import WANTED, TraceFile
from layoutopt.optimizer.specs.errors import input_error

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from layoutopt.optimizer.interop.profiles.columns import Columns
    from layoutopt.optimizer.interop.profiles.options import ProfileOptions
    from layoutopt.optimizer.interop.profiles.trace_file import OnProgress

    IntArray = NDArray[np.int64]
    Table = dict[str, IntArray]

_RANK = re.compile(r"rank[_-]?(\d{1,7})", re.IGNORECASE)


def read_kineto(path: Path, options: ProfileOptions, on_progress: OnProgress | None = None) -> RankProfile:
    """Read one rank's trace. Raises ``InputError`` in one line for what is no such trace, or does not say what is needed."""
    file = TraceFile(path, on_progress)
    found = KinetoEvents()
    for event in file.events():
        found.add(event)
    if not len(found.device) and not len(found.operators):
        odd = f"; {found.odd:,} have no name or an impossible time" if found.odd else ""
        what = f"holds no events of PyTorch's profiler (categories kernel, cpu_op){odd}"
        raise input_error(what, WANTED, file=str(path))
    if len(found.launched) and not len(found.device):
        what = "holds launches of kernels, but no kernel with a possible time"
        raise input_error(what, WANTED, file=str(path))
    if len(found.processes) > 1:
        what = f"holds the profiles of {len(found.processes)} processes, merged"
        raise input_error(what, "one file per rank, as the profiler wrote them", file=str(path))
    return _Reading(path=path, header=file.header, found=found, options=options).profile()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reading:
    """A file that has been read."""

    path: Path
    header: dict[str, Any]
    found: KinetoEvents
    options: ProfileOptions

    @property
    def base_ns(self) -> int:
        """What the file's times count from."""
        return whole(self.header.get("baseTimeNanoseconds"), 0)

    @property
    def distributed(self) -> dict[str, Any]:
        """What the file says of the job."""
        stated = self.header.get("distributedInfo")
        return stated if isinstance(stated, dict) else {}

    def rank(self) -> int:
        """Return the rank: as told, as the file says, as its name says; a job of one is rank 0."""
        if self.options.rank is not None:
            return self.options.rank
        stated = str(self.distributed.get("rank", ""))
        if stated.isdecimal():
            return int(stated)
        named = _RANK.search(self.path.name)
        return int(named[1]) if named else 0

    def profile(self) -> RankProfile:
        """Assemble the record."""
        found, rank, on_gpu = self.found, self.rank(), bool(len(self.found.device))
        table = call_table(found.call_texts(), self.distributed, rank, self.options)
        events, launches, graphs = self._kernels(table) if on_gpu else self._operators(table)
        annotations = found.annotations.table()
        names = found.names.texts()
        steps, begun = step_windows(
            annotations, names, events, self.options, base_ns=self.base_ns, file=str(self.path)
        )
        within = (events.start_ns >= steps[0, 0]) & (events.start_ns < steps[-1, 1])
        if not within.any():
            raise input_error("has no events in its steps", WANTED, file=str(self.path))
        return RankProfile(
            rank=rank,
            source=str(self.path),
            host=str(self.header.get("host_name") or ""),
            device=self._device() if on_gpu else "cpu",
            names=names,
            kinds=table.kinds,
            groups=table.groups,
            events=events,
            calls=table.calls,
            steps=steps,
            begun_ns=begun,
            stalls=self._stalls(annotations, names),
            launches=launches,
            graphs=graphs,
            notes=(*table.notes, *self._left_out()),
            world=whole(self.distributed.get("world_size"), 0),
        )

    def _left_out(self) -> list[str]:
        odd = self.found.odd
        return (
            [f"{self.path.name}: {odd:,} events without a name or a possible time are left out"]
            if odd
            else []
        )

    def _device(self) -> str:
        listed = listed_in(self.header, "deviceProperties")
        number = int(np.bincount(np.maximum(self.found.device.table()["gpu"], 0)).argmax())
        named = [
            str(one.get("name", "")) for one in listed if isinstance(one, dict) and one.get("id") == number
        ]
        return named[0] if named else "gpu"

    def _stalls(self, annotations: Table, names: tuple[str, ...]) -> dict[str, tuple[HostRange, ...]]:
        """Return the annotated stretches in which the host may keep the device waiting."""
        stalls: dict[str, tuple[HostRange, ...]] = {}
        kinds = [stall_of(name) for name in names]
        for start, end, name in zip(
            annotations["start"], annotations["end"], annotations["name"], strict=True
        ):
            if kinds[name]:
                one = HostRange(
                    name=names[name], start_ns=int(start) + self.base_ns, end_ns=int(end) + self.base_ns
                )
                stalls[kinds[name]] = (*stalls.get(kinds[name], ()), one)
        return stalls

    def _kernels(self, table: CallTable) -> tuple[Events, int, int]:
        """Return a GPU's events, with the launches of the steps counted one by one and by graph."""
        device, launched = self.found.device.table(), self.found.launched.table()
        place = _lookup(launched["link"], device["link"])
        known = place >= 0
        launch = (
            np.where(known, launched["end"][place] + self.base_ns, -1)
            if len(launched["link"])
            else _absent(known)
        )
        names = self.found.names.texts()
        kinds = [kernel_kind(name) for name in names]
        part = np.array(
            [COLLECTIVE if one.part is None else PARTS.index(one.part) for one in kinds], dtype=np.int64
        )
        parts = np.where(device["copy"] > 0, PARTS.index(Activity.HOST_COPY), part[device["name"]])
        outer = np.array([self.found.outer.get(one, -1) for one in device["outer"].tolist()], dtype=np.int64)
        call = np.where(device["call"] >= 0, device["call"], outer)
        call, parts = table.of_kernels(call, parts, device["name"], names)
        phase = self._phases(launched, place) if known.any() else phases_by_name(device, kinds)
        counted = launched["graph"]
        return (
            _ordered(device, self.base_ns, parts, phase, launch, call),
            int((counted == 1).sum()),
            int((counted == 2).sum()),
        )

    def _phases(self, launched: Table, place: IntArray) -> IntArray:
        """Return the phase in which each kernel was launched: by the operators around the launch, on its thread."""
        start, thread = launched["start"][place], launched["thread"][place]
        found = np.full(len(place), int(Phase.FORWARD))
        for one in np.unique(thread):
            found[thread == one] = self.phases_at(start[thread == one], int(one))
        return found

    def phases_at(self, moments: IntArray, thread: int) -> IntArray:
        """Return the phase of a thread at given moments.

        The autograd engine's functions are backward; an operator of the forward pass inside of one is recomputation.
        """
        engine, forward = (_on_thread(one, thread) for one in (self.found.engine, self.found.forward))
        backward = merged(*engine)
        again = enclosed(backward, *forward)
        repeated = merged(forward[0][again], forward[1][again])
        found = np.where(contains(backward, moments), int(Phase.BACKWARD), int(Phase.FORWARD))
        found = np.where(contains(repeated, moments), int(Phase.RECOMPUTE), found)
        return np.where(contains(self._optimizer(), moments), int(Phase.OPTIMIZER), found)

    def _optimizer(self) -> tuple[IntArray, IntArray]:
        annotations, names = self.found.annotations.table(), self.found.names.texts()
        chosen = np.array([name.startswith("Optimizer.step#") for name in names], dtype=bool)
        mine = chosen[annotations["name"]]
        return merged(annotations["start"][mine], annotations["end"][mine])

    def _operators(self, table: CallTable) -> tuple[Events, int, int]:
        """Return the operators of a run without a GPU as its events: the outermost ones, and gloo's collectives."""
        operators, called = self.found.operators.table(), self.found.called.table()
        names = self.found.names.texts()
        kinds = [kernel_kind(name) for name in names]
        part = np.array(
            [COLLECTIVE if one.part is None else PARTS.index(one.part) for one in kinds], dtype=np.int64
        )
        outer = _outermost(operators)
        called |= _blocking(called, self.found.asked.table()["start"], operators["start"][outer])
        rows = {
            name: np.concatenate([operators[name][outer], called[name]])
            for name in ("start", "end", "thread", "name")
        }
        call = np.concatenate([np.full(int(outer.sum()), -1), called["call"]])
        # gloo runs beside the thread that called it
        rows["stream"] = np.where(call >= 0, -1 - rows["thread"], rows["thread"])
        call, parts = table.of_kernels(call, part[rows["name"]], rows["name"], names)
        phase = np.full(len(call), int(Phase.FORWARD))
        for thread in np.unique(rows["thread"]):
            mine = rows["thread"] == thread
            phase[mine] = self.phases_at(rows["start"][mine], int(thread))
        return _ordered(rows, self.base_ns, parts, phase, np.full(len(call), -1), call), 0, 0


def _blocking(called: Table, asked: IntArray, operators: IntArray) -> Table:
    """Return when collectives without kernels began and ended for the thread that called them.

    It began with the operator that asked for it. Where no other operator began before it was through, the thread waited for
    it, and was through when its next operator began.
    """
    asked, operators = np.sort(asked), np.sort(operators)
    if not len(asked) or not len(operators):
        return {}
    place = np.searchsorted(asked, called["start"], side="right") - 1
    start = np.where(place >= 0, asked[np.maximum(place, 0)], called["start"])
    following = np.searchsorted(operators, start, side="right")
    behind = operators[np.minimum(following, len(operators) - 1)]
    waited = (following < len(operators)) & (behind >= called["end"])
    return {"start": start, "end": np.where(waited, behind, called["end"])}


def _absent(known: NDArray[np.bool_]) -> IntArray:
    return np.full(len(known), -1)


def _ordered(
    rows: Table, base_ns: int, part: IntArray, phase: IntArray, launch_ns: IntArray, call: IntArray
) -> Events:
    """Return the events by start."""
    order = np.argsort(rows["start"], kind="stable")
    return Events(
        start_ns=rows["start"][order] + base_ns,
        end_ns=rows["end"][order] + base_ns,
        stream=rows["stream"][order],
        part=part[order],
        phase=phase[order],
        launch_ns=launch_ns[order],
        name=rows["name"][order],
        call=call[order],
    )


def _lookup(keys: IntArray, wanted: IntArray) -> IntArray:
    """Return where each wanted key is, -1 where it is not."""
    if not len(keys):
        return np.full(len(wanted), -1)
    order = np.argsort(keys, kind="stable")
    place = order[np.minimum(np.searchsorted(keys[order], wanted), len(keys) - 1)]
    return np.where((keys[place] == wanted) & (wanted >= 0), place, -1)


def _on_thread(columns: Columns, thread: int) -> tuple[IntArray, IntArray]:
    table = columns.table()
    mine = table["thread"] == thread
    return table["start"][mine], table["end"][mine]


def _outermost(operators: Table) -> NDArray[np.bool_]:
    """Tell which operators lie in no other of their thread."""
    found = np.zeros(len(operators["start"]), dtype=bool)
    for thread in np.unique(operators["thread"]):
        mine = np.flatnonzero(operators["thread"] == thread)
        order = mine[np.lexsort((-operators["end"][mine], operators["start"][mine]))]
        reach = np.maximum.accumulate(operators["end"][order])
        before = np.concatenate([[np.iinfo(np.int64).min], reach[:-1]])
        found[order] = operators["end"][order] > before
    return found
