"""Files that are no trace of one rank: one clear line each; what a trace does not say is asked for."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from layoutopt import InputError
from layoutopt.optimizer.interop.profiles.kineto import read_kineto
from layoutopt.optimizer.interop.profiles.options import ProfileOptions
from layoutopt.optimizer.interop.profiles.trace_file import TraceFile
from layoutopt.optimizer.report.progress import reading_progress

TRACE = Path(__file__).parents[1] / "data" / "profiles" / "cpu_dp2" / "rank0_trace.json.gz"
TEXT = gzip.decompress(TRACE.read_bytes())


def merged() -> bytes:
    """Two ranks' events in one list."""
    first = json.loads(TEXT)
    second = json.loads(TEXT)
    for event in second["traceEvents"]:
        if isinstance(event.get("pid"), int):
            event["pid"] += 1
    return json.dumps({**first, "traceEvents": first["traceEvents"] + second["traceEvents"]}).encode()


FOREIGN = json.dumps(
    {"traceEvents": [{"ph": "X", "cat": "compute", "name": "F0.0", "pid": 0, "tid": 0, "ts": 1, "dur": 2}]}
)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (TEXT[: len(TEXT) // 2], "ends in the middle: the file is truncated"),
        (gzip.compress(TEXT)[:20000], "ends in the middle: the file is truncated"),
        (TEXT + TEXT, "holds several traces one behind another"),
        (merged(), "holds the profiles of 2 processes, merged"),
        (FOREIGN.encode(), "holds no events of PyTorch's profiler"),
        (b'{"step": 3}', "holds no traceEvents"),
        (b"loss: 3.1", "holds no traceEvents"),
        (b"", "holds no traceEvents"),
        (b"\xff\xfe\x00", "is no text"),
        (b'{"traceEvents": [{"ph": "X" "cat": 3}, {}, {}]}' + b" " * 100, "is no JSON"),
    ],
)
def test_what_is_no_trace(content: bytes, message: str, tmp_path: Path) -> None:
    """The line names the file, what is wrong, and what would do."""
    file = tmp_path / "trace.json"
    file.write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        read_kineto(file, ProfileOptions())
    assert len(str(caught.value).splitlines()) == 1
    assert str(caught.value).startswith(str(file))


def test_events_are_those_of_the_whole_file() -> None:
    """Reading event by event gives what parsing at once gives, header included."""
    whole = json.loads(TEXT)
    file = TraceFile(TRACE)
    assert list(file.events()) == whole["traceEvents"]
    assert file.header == {key: value for key, value in whole.items() if key != "traceEvents"}


@pytest.mark.parametrize("packed", [True, False])
def test_progress_goes_through_the_file(
    packed: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The share that was read is that of the file on the disk, compressed or not: it grows, and ends at all of it."""
    monkeypatch.setattr("layoutopt.optimizer.interop.profiles.trace_file.CHUNK", 4096)
    file = tmp_path / ("trace.json.gz" if packed else "trace.json")
    file.write_bytes(TRACE.read_bytes() if packed else TEXT)
    shares: list[float] = []
    assert list(TraceFile(file, shares.append).events())
    assert shares == sorted(shares)
    assert shares[-1] == 1.0 and (packed or len(set(shares)) > 10)


def test_a_terminal_shows_how_far_a_file_is_read(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a terminal a bar, the share and the file's name; in a pipe, or where it is to be quiet, nothing."""
    for quiet, terminal in ((True, True), (False, False)):
        monkeypatch.setattr(sys.stderr, "isatty", lambda terminal=terminal: terminal)
        with reading_progress(quiet=quiet) as show:
            assert show is None
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with reading_progress(quiet=False) as show:
        assert show is not None
        show("trace-\x1b[2Jof-rank-3.json", 0.25)
    said = capsys.readouterr().err
    assert "25% of trace-" in said and "of-rank-3.json" in said and "\x1b[2J" not in said


@pytest.mark.parametrize("chunk", [1, 7, 1000])
def test_pieces_may_end_anywhere(chunk: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Events are whole wherever a piece of the file ends, in numbers and inside of characters too."""
    monkeypatch.setattr("layoutopt.optimizer.interop.profiles.trace_file.CHUNK", chunk)
    events: list[Any] = [
        {"name": "Größe", "ts": 12345.678, "args": {"a": [1, 2]}},
        {"name": '"}{', "ts": 1e9},
        {"ts": 12},
    ]
    file = tmp_path / "trace.json"
    file.write_text(
        json.dumps({"a": 1, "traceEvents": events, "z": [2]}, ensure_ascii=False), encoding="utf-8"
    )
    reading = TraceFile(file)
    assert list(reading.events()) == events
    assert reading.header == {"a": 1, "z": [2]}


def test_a_key_without_value_is_mended(tmp_path: Path) -> None:
    """Some releases write a group's empty description as nothing at all."""
    file = tmp_path / "trace.json"
    file.write_text(
        '{"traceEvents": [{"name": "a", "args": {"Process Group Description": , "dtype": "Float"}}, {"name": "b"}]}'
    )
    assert [event["name"] for event in TraceFile(file).events()] == ["a", "b"]


def test_missing_steps_are_asked_for(tmp_path: Path) -> None:
    """Without marks an option says how many steps there are; they then share the time equally."""
    plain = json.loads(TEXT)
    marks = ("ProfilerStep#", "Optimizer.step#")
    plain["traceEvents"] = [one for one in plain["traceEvents"] if not one["name"].startswith(marks)]
    file = tmp_path / "trace.json"
    file.write_text(json.dumps(plain))
    with pytest.raises(InputError, match="--steps N says how many it holds"):
        read_kineto(file, ProfileOptions())
    steps = read_kineto(file, ProfileOptions(steps=2)).steps
    assert len(steps) == 2 and steps[0, 1] == steps[1, 0]


def test_steps_between_optimizer_calls(tmp_path: Path) -> None:
    """Without a schedule's marks, steps run from one optimizer call to the next."""
    plain = json.loads(TEXT)
    plain["traceEvents"] = [
        one for one in plain["traceEvents"] if not one["name"].startswith("ProfilerStep#")
    ]
    file = tmp_path / "trace.json"
    file.write_text(json.dumps(plain))
    assert len(read_kineto(file, ProfileOptions()).steps) == 1


def test_rank_and_axes_can_be_told(tmp_path: Path) -> None:
    """The rank comes from the option, the file or its name; a group without a known name gets its axis by option."""
    from layoutopt.optimizer.specs.vocabulary import Axis

    plain = json.loads(TEXT)
    for group in plain["distributedInfo"]["pg_config"]:
        group["pg_desc"] = "mine" if group["pg_desc"].startswith("DATA") else group["pg_desc"]
    del plain["distributedInfo"]["rank"]
    file = tmp_path / "job_rank7.json"
    file.write_text(json.dumps(plain))
    told = read_kineto(file, ProfileOptions(axes={"mine": Axis.DP}))
    assert told.rank == 7 and {group.axis for group in told.groups if len(group.ranks) > 1} >= {Axis.DP}
    assert read_kineto(file, ProfileOptions(rank=3)).rank == 3
