"""Reading measured-runs tables: typed rows, and one exact line per wrong cell."""

from __future__ import annotations

import csv
import io
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from layoutopt.optimizer.evidence.run import COLUMNS, MeasuredRun, Sharding
from layoutopt.optimizer.evidence.table import MAX_BYTES, MAX_PROBLEMS, parse_runs
from layoutopt.optimizer.specs.errors import InputError

REQUIRED = {
    "id": "a",
    "framework": "megatron-lm",
    "layers": "4",
    "hidden": "64",
    "vocab": "1000",
    "seq": "128",
    "gpu": "h100",
    "n_gpus": "8",
}


def table(*rows: dict[str, str]) -> bytes:
    """Write rows as CSV; missing cells are empty."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, names)
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


def problems(data: bytes) -> list[str]:
    """Return the error lines of a table that must be refused."""
    with pytest.raises(InputError) as caught:
        parse_runs(data, "runs.csv")
    return [str(problem) for problem in caught.value.problems]


def test_fields_are_the_columns() -> None:
    """Every column has a field of the same name, so that nothing a table says is lost."""
    own = [field.name for field in fields(MeasuredRun) if field.name not in ("file", "line")]
    assert sorted(own) == sorted(COLUMNS)


def test_a_row_is_typed() -> None:
    """Cells become numbers, flags, shard groups and MLA widths; empty cells None."""
    row = REQUIRED | {
        "tp": "8",
        "sp": "1",
        "zero": "hsdp:16",
        "mla": "kv_lora=512;qk_nope=128;qk_rope=64;v=128",
        "mem_gb": "61.5",
        "vp": "",
    }
    (run,) = parse_runs(table(row))
    assert (run.layers, run.tp, run.sp, run.mem_gb, run.vp) == (4, 8, True, 61.5, None)
    assert run.zero == Sharding(3, 16)
    assert run.mla is not None and run.mla.kv_lora_rank == 512 and run.mla.q_lora_rank == 0


def test_lines_count_quoted_line_breaks() -> None:
    """The line of a row is its first line in the file, whatever line breaks earlier cells hold."""
    rows = parse_runs(table(REQUIRED | {"notes": "one\ntwo\nthree"}, REQUIRED | {"id": "b"}))
    assert [run.line for run in rows] == [2, 5]


def test_byte_order_mark_and_blank_lines_are_accepted() -> None:
    """Spreadsheets write both."""
    data = b"\xef\xbb\xbf" + table(REQUIRED).replace(b"\r\n", b"\n\n")
    assert parse_runs(data)[0].id == "a"


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        ({"layers": "4.5"}, "runs.csv:2: layers: '4.5' (a whole number of at least 1)"),
        ({"layers": "0"}, "runs.csv:2: layers: '0' (a whole number of at least 1)"),
        ({"tp": "-8"}, "runs.csv:2: tp: '-8' (a whole number of at least 1)"),
        ({"tp": "1_000"}, "runs.csv:2: tp: '1_000' (a whole number of at least 1)"),
        ({"n_gpus": "9" * 30}, "runs.csv:2: n_gpus: '" + "9" * 30 + "' (a whole number of at least 1)"),
        ({"measured_step_s": "nan"}, "runs.csv:2: measured_step_s: 'nan' (a number above 0)"),
        ({"measured_step_s": "0"}, "runs.csv:2: measured_step_s: '0' (a number above 0)"),
        ({"step_time_s": "1e999"}, "runs.csv:2: step_time_s: '1e999' (a number above 0)"),
        ({"sp": "yes"}, "runs.csv:2: sp: 'yes' (0 or 1)"),
        ({"zero": "4"}, "runs.csv:2: zero: '4' (0, 1, 2, 3 or hsdp:N)"),
        ({"zero": "hsdp:0"}, "runs.csv:2: zero: 'hsdp:0' (0, 1, 2, 3 or hsdp:N)"),
        (
            {"mla": "kv_lora=512"},
            "runs.csv:2: mla: 'kv_lora=512' "
            "(q_lora=N;kv_lora=N;qk_nope=N;qk_rope=N;v=N, q_lora may be absent)",
        ),
        ({"hidden": ""}, "runs.csv:2: hidden: empty cell (a whole number of at least 1)"),
    ],
)
def test_a_wrong_cell_is_one_line(cells: dict[str, str], expected: str) -> None:
    """Each rejected value is named with file, line, column and what is allowed."""
    assert problems(table(REQUIRED | cells)) == [expected]


def test_all_wrong_cells_are_reported_at_once() -> None:
    """A user fixes a file in one round, and a hopeless file does not flood the terminal."""
    bad = [REQUIRED | {"id": str(index), "layers": "x", "tp": "y"} for index in range(2)]
    assert len(problems(table(*bad))) == 4
    many = [REQUIRED | {"id": str(index), "layers": "x"} for index in range(MAX_PROBLEMS + 7)]
    lines = problems(table(*many))
    assert len(lines) == MAX_PROBLEMS + 1
    assert lines[-1] == "runs.csv: 7 more problems"


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", "runs.csv: the table is empty (a header line and rows)"),
        (b"\n\n", "runs.csv: the table is empty (a header line and rows)"),
        (table(REQUIRED).split(b"\r\n")[0], "runs.csv: the table has no rows (rows below the header)"),
        (table(REQUIRED | {"layer": "1"}), "runs.csv:1: unknown column 'layer' (did you mean layers?)"),
        (b"id;layers\na;4\n", "runs.csv:1: the header is one cell (columns separated by commas)"),
        (table(REQUIRED)[:-2] + b",9\r\n", "runs.csv:2: 9 cells (8, as the header)"),
        (table(REQUIRED).replace(b"h100", b"h\xff100"), "runs.csv:2: byte 0xff is not UTF-8 (UTF-8 text)"),
        (table(REQUIRED) + b'"open\n', "runs.csv:3: not CSV: unexpected end of data (quoted cells, commas)"),
    ],
)
def test_a_wrong_file_is_one_line(data: bytes, expected: str) -> None:
    """Problems of the file as a whole name the file and, where there is one, the line."""
    assert expected in problems(data)


def test_missing_and_repeated_columns() -> None:
    """A header without the columns that every run needs, or with one twice, is refused."""
    lines = problems(b"id,layers,layers\na,1,1\n")
    assert "runs.csv:1: layers: column given twice" in lines
    assert "runs.csv:1: missing columns: framework, hidden, vocab, seq, gpu, n_gpus" in lines


def test_ids_are_unique() -> None:
    """Reports name rows by id, so that two rows of one id are an error with both lines."""
    assert problems(table(REQUIRED, REQUIRED)) == ["runs.csv:3: id: id 'a' is on line 2 too (unique ids)"]


def test_a_huge_file_is_refused() -> None:
    """The limit is on bytes, before anything is decoded."""
    assert problems(b"x" * (MAX_BYTES + 1)) == [
        "runs.csv: the table has 67,108,865 bytes (at most 67,108,864)"
    ]


@given(st.binary(max_size=300))
def test_bytes_never_crash_the_reader(data: bytes) -> None:
    """Whatever the bytes are, the outcome is rows or an InputError."""
    try:
        parse_runs(data, "runs.csv")
    except InputError as error:
        assert error.problems


@given(st.dictionaries(st.sampled_from(sorted(COLUMNS)), st.text(max_size=20), max_size=5))
def test_cells_never_crash_the_reader(cells: dict[str, str]) -> None:
    """Whatever a cell holds, the outcome is a row or an InputError that names its column."""
    try:
        parse_runs(table(REQUIRED | cells), "runs.csv")
    except InputError as error:
        assert all(problem.key or problem.line or problem.what for problem in error.problems)


def test_step_time_falls_back_to_what_the_source_states() -> None:
    """The target column counts first, then the stated time, then tokens per second; never FLOP/s or MFU."""
    base = MeasuredRun(id="a", global_batch=64, seq=1000, n_gpus=8, tokens_s_gpu=2000.0, tflops_gpu=1.0)
    assert base.step_s == pytest.approx(4.0)
    assert MeasuredRun(id="a", step_time_s=3.0, measured_step_s=2.0).step_s == 2.0
    assert MeasuredRun(id="a", step_time_s=3.0).step_s == 3.0
    assert MeasuredRun(id="a", tflops_gpu=400.0, mfu_pct=40.0, n_gpus=8, global_batch=8, seq=8).step_s is None
