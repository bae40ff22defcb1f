"""Unreadable files, lines, and what YAML's scalars mean here."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from layoutopt.optimizer.specs.document import MAX_BYTES, parse_document, plain_scalar
from layoutopt.optimizer.specs.errors import InputError
from layoutopt.optimizer.specs.loading import load_cluster, load_gpu, load_layout, load_workload

if TYPE_CHECKING:
    from pathlib import Path


def problem(content: bytes, tmp_path: Path) -> str:
    """Load a file with the content as a model and return its error without the path."""
    path = tmp_path / "model.yaml"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        load_workload(path)
    return str(caught.value).replace(str(path), "model.yaml")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "model.yaml: is empty (a YAML mapping)"),
        (b" \n\n", "model.yaml: is empty (a YAML mapping)"),
        (b"a: 1\nb: \xff\xfe\n", "model.yaml:2: is not UTF-8 text (a YAML file)"),
        (b"a: 1\0", "model.yaml: is a binary file (a YAML file)"),
        (b"\x7fELF\x02\x01\x01\0", "model.yaml: is a binary file (a YAML file)"),
        (b"x" * (MAX_BYTES + 1), "model.yaml: is larger than 4 MB"),
        (b"[" * 5000, "model.yaml:1: not valid YAML: exceeded maximum nesting depth"),
        (b"a: \x01\n", "model.yaml: not valid YAML: control characters are not allowed"),
    ],
)
def test_unreadable_files(content: bytes, message: str, tmp_path: Path) -> None:
    """Empty, binary, undecodable, huge and deeply nested files are one line each."""
    assert problem(content, tmp_path) == message


def test_directory_and_missing_file(tmp_path: Path) -> None:
    """A directory and a missing file are told apart, with the nearest file beside it."""
    with pytest.raises(InputError, match="is a directory"):
        load_workload(tmp_path)
    (tmp_path / "llama.yaml").write_text("x")
    with pytest.raises(InputError, match=r"lama\.yaml: no such file; nearest: llama\.yaml"):
        load_workload(str(tmp_path / "lama.yaml"))
    with pytest.raises(InputError, match="No such file or directory"):
        load_layout(tmp_path / "none.yaml")


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("llama3-405", "llama3-405b"),
        ("deepseekv3", "deepseek-v3"),
        ("qwen3-235b", "qwen3-235b-a22b"),
        ("LLAMA3-70B", "llama3-70b"),
    ],
)
def test_unknown_model_names_the_nearest(name: str, nearest: str) -> None:
    """A misspelt built-in model is answered with the nearest names and all names, on one line."""
    with pytest.raises(InputError) as caught:
        load_workload(name)
    assert f"nearest: {nearest}" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("h100-1638", "nearest: h100-16384"),
        ("h10x64", "no built-in cluster and no file is called 'h10x64'; nearest: h100x64"),
        ("mi30x64", "nearest: mi300xx64"),
        ("h100x0", "gpus: 0 GPUs (1 to 10000000)"),
        ("h100x99999999", "gpus: 99999999 GPUs (1 to 10000000)"),
        ("h100\0x8", "no built-in cluster and no file is called 'h100\\x00x8'"),
    ],
)
def test_unknown_cluster_names_the_nearest(name: str, message: str) -> None:
    """Misspelt clusters and impossible counts are one line."""
    with pytest.raises(InputError) as caught:
        load_cluster(name)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_unknown_gpu_names_the_nearest() -> None:
    """A misspelt GPU is answered with the nearest entry."""
    with pytest.raises(InputError, match="no GPU is called 'h10O'; did you mean h100"):
        load_gpu("h10O")


def test_every_key_knows_its_line() -> None:
    """Keys and list entries are found again at their line; a missing key at the mapping around it."""
    document = parse_document("a:\n  b: 1\n  c:\n    - x\n    - {d: 2}\n", "f.yaml")
    assert document.line(("a",)) == 1
    assert document.line(("a", "b")) == 2
    assert document.line(("a", "c", 1, "d")) == 5
    assert document.line(("a", "missing", "deeper")) == 1


def test_anchors_are_values() -> None:
    """A plain alias is the value of its anchor."""
    assert parse_document("a: &x {b: 1}\nc: *x\n", "f").data == {"a": {"b": 1}, "c": {"b": 1}}


def test_byte_order_mark_and_crlf_are_accepted(tmp_path: Path) -> None:
    """Files from Windows editors load."""
    path = tmp_path / "cluster.yaml"
    path.write_bytes(b"\xef\xbb\xbfgpu: h100\r\nnodes: 2\r\n")
    assert load_cluster(path).gpu_count == 16


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-4", 1e-4),
        ("15.6e12", 15.6e12),
        ("1_000", 1000),
        ("010", 10),
        ("1:30", "1:30"),
        ("0x10", "0x10"),
        ("yes", True),
        ("Off", False),
        ("~", None),
        ("2024-01-01", "2024-01-01"),
        ("bf16", "bf16"),
        ("", None),
    ],
)
def test_plain_scalars(text: str, value: object) -> None:
    """Exponents need no sign, leading zeros are decimal, base-60 numbers and dates stay text."""
    assert plain_scalar(text) == value
    assert type(plain_scalar(text)) is type(value)


def test_json_is_yaml(tmp_path: Path) -> None:
    """A JSON file loads like its YAML twin."""
    path = tmp_path / "cluster.json"
    path.write_text('{"gpu": "h100", "nodes": 2, "pue": 1.1e0}')
    assert load_cluster(path).pue == 1.1
