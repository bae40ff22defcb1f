"""Bad files: one line each that says where, what, and what would be right."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from layoutopt.optimizer.interop.files import imported_to_plain
from layoutopt.optimizer.interop.machines.slurm import expand_hostlist
from layoutopt.optimizer.interop.sources import KINDS, FileKind, import_path, import_text, read_text
from layoutopt.optimizer.specs.errors import InputError
from layoutopt.optimizer.specs.layout_string import parse_layout_string

HERE = Path(__file__).parent
EXPECTED: dict[str, str] = yaml.safe_load((HERE / "malformed" / "expected.yaml").read_text())
SAMPLES = sorted(path for path in (HERE / "samples").iterdir() if path.is_file())


def test_corpus_is_large_and_complete() -> None:
    """At least 40 malformed files, each with its expected error and none without."""
    files = {path.name for path in (HERE / "malformed").iterdir()} - {"expected.yaml"}
    assert len(files) >= 40
    assert files == set(EXPECTED)


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_malformed_file_gives_its_one_line(name: str) -> None:
    """The error is the expected line, word for word."""
    with pytest.raises(InputError) as caught:
        import_path(HERE / "malformed" / name)
    assert str(caught.value) == EXPECTED[name]
    assert "\n" not in EXPECTED[name]


def test_missing_binary_and_folder(tmp_path: Path) -> None:
    """Reading problems are bad input too; a model folder stands for its config.json."""
    (tmp_path / "blob").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="no such file"):
        read_text(tmp_path / "absent")
    with pytest.raises(InputError, match="is not UTF-8 text"):
        read_text(tmp_path / "blob")
    (tmp_path / "tiny").mkdir()
    config = (HERE / "samples" / "hf_llama.json").read_text()
    (tmp_path / "tiny" / "config.json").write_text(config)
    assert import_path(tmp_path / "tiny").value.model.name == "tiny"


def test_unknown_kind_is_named() -> None:
    """A wrong kind lists the right ones."""
    with pytest.raises(InputError, match="import kind 'hf' is not known"):
        import_text("{}", "x", "hf")


def read_or_explained(text: str, kind: str | None) -> bool:
    """Import a text; tell whether it was read into something that can be shown, or refused by one-line problems."""
    try:
        found = import_text(text, "fuzz", kind)
    except InputError as error:
        return bool(error.problems) and all("\n" not in str(problem) for problem in error.problems)
    return found.kind in KINDS and (kind is None or found.kind == kind) and bool(imported_to_plain(found))


@pytest.mark.parametrize("kind", [None, *KINDS])
@settings(derandomize=True, max_examples=15)
@given(text=st.text(max_size=300))
def test_arbitrary_text_raises_nothing_else(kind: str | None, text: str) -> None:
    """Every importer survives any text."""
    assert read_or_explained(text, kind)


@settings(derandomize=True, max_examples=200)
@given(data=st.data())
def test_damaged_samples_raise_nothing_else(data: st.DataObject) -> None:
    """Good files with pieces cut out, doubled or overwritten still give one-line errors or a result."""
    path = data.draw(st.sampled_from(SAMPLES))
    text = path.read_text()
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(text)))
        stop = data.draw(st.integers(start, min(len(text), start + 60)))
        junk = data.draw(
            st.one_of(
                st.text(max_size=6),
                st.sampled_from(
                    ["-1", "0", "1e999", "null", "true", "[]", "{}", "9" * 30, "(", "[", "$X", "|"]
                ),
                st.just(text[start:stop] * 2),
            )
        )
        text = text[:start] + junk + text[stop:]
    assert read_or_explained(text, None)
    assert read_or_explained(text, data.draw(st.sampled_from(KINDS)))


scalars = st.none() | st.booleans() | st.integers(-3, 2**70) | st.floats() | st.text(max_size=8)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
)


@settings(derandomize=True, max_examples=150)
@given(data=st.data())
def test_wrong_values_raise_nothing_else(data: st.DataObject) -> None:
    """Structured files with a value of any type in any place still give one-line errors or a result."""
    path = data.draw(st.sampled_from([path for path in SAMPLES if path.suffix in (".json", ".yaml")]))
    tree = yaml.safe_load(path.read_text())
    node = tree
    while True:
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        key = data.draw(st.sampled_from(keys))
        inner = node[key]
        if isinstance(inner, dict | list) and inner and data.draw(st.booleans()):
            node = inner
            continue
        node[key] = data.draw(values)
        break
    assert read_or_explained(
        yaml.safe_dump(tree, sort_keys=False, default_flow_style=path.suffix == ".json"), None
    )


@pytest.mark.parametrize(
    "text", ["(" * 5000, "[" * 100_000, "a" * 10 + "[1-2]" * 40, "((E" * 900, "t*999999" * 9]
)
def test_bombs_are_refused(text: str) -> None:
    """Deep nesting and explosive repetition end in an error, quickly."""
    for parse in (parse_layout_string, expand_hostlist):
        with pytest.raises(InputError):
            parse(text)


SIZES = "--num-layers 4 --hidden-size 64 --num-attention-heads 4 --vocab-size 99 --num-experts 2"


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (FileKind.HF_CONFIG, '{"a":' * 100_000),
        ("torchtitan-python", "x = " + "-" * 50_000 + "1"),
        (
            "torchtitan-python",
            "def f():\n c.parallelism = P(tensor_parallel_degree=" + "[" * 80 + "]" * 80 + ")",
        ),
        ("torchtitan-toml", "a = " + "[" * 50_000),
        ("nanotron-yaml", "a: " + "[" * 20_000),
        ("megatron-args", "A=xxxxxxxxxx\n" + "A=$A$A\n" * 60 + "run --num-layers $A"),
        ("megatron-args", "x --num-layers $((" + "(" * 3000 + "1" + ")" * 3000 + "))"),
        ("megatron-args", f"x {SIZES} --moe-layer-freq '" + "(" * 3000 + "'"),
        (FileKind.MEGATRON_DUMP, "  tensor_model_parallel_size .. " + "[" * 30_000),
    ],
)
def test_nesting_and_growth_are_bad_input(kind: str, text: str) -> None:
    """What cannot be walked or held is an error with one line, not a crash."""
    with pytest.raises(InputError):
        import_text(text, "bomb", kind)
