"""Read a measured-runs table (CSV) into typed rows, or say exactly which cells are wrong."""

from __future__ import annotations

import csv
import io
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from layoutopt.optimizer.evidence.run import COLUMNS, MeasuredRun
from layoutopt.optimizer.specs.errors import InputError, Problem

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

MAX_BYTES = 64 * 2**20
MAX_PROBLEMS = 50
MAX_SHOWN = 40


def parse_runs(data: bytes, file: str = "") -> tuple[MeasuredRun, ...]:
    """Read a table.

    Parameters
    ----------
    data
        A UTF-8 CSV file with a header line, at most 64 MiB.
    file
        Name used in error messages.

    Raises
    ------
    InputError
        With one problem per wrong cell, unknown or missing column, or duplicate id (at most 50).
    """
    records = _records(_decode(data, file), file)
    try:
        _, header = next(records)
    except StopIteration:
        raise InputError(
            Problem(what="the table is empty", allowed="a header line and rows", file=file)
        ) from None
    _check_header(header, file)
    runs, problems = _rows(records, header, file)
    problems += _duplicates(runs, file)
    if problems:
        raise InputError(*_at_most(problems, file))
    if not runs:
        raise InputError(Problem(what="the table has no rows", allowed="rows below the header", file=file))
    return tuple(runs)


def _decode(data: bytes, file: str) -> str:
    if len(data) > MAX_BYTES:
        raise InputError(
            Problem(what=f"the table has {len(data):,} bytes", allowed=f"at most {MAX_BYTES:,}", file=file)
        )
    try:
        # Spreadsheets put a byte order mark in front, which would be part of the first column's name.
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputError(
            Problem(
                what=f"byte {data[error.start]:#04x} is not UTF-8", allowed="UTF-8 text", file=file, line=line
            )
        ) from None


def _records(text: str, file: str) -> Iterator[tuple[int, list[str]]]:
    """Yield (first line, cells) of every record that isn't blank."""
    # Strict, or a quote that is never closed would swallow the rest of the table without a word.
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    while True:
        line = reader.line_num + 1
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise InputError(
                Problem(what=f"not CSV: {error}", allowed="quoted cells, commas", file=file, line=line)
            ) from None
        # Spreadsheets end tables with rows of empty cells.
        if any(cell.strip() for cell in cells):
            yield line, [cell.strip() for cell in cells]


def _check_header(header: Sequence[str], file: str) -> None:
    problems = [_unknown(name, header, file) for name in header if name not in COLUMNS]
    repeated = sorted({name for name in header if name in COLUMNS and header.count(name) > 1})
    problems += [Problem(what="column given twice", key=name, file=file, line=1) for name in repeated]
    missing = [column.name for column in COLUMNS.values() if column.required and column.name not in header]
    if missing:
        problems.append(Problem(what=f"missing columns: {', '.join(missing)}", file=file, line=1))
    if problems:
        raise InputError(*_at_most(problems, file))


def _unknown(name: str, header: Sequence[str], file: str) -> Problem:
    # One cell with other separators is a whole header, not an unknown column.
    if len(header) == 1 and any(mark in name for mark in ";\t|"):
        return Problem(
            what="the header is one cell", allowed="columns separated by commas", file=file, line=1
        )
    close = get_close_matches(name, COLUMNS, n=1)
    allowed = f"did you mean {close[0]}?" if close else "the columns are listed in docs/measured-runs.md"
    return Problem(what=f"unknown column {_short(name)!r}", allowed=allowed, file=file, line=1)


def _rows(
    records: Iterator[tuple[int, list[str]]], header: Sequence[str], file: str
) -> tuple[list[MeasuredRun], list[Problem]]:
    runs: list[MeasuredRun] = []
    problems: list[Problem] = []
    for line, cells in records:
        if len(cells) != len(header):
            what = f"{len(cells)} cells"
            problems.append(Problem(what=what, allowed=f"{len(header)}, as the header", file=file, line=line))
            continue
        values, wrong = read_cells(dict(zip(header, cells, strict=True)), file=file, line=line)
        problems += wrong
        if not wrong:
            runs.append(MeasuredRun(**values, file=file, line=line))
    return runs, problems


def read_cells(
    cells: dict[str, str], *, file: str = "", line: int | None = None
) -> tuple[dict[str, Any], list[Problem]]:
    """Read cells by column name, leaving out empty ones; return the values and the problems."""
    values: dict[str, Any] = {}
    problems = []
    for name, cell in cells.items():
        column = COLUMNS[name]
        if not cell:
            if column.required:
                problems.append(
                    Problem(what="empty cell", allowed=column.allowed, key=name, file=file, line=line)
                )
            continue
        try:
            values[name] = column.read(cell)
        # All wrong cells are collected: who is told of one at a time mends a table for days.
        except ValueError:
            what = f"{_short(cell)!r}"
            problems.append(Problem(what=what, allowed=column.allowed, key=name, file=file, line=line))
    return values, problems


def _duplicates(runs: Sequence[MeasuredRun], file: str) -> list[Problem]:
    first: dict[str, int] = {}
    problems = []
    for run in runs:
        if run.id in first:
            what = f"id {_short(run.id)!r} is on line {first[run.id]} too"
            problems.append(Problem(what=what, allowed="unique ids", key="id", file=file, line=run.line))
        first.setdefault(run.id, run.line)
    return problems


def _at_most(problems: Sequence[Problem], file: str) -> list[Problem]:
    # A table with one wrong column is wrong in every row.
    shown = list(problems[:MAX_PROBLEMS])
    if len(problems) > MAX_PROBLEMS:
        shown.append(Problem(what=f"{len(problems) - MAX_PROBLEMS} more problems", file=file))
    return shown


def _short(text: str) -> str:
    shown = " ".join(text.split())
    return shown if len(shown) <= MAX_SHOWN else shown[: MAX_SHOWN - 3] + "..."
