"""Exports: formats, filters, whole files or none."""

from __future__ import annotations

import csv
import json
import sys
from typing import TYPE_CHECKING, Any

import pytest

from layoutopt.optimizer.report.json_forms import plan_to_plain
from layoutopt.optimizer.specs.errors import InputError
from layoutopt.optimizer.sweep.export import MISSING_PYARROW, columns_of, export_rows, format_of, write_rows
from layoutopt.optimizer.sweep.nested import NESTED_COLUMNS
from layoutopt.optimizer.sweep.rows import EXPORTED
from layoutopt.optimizer.sweep.run import run_sweep
from layoutopt.optimizer.sweep.store import SweepStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from layoutopt.optimizer.sweep.points import SweepPoint


@pytest.fixture
def store(
    tmp_path: Path, make_points: Callable[..., tuple[SweepPoint, ...]], pretend: Any
) -> Iterator[SweepStore]:
    """Three answered sizes."""
    run_sweep(make_points(1, 2, 4), tmp_path / "s.db", pretend(fails=(2,)), write_plan=plan_to_plain)
    with SweepStore(tmp_path / "s.db") as opened:
        yield opened


def test_csv_and_json_hold_the_same_rows(tmp_path: Path, store: SweepStore) -> None:
    """Every column, numbers that read back exactly, nothing where there is no value."""
    assert write_rows(export_rows(store), tmp_path / "a.csv", "csv") == 3
    assert write_rows(export_rows(store), tmp_path / "a.json", "json") == 3
    with (tmp_path / "a.csv").open() as file:
        from_csv = list(csv.DictReader(file))
    from_json = json.loads((tmp_path / "a.json").read_text())
    assert tuple(from_csv[0]) == tuple(from_json[0]) == EXPORTED
    assert [row["gpus"] for row in from_json] == [1, 2, 4]
    assert [row["status"] for row in from_csv] == ["optimal", "error", "optimal"]
    assert from_json[1]["step_time_s"] is None
    assert from_csv[1]["step_time_s"] == ""
    assert float(from_csv[2]["step_time_s"]) == from_json[2]["step_time_s"] == 0.25


def test_filters_and_nested_columns(store: SweepStore) -> None:
    """Rows by the value of a column; the nested columns on request."""
    rows = list(export_rows(store, where={"status": "optimal", "gpus": "4"}, nested=True))
    assert [row["gpus"] for row in rows] == [4]
    assert rows[0]["nested_step_time_s"] == 0.25
    with pytest.raises(InputError, match="no column 'gpu_count'"):
        list(export_rows(store, where={"gpu_count": 4}))


@pytest.mark.parametrize(("kind", "text"), [("csv", ",".join(EXPORTED) + "\n"), ("json", "[]\n")])
def test_empty_exports_are_valid(tmp_path: Path, kind: str, text: str) -> None:
    """No rows: a header, an empty list."""
    with SweepStore(tmp_path / "s.db") as empty:
        assert write_rows(export_rows(empty), tmp_path / "out", kind) == 0
    assert (tmp_path / "out").read_text() == text


def test_an_export_without_rows_has_the_nested_columns_that_were_asked_for(tmp_path: Path) -> None:
    """Whoever reads the file by its columns finds them, whether or not a row met the conditions."""
    names = columns_of(nested=True)
    assert write_rows([], tmp_path / "a.csv", "csv", names) == 0
    assert (tmp_path / "a.csv").read_text() == ",".join((*EXPORTED, *NESTED_COLUMNS)) + "\n"


def test_parquet_needs_pyarrow(tmp_path: Path, store: SweepStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without pyarrow one line says what to install, and no file appears."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InputError, match=MISSING_PYARROW):
        write_rows(export_rows(store), tmp_path / "a.parquet", "parquet")
    assert not (tmp_path / "a.parquet").exists()


def test_parquet_round_trip(tmp_path: Path, store: SweepStore) -> None:
    """With pyarrow the rows read back with their types."""
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    write_rows(export_rows(store, nested=True), tmp_path / "a.parquet", "parquet")
    rows = parquet.read_table(tmp_path / "a.parquet").to_pylist()
    assert rows == list(export_rows(store, nested=True))


def test_a_failing_export_leaves_the_old_file(tmp_path: Path, store: SweepStore) -> None:
    """An error half way keeps what was there and no temporary file."""
    target = tmp_path / "a.csv"
    target.write_text("old")

    def broken() -> Iterator[dict[str, Any]]:
        yield next(export_rows(store))
        raise InputError

    with pytest.raises(InputError):
        write_rows(broken(), target, "csv")
    assert target.read_text() == "old"
    assert not list(tmp_path.glob(".a.csv*"))
    with pytest.raises(InputError, match="cannot be written"):
        write_rows(export_rows(store), tmp_path / "none" / "a.csv", "csv")


def test_formats_by_ending(tmp_path: Path) -> None:
    """The ending decides unless a format is named."""
    assert format_of(tmp_path / "a.JSON") == "json"
    assert format_of(tmp_path / "a.txt", "csv") == "csv"
    with pytest.raises(InputError, match="no export format"):
        format_of(tmp_path / "a.xlsx")
