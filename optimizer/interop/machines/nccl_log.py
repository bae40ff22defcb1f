"""nccl-tests output to tables: all column generations, launcher prefixes, extra columns, JSON."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from layoutopt.optimizer.interop.reading import Fields, importer, parse_json
from layoutopt.optimizer.specs.errors import input_error
from layoutopt.optimizer.specs.vocabulary import collective_spelt

if TYPE_CHECKING:
    from collections.abc import Sequence

COLLECTIVES = (
    "all_reduce", "all_gather", "reduce_scatter", "alltoall", "broadcast", "reduce", "sendrecv", "gather", "scatter",
)  # fmt: skip
RING = ("all_gather", "reduce_scatter", "alltoall", "gather", "scatter")
"""Collectives whose size is the total over ranks and whose bus bandwidth is (n-1)/n of the algorithm's."""

_PREFIX = re.compile(r"^(?:\[\d+(?:,\d+)*\](?:<\w+>)?:?\s?|\d+:\s)")
_DEVICE = re.compile(
    r"#\s+Rank\s+(\d+)(?:\s+Group\s+\d+)?\s+Pid\s+\d+\s+on\s+(\S+)\s+device\s+\d+\s+\[[^\]]*\]\s*(.*)$"
)
_STARTING = re.compile(r"# Collective test starting: (\w+?)_perf")
_BOUNDS = re.compile(r"# Out of bounds values : (\d+) (OK|FAILED)")


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclRow:
    """One message size: bytes, seconds, bytes/s. ``wrong`` is None where it was not checked."""

    size_bytes: int
    time_s: float
    algbw_bytes_per_s: float
    busbw_bytes_per_s: float
    wrong: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclTable:
    """One collective's measurements, out of place where both are there.

    ``ranks`` and ``nodes`` come from the device lines, or the ranks from the bandwidth ratio (nodes None).
    ``gpu`` is the device name. ``failed`` says that results were out of bounds, ``cpu_time`` that times are
    the host's.
    """

    collective: str
    rows: tuple[NcclRow, ...]
    ranks: int
    nodes: int | None = None
    gpu: str = ""
    failed: bool = False
    cpu_time: bool = False
    notes: tuple[str, ...] = ()

    @property
    def ranks_per_node(self) -> int | None:
        """Ranks on each node, None if the nodes are unknown."""
        return None if not self.nodes else self.ranks // self.nodes

    @property
    def bus_factor(self) -> float:
        """Bus bandwidth over algorithm bandwidth."""
        return bus_factor(self.collective, self.ranks)


@dataclass(slots=True)
class _Section:
    """What one test printed so far."""

    name: str = ""
    ranks: set[int] = field(default_factory=set)
    hosts: list[str] = field(default_factory=list)
    gpu: str = ""
    columns: list[str] = field(default_factory=list)
    rows: list[NcclRow] = field(default_factory=list)
    failed: bool = False
    redop: str = ""
    root: str = ""
    unchecked_in_place: bool = False


def bus_factor(collective: str, ranks: int) -> float:
    """Return bus over algorithm bandwidth (NVIDIA/nccl-tests doc/PERFORMANCE.md)."""
    if collective == "all_reduce":
        return 2 * (ranks - 1) / ranks
    return (ranks - 1) / ranks if collective in RING else 1.0


@importer
def import_nccl_tests(text: str, file: str = "", collective: str | None = None) -> tuple[NcclTable, ...]:
    """Read every test in a log or JSON file.

    ``collective`` names the test where the log does not (before 2.16.8 it is in no line); without it the
    columns and the bandwidth ratio tell, or the file's name. Raises ``InputError`` where no table is found.
    """
    if text.lstrip().startswith("{"):
        return (_from_json(text, file, collective),)
    sections = _sections(text)
    tables = tuple(_table(section, file, collective) for section in sections if section.rows)
    if not tables:
        raise input_error("no nccl-tests table", "lines of size, count, type, time, algbw, busbw", file=file)
    return tables


def _sections(text: str) -> list[_Section]:
    sections = [_Section()]
    for raw in text.splitlines():
        line = _stripped(raw)
        # logs of several tests in a row have one banner each
        if line.startswith("# nThread") and sections[-1].rows:
            sections.append(_Section())
        if match := _STARTING.search(line):
            if sections[-1].rows:
                sections.append(_Section())
            sections[-1].name = match[1]
        elif line.startswith("#"):
            _comment(line, sections[-1])
        elif sections[-1].columns:
            _data(line.split(), sections[-1])
    return sections


def _stripped(line: str) -> str:
    # Several: one launcher's tag in front of another's.
    while match := _PREFIX.match(line):
        line = line[match.end() :]
    return line.strip()


def _comment(line: str, section: _Section) -> None:
    words = line[1:].split()
    if words[:2] == ["size", "count"]:
        section.columns = words
    elif match := _DEVICE.match(line):
        # Rank 0 behind rows begins the next test's list, whose banner is yet to come.
        if int(match[1]) == 0 and section.rows:
            return
        section.ranks.add(int(match[1]))
        section.hosts.append(match[2])
        section.gpu = match[3].strip()
    elif match := _BOUNDS.search(line):
        section.failed = match[2] == "FAILED" or int(match[1]) > 0


def _data(cells: Sequence[str], section: _Section) -> None:
    """Map cells by header names; a log of replayed traces leaves the first half blank."""
    columns = section.columns
    starts = [index for index, name in enumerate(columns) if name in ("time", "cputime")]
    if not cells or not starts or not cells[0].isdecimal():
        return
    # halves repeat their names: the first one counts, which is out of place
    named = list(columns)
    if len(starts) > 1 and len(cells) <= len(columns) - (starts[1] - starts[0]) + ("timestamp" in columns):
        named = [*columns[: starts[0]], *columns[starts[1] :]]
    pairs = list(zip(named, cells, strict=False))
    row = _from_values(dict(reversed(pairs)))  # of repeated names the first, out-of-place half counts
    if row is None:
        return
    last = dict(pairs)
    section.rows.append(row)
    section.redop, section.root = last.get("redop", ""), last.get("root", "")
    section.unchecked_in_place = last.get("#wrong") == "N/A"


def _from_values(values: dict[str, str]) -> NcclRow | None:
    time_us = _float(values.get("time", values.get("cputime", "")))
    size, algbw, busbw = (_float(values.get(name, "")) for name in ("size", "algbw", "busbw"))
    if time_us is None or size is None or algbw is None or busbw is None:
        return None
    wrong = values.get("#wrong", values.get("error", ""))
    return NcclRow(
        size_bytes=int(size),
        time_s=time_us * 1e-6,
        algbw_bytes_per_s=algbw * 1e9,
        busbw_bytes_per_s=busbw * 1e9,
        wrong=int(wrong) if wrong.isdecimal() else None,
    )


def _float(text: str) -> float | None:
    # N/A stands where nothing was measured, and nan or inf are not readings either.
    if not re.fullmatch(r"\d{1,20}(?:\.\d{0,25})?(?:[eE][+-]?\d{1,2})?", text):
        return None
    return float(text)


def _table(section: _Section, file: str, given: str | None) -> NcclTable:
    ratio = _ratio(section.rows)
    ranks = len(section.ranks) or None
    stated = None if given is None else collective_spelt(given, COLLECTIVES) or given
    name = stated or _known(section.name) or _inferred(section, ratio, ranks) or _from_file_name(file)
    if name not in COLLECTIVES:
        what = f"{name!r} is not known" if name else "which collective this is can't be told from the log"
        raise input_error(what, "one of " + ", ".join(COLLECTIVES), key="collective", file=file)
    notes = []
    if ranks is None:
        ranks = _ranks_from_ratio(name, ratio)
        notes.append("no device lines: ranks follow from the bandwidth ratio")
    if ranks is None or ranks < 1:
        raise input_error("number of ranks is unknown", "a log with its 'Using devices' lines", file=file)
    return NcclTable(
        collective=name,
        rows=tuple(section.rows),
        ranks=ranks,
        nodes=len(set(section.hosts)) or None,
        gpu=section.gpu,
        failed=section.failed or any(row.wrong for row in section.rows),
        cpu_time="cputime" in section.columns,
        notes=tuple(notes),
    )


def _known(name: str) -> str | None:
    return {"alltoallv": "alltoall", "hypercube": "alltoall"}.get(name, name) or None


def _from_file_name(file: str) -> str | None:
    stem = file.replace("-", "_").replace("all_to_all", "alltoall").lower()
    return next((name for name in COLLECTIVES if name in stem or name.replace("_", "") in stem), None)


def _ratio(rows: Sequence[NcclRow]) -> float | None:
    """Bus over algorithm bandwidth where both have the most digits."""
    # Both are printed with two digits behind the point: of a small message the ratio would be one of rounded zeros.
    best = max(rows, key=lambda row: row.algbw_bytes_per_s)
    return best.busbw_bytes_per_s / best.algbw_bytes_per_s if best.algbw_bytes_per_s else None


def _inferred(section: _Section, ratio: float | None, ranks: int | None) -> str | None:
    """Tell the collective by what it prints: bandwidth ratio, reduction, root, and the unchecked in-place
    half.

    Only all-to-all leaves its in-place results unchecked; the first generation's all-gather has no redop
    column.
    """
    if ratio is None or not section.columns:
        return None
    reduces, rooted = section.redop not in ("", "none"), section.root not in ("", "-1")
    twofold = bus_factor("all_reduce", ranks) if ranks else max(ratio, 1.02)
    if reduces and not rooted and abs(ratio - twofold) < 0.02:
        return "all_reduce"
    if ratio > 0.98:
        return ("reduce" if reduces else "broadcast") if rooted else "sendrecv"
    if reduces:
        return "reduce_scatter"
    if rooted:
        return None
    bare = "redop" in section.columns and "root" not in section.columns
    return "alltoall" if section.unchecked_in_place or bare else "all_gather"


def _ranks_from_ratio(name: str, ratio: float | None) -> int | None:
    share = None if ratio is None else ratio / 2 if name == "all_reduce" else ratio if name in RING else None
    # Near 1 the ratio's digits no longer tell one number of ranks from another.
    if share is None or not 0 < share < 0.9995:
        return None
    return round(1 / (1 - share))


def _from_json(text: str, file: str, given: str | None) -> NcclTable:
    root = Fields(parse_json(text, file), file=file)
    results = root.items("results") or []
    rows = [row for item in results if isinstance(item, dict) and (row := _json_row(item))]
    if not rows:
        raise input_error("no results", "the JSON that nccl-tests writes with -J", key="results", file=file)
    section = _Section(name=_json_name(root), rows=rows)
    devices = [item for item in root.items("devices", "ranks") or [] if isinstance(item, dict)]
    section.ranks = set(range(len(devices)))
    section.hosts = [str(item.get("host", item.get("hostname", ""))) for item in devices]
    return _table(section, file, given)


def _json_name(root: Fields) -> str:
    for key in ("collective", "test", "name", "test_name"):
        value = root.data.get(key)
        if isinstance(value, str):
            return value.removesuffix("_perf")
    return ""


def _json_row(item: dict[str, Any]) -> NcclRow | None:
    # Out of place, as in the tables: NCCL may copy less in place, and frameworks call it either way.
    half = item.get("out_of_place") or item.get("in_place")
    if not isinstance(half, dict):
        return None
    values = {"size": item.get("size"), "time": half.get("time", half.get("cpu_time"))}
    values |= {"algbw": half.get("alg_bw"), "busbw": half.get("bus_bw"), "#wrong": half.get("nwrong")}
    return _from_values({name: str(value) for name, value in values.items()})
