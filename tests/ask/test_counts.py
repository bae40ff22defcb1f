"""Counts are written alike everywhere: in files, in options, in ranges, in layouts and limits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from layoutopt.optimizer.ask.load import load_cluster, load_layout, load_model
from layoutopt.optimizer.ask.records import RunChoices
from layoutopt.optimizer.report.commands.inputs import axis_values
from layoutopt.optimizer.report.commands.values import COUNT, SEQUENCES, TOKEN_COUNT
from layoutopt.optimizer.specs.errors import InputError
from layoutopt.optimizer.specs.units import TOKENS, whole_number
from layoutopt.optimizer.sweep.ranges import parse_counts

if TYPE_CHECKING:
    from pathlib import Path

WRITTEN = {
    "8192": 8192, "8_192": 8192, "8,192": 8192, "8Ki": 8192, "8k": 8000, "1.001k": 1001, "1e3": 1000, "128256": 128256,
}  # fmt: skip
NO_COUNT = ("1.5", "1,2", "8 k k", "²", "1e400", "nan", "", "4 tokens", "12,34", "0x10")
MODEL = """name: own
architecture: {{layers: 8, hidden: 1Ki, heads: 16, ffn: 4k, vocab: {vocab}}}
training: {{sequence_length: {length}, {batch}, precision: bf16}}
"""


def _model(
    folder: Path, *, vocab: str = "100k", length: str = "8192", batch: str = "global_batch: 1k"
) -> str:
    file = folder / "own.yaml"
    file.write_text(MODEL.format(vocab=vocab, length=length, batch=batch))
    return str(file)


@pytest.mark.parametrize(("text", "number"), WRITTEN.items())
def test_a_count_reads_alike_in_options_ranges_files_and_layouts(
    text: str, number: int, tmp_path: Path
) -> None:
    """Units and separators mean the same at every door, without a rounding error."""
    assert whole_number(text) == number
    assert COUNT.convert(text, None, None) == SEQUENCES.convert(text, None, None) == number
    quoted = f'"{text}"'  # a comma ends a value of YAML's flow form
    workload = load_model(_model(tmp_path, vocab=quoted, batch=f"global_batch: {quoted}")).value
    assert (workload.model.vocab, workload.training.global_batch) == (number, number)
    if "," not in text:  # where a comma parts values
        assert parse_counts(text, key="--batch") == (number,)
        assert axis_values("--fix", (f"hsdp_shard={text}",)) == {"hsdp_shard": (number,)}
        assert load_layout(f"dp={text}").dp == number


@pytest.mark.parametrize("text", NO_COUNT)
def test_what_is_no_count_is_refused_at_every_door(text: str, tmp_path: Path) -> None:
    """Fractions, lists, other scripts' digits and other units are no counts."""
    assert whole_number(text) is None
    with pytest.raises(InputError, match="is not valid"):
        COUNT.convert(text, None, None)
    with pytest.raises(InputError, match=r"vocab: .* is not a whole number"):
        load_model(_model(tmp_path, vocab=f'"{text}"'))


@pytest.mark.parametrize(
    ("name", "gpus"), [("h100x1k", 1000), ("h100x1Ki", 1024), ("h100x16_384", 16384), ("mi300xx1.024k", 1024)]
)
def test_a_machine_is_named_with_a_count_of_any_form(name: str, gpus: int) -> None:
    """GPUs behind the x are a count as everywhere; the machine's name has it in digits."""
    found = load_cluster(name)
    assert found.gpu_count == gpus and found.name.endswith(f"x{gpus}")


@pytest.mark.parametrize("name", ["h100x1.5", "h100x4M tokens", "h100-1k", "h100x", "h100x1x2"])
def test_other_names_are_no_machines(name: str) -> None:
    """Fractions and other units name none, nor does a misspelled built-in cluster."""
    with pytest.raises(InputError, match="no built-in cluster"):
        load_cluster(name)


def test_sizes_of_a_cluster_file_have_units(tmp_path: Path) -> None:
    """A base grows to a number of GPUs that is written with a unit."""
    file = tmp_path / "c.yaml"
    file.write_text("base: h100x64\ngpus: 1Ki\n")
    assert load_cluster(file).gpu_count == 1024


@pytest.mark.parametrize(
    ("stated", "sequences"), [("4M", 488), ("4Mi", 512), ("4M tokens", 488), ("4194304", 512), ("5k", 1)]
)
def test_a_batch_in_tokens_is_rounded_in_files_as_in_options(
    stated: str, sequences: int, tmp_path: Path
) -> None:
    """Both doors say so, and only where it was rounded."""
    tokens = float(whole_number(stated, TOKENS) or 0)
    in_file = load_model(_model(tmp_path, batch=f"global_batch_tokens: {stated}"))
    asked = load_model("llama3-8b", RunChoices(batch_tokens=tokens))
    notes = [[note for note in found.notes if "rounded" in note] for found in (in_file, asked)]
    assert in_file.value.training.global_batch == asked.value.training.global_batch == sequences
    assert [len(found) for found in notes] == [int(tokens != sequences * 8192)] * 2
    for found, key in zip(notes, ("own.yaml: training.global_batch_tokens", "batch_tokens"), strict=True):
        assert all(note.startswith(f"{key} {tokens:,.12g} rounded to {sequences:,} seq") for note in found)


def test_the_note_on_a_rounded_batch_goes_where_another_batch_is_asked_for(tmp_path: Path) -> None:
    """What was rounded isn't in the answer; phases keep their own."""
    file = _model(tmp_path, batch="global_batch_tokens: 4M")
    assert not load_model(file, RunChoices(global_batch=8)).notes
    with open(file, "a") as more:
        more.write("phases: [{name: long, sequence_length: 64Ki, global_batch_tokens: 4M}]\n")
    (note,) = load_model(file, RunChoices(global_batch=8)).notes
    assert note.startswith("own.yaml: phases[0].global_batch_tokens 4,000,000 rounded to 61 seq")


def test_tokens_given_as_sequences_name_the_key_and_the_option_that_take_them(tmp_path: Path) -> None:
    """``4M tokens`` of a batch is a batch in tokens; of a sequence length it is what it says."""
    with pytest.raises(InputError, match=r"'4M tokens' counts tokens \(--batch-tokens 4M\)"):
        SEQUENCES.convert("4M tokens", None, None)
    with pytest.raises(InputError, match=r"'4M tokens' counts tokens \(global_batch_tokens: 4M\)"):
        load_model(_model(tmp_path, batch="global_batch: 4M tokens"))
    assert TOKEN_COUNT.convert("8Ki tokens", None, None) == 8192
    assert load_model(_model(tmp_path, length="8Ki tokens")).value.training.sequence_length == 8192


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("hiden: 5", "architecture.hidden?"),
        ("sequence_lenght: 5", "training.sequence_length?"),
        ("top_k: 2", "architecture.moe.top_k?"),
        ("seq_len: 5", "training.sequence_length?"),
    ],
)
def test_an_unknown_key_names_the_nearest_of_the_whole_file(line: str, hint: str, tmp_path: Path) -> None:
    """Also where it stands elsewhere in the file, and in one short line."""
    file = _model(tmp_path)
    with open(file, "a") as more:
        more.write(line + "\n")
    with pytest.raises(InputError) as caught:
        load_model(file)
    (said,) = str(caught.value).splitlines()
    assert f"unknown key; did you mean {hint}" in said


def test_many_keys_are_not_listed_but_where_they_are(tmp_path: Path) -> None:
    """Nobody finds the one that was meant among 37."""
    with pytest.raises(InputError) as caught:
        load_model(_model(tmp_path, batch="global_batch: 8, colour: red"))
    (said,) = str(caught.value).splitlines()
    assert said.endswith("unknown key (layoutopt schema model and docs/files.md list the keys)")
    assert len(said.removeprefix(str(tmp_path))) < 150
