"""A traced job's rank as Nsight Systems exports it to SQLite: the tables and columns that published queries use."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

from checks.traced_files import COLLECTIVES, NAMES, OF_PHASE
from layoutopt.optimizer.diagnose.parts import Activity, Phase

if TYPE_CHECKING:
    from pathlib import Path

    from checks.traced_run import Event, Rank

_TABLES = """
create table StringIds (id integer, value text);
create table CUPTI_ACTIVITY_KIND_KERNEL (start integer, end integer, deviceId integer, streamId integer,
  correlationId integer, globalPid integer, demangledName integer, shortName integer, graphNodeId integer);
create table CUPTI_ACTIVITY_KIND_RUNTIME (start integer, end integer, globalTid integer, correlationId integer,
  nameId integer);
create table CUPTI_ACTIVITY_KIND_MEMCPY (start integer, end integer, deviceId integer, streamId integer, bytes integer,
  copyKind integer, correlationId integer, globalPid integer);
create table NVTX_EVENTS (start integer, end integer, eventType integer, text text, textId integer, globalTid integer);
"""


def write_report(rank: Rank, path: Path, *, process: int = 77) -> Path:
    """Write one rank's events; times are nanoseconds from the session's start."""
    names: dict[str, int] = {}
    row: tuple[object, ...]
    owner = process << 24
    with closing(sqlite3.connect(path)) as base:
        base.executescript(_TABLES)
        for number, event in enumerate(rank.events):
            name = names.setdefault(_name(event), len(names))
            row = (
                event.start_us * 1000,
                event.end_us * 1000,
                0,
                event.stream,
                number,
                owner,
                name,
                name,
                None,
            )
            base.execute("insert into CUPTI_ACTIVITY_KIND_KERNEL values (?,?,?,?,?,?,?,?,?)", row)
            launch = round(event.launch_us * 1000)
            called = names.setdefault("cudaLaunchKernel_v7000", len(names))
            row = (launch - 20, launch, owner + 1, number, called)
            base.execute("insert into CUPTI_ACTIVITY_KIND_RUNTIME values (?,?,?,?,?)", row)
            if event.phase is Phase.OPTIMIZER:
                text = "Optimizer.step#AdamW.step"
                row = (launch - 50, launch + 50, 59, text, None, owner + 1)
                base.execute("insert into NVTX_EVENTS values (?,?,?,?,?,?)", row)
        for number, (start, end) in enumerate(zip(rank.begun_us, rank.begun_us[1:], strict=False)):
            named = names.setdefault(f"ProfilerStep#{number}", len(names))
            row = (round(start * 1000), round(end * 1000), 59, None, named, owner + 1)
            base.execute("insert into NVTX_EVENTS values (?,?,?,?,?,?)", row)
        base.executemany(
            "insert into StringIds values (?,?)", [(number, text) for text, number in names.items()]
        )
        base.commit()
    return path


def _name(event: Event) -> str:
    if event.part is Activity.TRANSFER:
        return COLLECTIVES[event.kind][1]
    return NAMES.get(event.part) or OF_PHASE[event.part, event.phase is Phase.BACKWARD]
