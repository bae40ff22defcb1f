"""Rows of a store as CSV, JSON or Parquet, written beside the target and renamed."""

from __future__ import annotations

import csv
import json
from importlib import import_module
from io import BytesIO, TextIOWrapper
from typing import TYPE_CHECKING, Any

from layoutopt.optimizer.specs.errors import input_error
from layoutopt.optimizer.specs.writing import open_for_writing, write_file
from layoutopt.optimizer.sweep.nested import NESTED_COLUMNS, best_within
from layoutopt.optimizer.sweep.rows import COLUMNS, EXPORTED

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path
    from typing import IO

    from layoutopt.optimizer.sweep.rows import Row
    from layoutopt.optimizer.sweep.store import SweepStore

FORMATS = ("csv", "json", "parquet")
MISSING_PYARROW = "Parquet needs pyarrow, which is not installed"


def export_rows(
    store: SweepStore, *, where: Mapping[str, Any] | None = None, nested: bool = False
) -> Iterator[Row]:
    """Yield the store's rows with the columns people filter by.

    ``where`` keeps rows whose columns have the given values; ``nested`` adds the columns of ``best_within``.
    Raises ``InputError`` for an unknown column.
    """
    unknown = [name for name in where or {} if name not in EXPORTED]
    if unknown:
        raise input_error(f"no column {unknown[0]!r}", ", ".join(EXPORTED), key="where")
    names = columns_of(nested=nested)
    rows: Iterable[Row] = best_within(store.rows()) if nested else store.rows()
    for row in rows:
        if all(str(row[name]) == str(value) for name, value in (where or {}).items()):
            yield {name: row[name] for name in names}


def columns_of(*, nested: bool) -> tuple[str, ...]:
    """Return the columns that ``export_rows`` gives."""
    return EXPORTED + (NESTED_COLUMNS if nested else ())


def format_of(path: Path, named: str | None = None) -> str:
    """Return the format: the named one, or that of the file's ending; raises ``InputError`` for others."""
    chosen = named or path.suffix.lstrip(".").lower()
    if chosen not in FORMATS:
        raise input_error(f"{chosen or path.name!r} is no export format", ", ".join(FORMATS), key="format")
    return chosen


def write_rows(rows: Iterable[Row], path: Path, kind: str, names: Sequence[str] = EXPORTED) -> int:
    """Write rows to a file, which has the columns ``names`` where there are none; returns their number.

    The file appears whole or not at all. Raises ``InputError`` when it can't be written, or for Parquet
    without pyarrow.
    """
    if kind == "parquet":
        return _write_parquet(rows, path, names)
    with open_for_writing(path, key="file") as binary:
        file = TextIOWrapper(binary, "utf-8", newline="")
        count = write_text(rows, file, kind, names)
        file.detach()  # flushed, and left open to be synced
    return count


def write_text(rows: Iterable[Row], file: IO[str], kind: str, names: Sequence[str] = EXPORTED) -> int:
    """Write rows as CSV (numbers in full, nothing for None) or as a JSON list with one row per line."""
    return _write_csv(rows, file, names) if kind == "csv" else _write_json(rows, file)


FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
"""What makes spreadsheets run a cell's text (OWASP, CSV injection)."""


def _cell(value: Any) -> Any:
    """Put an apostrophe in front of a text that a spreadsheet would run, and one kind of line end; numbers stay."""
    if not isinstance(value, str):
        return value
    safe = f"'{value}" if value.startswith(FORMULA_STARTS) else value
    # the writer quotes no carriage return, which readers take for the end of a row
    return safe.replace("\r\n", "\n").replace("\r", "\n")


def _write_csv(rows: Iterable[Row], file: IO[str], names: Sequence[str]) -> int:
    writer, count = None, 0
    for row in rows:
        if writer is None:
            writer = csv.DictWriter(file, fieldnames=list(row), lineterminator="\n")
            writer.writeheader()
        writer.writerow({name: _cell(value) for name, value in row.items()})
        count += 1
    if writer is None:
        csv.writer(file, lineterminator="\n").writerow(names)
    return count


def _write_json(rows: Iterable[Row], file: IO[str]) -> int:
    count = 0
    for row in rows:
        file.write("[\n" if count == 0 else ",\n")
        file.write(json.dumps(row, allow_nan=False))
        count += 1
    file.write("\n]\n" if count else "[]\n")
    return count


def _write_parquet(rows: Iterable[Row], path: Path, names: Sequence[str]) -> int:
    try:
        pyarrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError:
        raise input_error(MISSING_PYARROW, "pip install pyarrow, or --format csv", key="format") from None
    listed = list(rows)
    names = list(listed[0]) if listed else names
    kinds = {"TEXT": pyarrow.string(), "INTEGER": pyarrow.int64(), "REAL": pyarrow.float64()}
    nested = {"used_gpus": "INTEGER", "nested_step_time_s": "REAL"}
    # Stated, not guessed from the cells: a column that no row fills would come out as one of nulls without a type.
    schema = pyarrow.schema([(name, kinds[(COLUMNS | nested)[name].split()[0]]) for name in names])
    packed = BytesIO()
    parquet.write_table(pyarrow.Table.from_pylist(listed, schema=schema), packed)
    write_file(path, packed.getvalue(), key="file")
    return len(listed)
