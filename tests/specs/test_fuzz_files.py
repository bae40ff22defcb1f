"""Whatever a file holds, loading gives a spec or an InputError with one line per problem."""

from __future__ import annotations

from functools import partial
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hypothesis import given
from hypothesis import strategies as st

from layoutopt.optimizer.specs.cluster_file import ClusterFile
from layoutopt.optimizer.specs.document import parse_document
from layoutopt.optimizer.specs.errors import InputError
from layoutopt.optimizer.specs.file_model import validate
from layoutopt.optimizer.specs.layout_file import read_layout
from layoutopt.optimizer.specs.loading import (
    load_cluster,
    load_layout,
    load_workload,
    parse_layout,
    reference_cluster,
)
from layoutopt.optimizer.specs.model_file import ModelFile

if TYPE_CHECKING:
    import pytest

    from layoutopt.optimizer.specs.document import Document

SCALARS = st.sampled_from(
    [
        *(
            "",
            "0",
            "-1",
            "1",
            "7",
            "1e400",
            "1e-4",
            ".nan",
            ".inf",
            "true",
            "~",
            "[]",
            "{}",
            "[1, 2]",
            "{a: 1}",
        ),
        *('"two\\nlines"', "80 GB", "400 Gbit/s", "*x", "&x 1", "!!int 3", "full:2", "dense", "bf16", "'"),
        "99999999999999999999",
    ]
) | st.text(max_size=10)
ITEMS = [
    *(
        "tp=8",
        "pp=2",
        "vp=3",
        "zero=1",
        "mb=2",
        "dp=",
        "=4",
        "recompute=full:x",
        "recompute=mlp",
        "recompute={}",
    ),
    *("stages=Et|tL", "stages=1/2", "stages=[1]", "order=tp", "sp=1", "schedule=zb-v", "precision=1", "m=0"),
]
BAD_BLOCKS = Path(__file__).parent.parent / "bad_inputs" / "model" / "blocks-without-mamba.yaml"


def builtin(package: str, *names: str) -> list[str]:
    """Read the texts of built-in files."""
    return [resources.files(package).joinpath(f"{name}.yaml").read_text("utf-8") for name in names]


TEXTS = {
    "model": [
        *builtin("layoutopt.models", "deepseek-v3", "gpt-oss-120b", "gpt3-175b"),
        BAD_BLOCKS.read_text("utf-8"),
    ],
    "cluster": builtin("layoutopt.topologies", "h100-16384", "gb200-nvl72-576"),
    "layout": ["tp: 8\npp: 2\nvp: 2\nrecompute: full:2\nstages:\n  - {layers: 4, recomputed: 1}\nzero: 3\n"],
}


def read(kind: str, document: Document) -> Any:
    """Read a document as one of the three kinds of file."""
    if kind == "model":
        return validate(ModelFile, document).workload("fuzz")
    if kind == "cluster":
        return validate(ClusterFile, document).cluster("fuzz", document)
    return read_layout(document)


def loads_or_explains(kind: str, text: str) -> None:
    """Load a text; any other outcome than a spec or one-line problems fails."""
    try:
        assert read(kind, parse_document(text, "fuzz.yaml")) is not None
    except InputError as error:
        assert len(str(error).split("\n")) == len(error.problems)
        assert all(problem.file for problem in error.problems)


@given(text=st.text(max_size=200))
def test_any_text(text: str) -> None:
    """Arbitrary text is refused in one line per problem."""
    for kind in TEXTS:
        loads_or_explains(kind, text)


@given(data=st.data(), kind=st.sampled_from(sorted(TEXTS)))
def test_mutated_files(data: st.DataObject, kind: str) -> None:
    """A good file with values replaced, lines dropped, doubled or re-indented loads or is explained."""
    lines = data.draw(st.sampled_from(TEXTS[kind])).splitlines()
    for _ in range(data.draw(st.integers(1, 4))):
        index = data.draw(st.integers(0, len(lines) - 1))
        line = lines[index]
        lines[index] = data.draw(
            st.sampled_from(
                [
                    "",
                    f"  {line}",
                    line.lstrip(),
                    f"{line}\n{line}",
                    line[: len(line) // 2],
                    line.replace(":", ""),
                ]
            )
            | SCALARS.map(partial("{0}: {1}".format, line.partition(":")[0]))
        )
    loads_or_explains(kind, "\n".join(lines))


@given(raw=st.binary(max_size=100))
def test_any_bytes(raw: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Arbitrary bytes in a file are refused in one line per problem."""
    path = tmp_path_factory.getbasetemp() / "fuzz.yaml"
    path.write_bytes(raw)
    for load in (load_workload, load_cluster, load_layout):
        try:
            assert load(path) is not None
        except InputError as error:
            assert str(error).startswith(str(path))


@given(text=st.text(max_size=40) | st.lists(st.sampled_from(ITEMS), max_size=5).map(",".join))
def test_any_layout_text(text: str) -> None:
    """Arbitrary layout texts parse and complete, or are explained."""
    try:
        found = parse_layout(text)
        assert found.complete(load_workload("llama3-8b"), reference_cluster("h100", 64), strict=False)
    except InputError as error:
        assert len(str(error).split("\n")) == len(error.problems)


@given(name=st.text(max_size=30))
def test_any_name(name: str) -> None:
    """Arbitrary names of built-ins are explained."""
    for load in (load_workload, load_cluster):
        try:
            assert load(name) is not None
        except InputError as error:
            assert len(error.problems) == 1
            assert "\n" not in str(error)
