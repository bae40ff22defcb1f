"""One rank's PyTorch profile as a ``RankProfile``: device events with their phases, collectives, groups, steps."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from layoutopt.optimizer.diagnose.intervals import contains, enclosed, merged
from layoutopt.optimizer.diagnose.kernels import kernel_kind
from layoutopt.optimizer.diagnose.parts import Activity, Phase
from layoutopt.optimizer.diagnose.profile import RankProfile
from layoutopt.optimizer.interop.profiles.calls import call_table, listed_in
from layoutopt.optimizer.interop.profiles.columns import ordered, parts_of, places
from layoutopt.optimizer.interop.profiles.kineto_events import GRAPH, ONE, KinetoEvents, whole
from layoutopt.optimizer.interop.profiles.options import rank_in
from layoutopt.optimizer.interop.profiles.phases import in_optimizer, phases_by_name
from layoutopt.optimizer.interop.profiles.steps import host_begins, stalls_in, step_windows
from layoutopt.optimizer.interop.profiles.trace_file import WANTED, TraceFile
from layoutopt.optimizer.specs.errors import input_error

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from layoutopt.optimizer.diagnose.kernels import KernelKind
    from layoutopt.optimizer.diagnose.profile import Events, Product
    from layoutopt.optimizer.interop.profiles.calls import CallTable
    from layoutopt.optimizer.interop.profiles.columns import Columns, Table
    from layoutopt.optimizer.interop.profiles.options import ProfileOptions
    from layoutopt.optimizer.interop.profiles.trace_file import OnProgress

    IntArray = NDArray[np.int64]

_SUMS = re.compile(r"(?i)reduce|PostGSU")
"""Kernels that add up the parts of a multiplication that ran split."""


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
    # Read on, such a file would pass for a run without a GPU, whose operators are its device.
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
        """Return the rank: as the file says, as told, as its name says; a job of one is rank 0."""
        stated, told = str(self.distributed.get("rank", "")), self.options.rank
        # A job without process groups has no distributedInfo.
        if not stated.isdecimal():
            return (rank_in(self.path.name) or 0) if told is None else told
        if told not in (None, int(stated)):
            what = f"is {told}, and the profile says it is of rank {int(stated)}"
            raise input_error(what, "no --rank", key="--rank", file=str(self.path))
        return int(stated)

    def profile(self) -> RankProfile:
        """Assemble the record."""
        found, rank, on_gpu = self.found, self.rank(), bool(len(self.found.device))
        table = call_table(found.call_texts(), self.distributed, rank, self.options)
        rows, names, products = self._by_shape((found.device if on_gpu else found.operators).table())
        events, launches, graphs = (self._kernels if on_gpu else self._operators)(table, rows, names)
        annotations = found.annotations.table()
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
            kinds=tuple(table.kinds),
            groups=tuple(table.groups),
            events=events,
            calls=table.calls,
            steps=steps,
            begun_ns=begun,
            stalls=stalls_in(annotations, names, self.base_ns),
            launches=launches,
            graphs=graphs,
            notes=tuple(self._left_out()),
            world=whole(self.distributed.get("world_size"), 0),
            products=products,
        )

    def _by_shape(self, rows: Table) -> tuple[Table, tuple[str, ...], dict[int, Product]]:
        """Number the names of multiplications anew for each of their shapes; return rows, names, and shapes by number."""
        names, products = list(self.found.names.texts()), list(self.found.products)
        # One kernel multiplies many shapes at different speeds; under its name alone they would be one average.
        gemms = [kernel_kind(name).part is Activity.GEMM and not _SUMS.search(name) for name in names]
        mine = np.flatnonzero(np.array(gemms, dtype=bool)[rows["name"]])
        shapes = [self.found.shaped.get(one, -1) for one in rows["outer"][mine].tolist()]
        shape = np.array(shapes, dtype=np.int64)
        mine, shape = mine[shape >= 0], shape[shape >= 0]
        pairs, place = np.unique(rows["name"][mine] * max(len(products), 1) + shape, return_inverse=True)
        name = rows["name"].copy()
        name[mine] = len(names) + place
        first = len(names)
        found = {first + number: products[one % len(products)] for number, one in enumerate(pairs.tolist())}
        names += [names[one // len(products)] for one in pairs.tolist()]
        return {**rows, "name": name}, tuple(names), found

    def _left_out(self) -> list[str]:
        said, name = list[str](), self.path.name
        if self.found.odd:
            said.append(f"{name}: {self.found.odd:,} events without a name or a possible time are left out")
        if self.found.oversized:
            said.append(f"{name}: sizes of collectives that no GPU's memory holds are left out")
        return said

    def _device(self) -> str:
        listed = listed_in(self.header, "deviceProperties")
        # A file lists all GPUs of its node; the rank's is the one that its events are on.
        number = int(np.bincount(np.maximum(self.found.device.table()["gpu"], 0)).argmax())
        entries = [one for one in listed if isinstance(one, dict) and one.get("id") == number]
        return str(entries[0].get("name", "")) if entries else "gpu"

    def _kernels(self, table: CallTable, device: Table, names: tuple[str, ...]) -> tuple[Events, int, int]:
        """Return a GPU's events, with the launches of the steps counted one by one and by graph."""
        launched = self.found.launched.table()
        place = places(launched["link"], device["link"])
        known = place >= 0
        launch = np.where(known, launched["end"][place] + self.base_ns if len(launched["link"]) else -1, -1)
        kinds = [kernel_kind(name) for name in names]
        outer = np.array([self.found.outer.get(one, -1) for one in device["outer"].tolist()], dtype=np.int64)
        call = np.where(device["call"] >= 0, device["call"], outer)
        call, parts = table.of_kernels(call, parts_of(kinds, device), device["name"], names)
        phase, counted = self._phases(launched, place, device, kinds, names), launched["graph"]
        return (
            ordered(device, parts, in_optimizer(phase, parts), launch, call, self.base_ns),
            int((counted == ONE).sum()),
            int((counted == GRAPH).sum()),
        )

    def _phases(
        self,
        launched: Table,
        place: IntArray,
        device: Table,
        kinds: Sequence[KernelKind],
        names: tuple[str, ...],
    ) -> IntArray:
        """Return the phase in which each kernel was launched: by the operators around the launch, on its thread.

        Kernels without a launch have it by name, and so have those of a graph that no backward function replayed: it may
        hold passes in both directions.
        """
        known = place >= 0
        found = np.full(len(place), int(Phase.FORWARD))
        if known.any():
            start, thread = launched["start"][place], launched["thread"][place]
            for one in np.unique(thread[known]):
                mine = known & (thread == one)
                found[mine] = self.phases_at(start[mine], int(one))
            replayed = known & (launched["graph"][place] == GRAPH) & (found == Phase.FORWARD)
        else:
            replayed = known
        named = ~known | replayed
        if not named.any():
            return found
        launch = np.where(known, launched["end"][place] if len(launched["link"]) else -1, -1)
        begun = host_begins(self.found.annotations.table(), names)
        return np.where(named, phases_by_name(device, kinds, launch, begun), found)

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
        # torch wraps step() of every optimizer in a range of this name (torch/optim/optimizer.py, profile_hook_step).
        chosen = np.array([name.startswith("Optimizer.step#") for name in names], dtype=bool)
        mine = chosen[annotations["name"]]
        return merged(annotations["start"][mine], annotations["end"][mine])

    def _operators(
        self, table: CallTable, operators: Table, names: tuple[str, ...]
    ) -> tuple[Events, int, int]:
        """Return the operators of a run without a GPU as its events: the outermost ones, and gloo's collectives."""
        called = self.found.called.table()
        outer = _outermost(operators)
        called |= _blocking(called, self.found.asked.table()["start"], operators["start"][outer])
        columns = ("start", "end", "thread", "name")
        rows = {name: np.concatenate([operators[name][outer], called[name]]) for name in columns}
        call = np.concatenate([np.full(int(outer.sum()), -1), called["call"]])
        # gloo runs beside the thread that called it
        rows["stream"] = np.where(call >= 0, -1 - rows["thread"], rows["thread"])
        parts = parts_of([kernel_kind(name) for name in names], rows)
        call, parts = table.of_kernels(call, parts, rows["name"], names)
        phase = np.full(len(call), int(Phase.FORWARD))
        for thread in np.unique(rows["thread"]):
            mine = rows["thread"] == thread
            phase[mine] = self.phases_at(rows["start"][mine], int(thread))
        unknown = np.full(len(call), -1)
        return ordered(rows, parts, in_optimizer(phase, parts), unknown, call, self.base_ns), 0, 0


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


def _on_thread(columns: Columns, thread: int) -> tuple[IntArray, IntArray]:
    table = columns.table()
    mine = table["thread"] == thread
    return table["start"][mine], table["end"][mine]


def _outermost(operators: Table) -> NDArray[np.bool_]:
    """Tell which operators lie in no other of their thread."""
    found = np.zeros(len(operators["start"]), dtype=bool)
    for thread in np.unique(operators["thread"]):
        mine = np.flatnonzero(operators["thread"] == thread)
        # Of operators that begin together the longest comes first: it holds the others.
        order = mine[np.lexsort((-operators["end"][mine], operators["start"][mine]))]
        reach = np.maximum.accumulate(operators["end"][order])
        before = np.concatenate([[np.iinfo(np.int64).min], reach[:-1]])
        found[order] = operators["end"][order] > before
    return found
