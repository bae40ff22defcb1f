"""Reports of Nsight Systems as SQLite (``nsys export --type sqlite``): one ``RankProfile`` per process that used a GPU."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.diagnose.intervals import contains, merged
from layoutopt.optimizer.diagnose.kernels import kernel_kind
from layoutopt.optimizer.diagnose.parts import Phase
from layoutopt.optimizer.diagnose.profile import RankProfile
from layoutopt.optimizer.interop.profiles.calls import CallTable
from layoutopt.optimizer.interop.profiles.columns import by_name, ordered, parts_of, places
from layoutopt.optimizer.interop.profiles.kineto_events import LONGEST_NS, MOST_NS
from layoutopt.optimizer.interop.profiles.options import rank_in
from layoutopt.optimizer.interop.profiles.phases import phases_by_name
from layoutopt.optimizer.interop.profiles.steps import host_begins, stalls_in, step_windows
from layoutopt.optimizer.specs.errors import input_error

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from layoutopt.optimizer.diagnose.profile import Events
    from layoutopt.optimizer.interop.profiles.options import ProfileOptions

    IntArray = NDArray[np.int64]
    Table = dict[str, IntArray]

WANTED = "a report of Nsight Systems: nsys export --type sqlite REPORT.nsys-rep"
TO_HOST, FROM_HOST = 2, 1
"""``copyKind`` of device to host and host to device (ENUM_CUDA_MEMCPY_OPER)."""

# A global id holds hardware, virtual machine, process and thread, 24 bits for each of the last two.
_PROCESS = "((cast({0} as integer) >> 24) & 16777215)"


def _possible(row: str, owner: str) -> str:
    """Return the condition that a row says when it was, and of which process; a row that says neither is counted."""
    times = " and ".join(f"typeof({row}.{name}) in ('integer', 'real')" for name in ("start", "end"))
    return (
        f"coalesce({times} and typeof({row}.{owner}) = 'integer' and abs({row}.start) < {MOST_NS}"
        f" and {row}.end - {row}.start between 0 and {LONGEST_NS}, 0)"
    )


def _number(column: str) -> str:
    """Return a column as a whole number, -1 where there is none."""
    return f"cast(coalesce({column}, -1) as integer)"


_KERNEL = f"{_possible('k', 'globalPid')} and coalesce(k.demangledName in (select id from StringIds), 0)"
_KERNELS = f"""
select {_number("k.start")}, {_number("k.end")}, {_number("k.streamId")}, k.demangledName, {_number("k.correlationId")},
       {_PROCESS.format("k.globalPid")}, {{graph}}
from CUPTI_ACTIVITY_KIND_KERNEL k where {_KERNEL} order by k.start
"""
_LAUNCH = _possible("r", "globalTid")
_LAUNCHES = f"""
select {_number("r.correlationId")}, {_PROCESS.format("r.globalTid")}, {_number("r.start")}, {_number("r.end")}
from CUPTI_ACTIVITY_KIND_RUNTIME r where {_LAUNCH}
"""
_COPY = _possible("c", "globalPid")
_COPIES = f"""
select {_number("c.start")}, {_number("c.end")}, {_number("c.streamId")}, c.copyKind, {_number("c.correlationId")},
       {_PROCESS.format("c.globalPid")}
from CUPTI_ACTIVITY_KIND_MEMCPY c where c.copyKind in ({FROM_HOST}, {TO_HOST}) and {_COPY}
"""
_RANGE = _possible("n", "globalTid")
_RANGES = f"""
select cast(coalesce(n.text, s.value) as text), {_number("n.start")}, {_number("n.end")}, {_PROCESS.format("n.globalTid")}
from NVTX_EVENTS n left join StringIds s on s.id = n.textId where n.eventType in (59, 60) and {_RANGE}
"""
_IMPOSSIBLE = {
    "CUPTI_ACTIVITY_KIND_KERNEL": f"k where not ({_KERNEL})",
    "CUPTI_ACTIVITY_KIND_RUNTIME": f"r where not {_LAUNCH}",
    "CUPTI_ACTIVITY_KIND_MEMCPY": f"c where not {_COPY}",
    # a range that was open when the profile ended has no end
    "NVTX_EVENTS": f"n where n.end is not null and n.eventType in (59, 60) and not {_RANGE}",
}
"""Rows without a possible time, by table: no such row is read."""


def read_nsight(path: Path, options: ProfileOptions) -> tuple[RankProfile, ...]:
    """Read a report. A process is a rank; its number comes from options, from NVTX or from the file's name.

    Sizes of collectives and groups stand in no table: whose traffic a kernel is, ``options.axes`` says by its kind. Raises
    ``InputError`` in one line.
    """
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as base:
            report = _Report(path=path, base=base, options=options)
            processes = report.processes()
            if options.rank is not None and len(processes) > 1:
                what = f"is said of one rank, and the report holds {len(processes)}"
                raise input_error(what, "no --rank", key="--rank", file=str(path))
            return tuple(
                report.profile(process, len(processes) == 1, place) for place, process in enumerate(processes)
            )
    except sqlite3.DatabaseError as error:
        raise input_error(f"cannot be read: {str(error)[:60]}", WANTED, file=str(path)) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Report:
    """An open report."""

    path: Path
    base: sqlite3.Connection
    options: ProfileOptions

    def has(self, table: str) -> bool:
        """Tell whether a table was made; they are only made when data exist."""
        query = "select 1 from sqlite_master where name = ?"
        return self.base.execute(query, (table,)).fetchone() is not None

    def processes(self) -> list[int]:
        """Return the processes that ran kernels, in order."""
        if not self.has("CUPTI_ACTIVITY_KIND_KERNEL") or not self.has("StringIds"):
            raise input_error("holds no kernels", WANTED, file=str(self.path))
        owner = _PROCESS.format("k.globalPid")
        query = f"select distinct {owner} from CUPTI_ACTIVITY_KIND_KERNEL k where {_KERNEL} order by 1"
        found = [int(one) for (one,) in self.base.execute(query)]
        if not found:
            allowed = "profile with nsys profile --trace cuda,nvtx"
            odd = self.left_out()
            what = f"holds no kernels with a possible time: {odd}" if odd else "holds no kernels"
            raise input_error(what, allowed, file=str(self.path))
        return found

    def left_out(self) -> str:
        """Say how many rows tell no possible time or name; empty where all do."""
        found = 0
        for table, rows in _IMPOSSIBLE.items():
            if self.has(table):
                found += self.base.execute(f"select count(*) from {table} {rows}").fetchone()[0]
        return f"{found:,} rows without a name or a possible time are left out" if found else ""

    def gpu(self, process: int) -> str:
        """Return the name of the GPU on which a process ran the most kernels, ``gpu`` where the report has none."""
        if not self.has("TARGET_INFO_GPU"):
            return "gpu"
        # Columns differ between releases of Nsight Systems.
        columns = self.base.execute("select name from pragma_table_info('TARGET_INFO_GPU')")
        known = {name for (name,) in columns}
        if not {"id", "name"} <= known:
            return "gpu"
        query = f"""
        select cast(g.name as text) from CUPTI_ACTIVITY_KIND_KERNEL k join TARGET_INFO_GPU g on g.id = k.deviceId
        where {_PROCESS.format("k.globalPid")} = ? and g.name is not null group by g.name order by count(*) desc
        """
        found = self.base.execute(query, (process,)).fetchone()
        return str(found[0]) if found else "gpu"

    def profile(self, process: int, alone: bool, place: int) -> RankProfile:
        """Assemble one rank."""
        names = self.names()
        device, launches = self.device(process), self.launches(process)
        started = places(launches["link"], device["link"])
        launch = np.where(started >= 0, launches["end"][started] if len(launches["link"]) else -1, -1)
        kinds = [kernel_kind(name) for name in names]
        table = CallTable(axes=self.options.axes)
        unknown = np.full(len(started), -1)
        call, parts = table.of_kernels(unknown, parts_of(kinds, device), device["name"], names)
        ranges, range_names = self.ranges(process)
        phase = phases_by_name(device, kinds, launch, host_begins(ranges, range_names))
        events = ordered(device, parts, phase, launch, call)
        steps, begun = step_windows(ranges, range_names, events, self.options, base_ns=0, file=str(self.path))
        events = _optimizer_phase(events, ranges, range_names)
        return RankProfile(
            rank=self.rank(alone, place),
            source=str(self.path),
            host=self.path.name if alone else "",
            device=self.gpu(process),
            names=names,
            kinds=tuple(table.kinds),
            groups=tuple(table.groups),
            events=events,
            calls=table.calls,
            steps=steps,
            begun_ns=begun,
            stalls=stalls_in(ranges, range_names),
            launches=int((device["graph"] == 0).sum()),
            graphs=len(np.unique(device["link"][device["graph"] == 1])),
            notes=(f"{self.path.name}: {odd}",) if (odd := self.left_out()) else (),
        )

    def names(self) -> tuple[str, ...]:
        """Return all texts, by number."""
        # SQLite's columns hold any type whatever they declare: a text may be a number or null in a damaged report.
        rows = dict(self.base.execute("select id, cast(coalesce(value, '') as text) from StringIds"))
        return tuple(rows.get(number, "") for number in range(max(rows, default=-1) + 1))

    def rank(self, alone: bool, place: int) -> int:
        """Return the rank: as told, by the file's name, else by the order of the processes."""
        if self.options.rank is not None and alone:
            return self.options.rank
        named = rank_in(self.path.name)
        return named if named is not None and alone else place

    def device(self, process: int) -> Table:
        """Return kernels and copies between host and device of a process."""
        # only there when graphs were traced by their nodes
        query = "select 1 from pragma_table_info('CUPTI_ACTIVITY_KIND_KERNEL') where name = 'graphNodeId'"
        traced = self.base.execute(query).fetchone() is not None
        kernels = _KERNELS.format(graph="k.graphNodeId is not null" if traced else "0")
        rows = [
            (start, end, stream, name, link, graph, 0)
            for start, end, stream, name, link, owner, graph in self.base.execute(kernels)
            if owner == process
        ]
        if self.has("CUPTI_ACTIVITY_KIND_MEMCPY"):
            rows += [
                (start, end, stream, 0, link, 0, kind)
                for start, end, stream, kind, link, owner in self.base.execute(_COPIES)
                if owner == process
            ]
        return by_name(rows, ("start", "end", "stream", "name", "link", "graph", "copy"))

    def launches(self, process: int) -> Table:
        """Return the runtime's calls of a process."""
        rows = []
        if self.has("CUPTI_ACTIVITY_KIND_RUNTIME"):
            rows = [
                (link, start, end)
                for link, owner, start, end in self.base.execute(_LAUNCHES)
                if owner == process
            ]
        return by_name(rows, ("link", "start", "end"))

    def ranges(self, process: int) -> tuple[Table, tuple[str, ...]]:
        """Return the NVTX ranges of a process."""
        rows: list[tuple[int, int, int, int]] = []
        names: dict[str, int] = {}
        if self.has("NVTX_EVENTS"):
            for text, start, end, owner in self.base.execute(_RANGES):
                if owner == process and text:
                    rows.append((start, end, 0, names.setdefault(text, len(names))))
        # Ranges stand in one table for all threads of a process, and are not told apart by them here.
        return by_name(rows, ("start", "end", "thread", "name")), tuple(names)


def _optimizer_phase(events: Events, ranges: Table, names: tuple[str, ...]) -> Events:
    """Put kernels launched inside of optimizer ranges into that phase."""
    chosen = np.array(["optimizer" in name.lower() for name in names], dtype=bool)
    mine = chosen[ranges["name"]] if len(names) else np.zeros(0, dtype=bool)
    inside = contains(merged(ranges["start"][mine], ranges["end"][mine]), events.launch_ns)
    return replace(events, phase=np.where(inside, int(Phase.OPTIMIZER), events.phase))
