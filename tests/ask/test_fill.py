"""Options fill what a file leaves open; tokens become whole sequences; units are those that people write."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from layoutopt.cli import main
from layoutopt.optimizer.ask.job import load_job
from layoutopt.optimizer.ask.load import load_model
from layoutopt.optimizer.ask.records import JobRequest, RunChoices
from layoutopt.optimizer.specs.errors import InputError
from layoutopt.optimizer.specs.units import BANDWIDTH, TOKENS, parse_quantity

if TYPE_CHECKING:
    from pathlib import Path

MODEL = "architecture: {layers: 4, hidden: 512, heads: 8, vocab: 1000, ffn: 2048}\n"


def test_an_imported_model_is_solved_with_options(tmp_path: Path) -> None:
    """import X > x.yaml; evaluate x.yaml --batch --seq --precision."""
    config = {
        "model_type": "llama", "hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
        "intermediate_size": 512, "vocab_size": 1000, "max_position_embeddings": 2048,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    imported = CliRunner().invoke(main, ["import", str(tmp_path / "config.json")])
    file = tmp_path / "x.yaml"
    file.write_text(imported.stdout)
    words = ["evaluate", str(file), "h100x8", "--layout", "tp=1", "--batch", "64", "--seq", "1Ki"]
    words += ["--precision", "bf16", "--json"]
    found = CliRunner().invoke(main, words)
    assert found.exit_code in (0, 3), found.stderr
    assert json.loads(found.stdout)["layout"]["micro_batches"] == 8


@pytest.mark.parametrize("training", ["", "training: {sequence_length: 2048}\n", "training:\n"])
def test_what_is_not_stated_is_filled(training: str, tmp_path: Path) -> None:
    """Missing sections and keys; without a batch the file's own problem stays."""
    file = tmp_path / "m.yaml"
    file.write_text(MODEL + training)
    run = RunChoices(sequence_length=1024, global_batch=32, precision=("bf16",))
    assert load_model(file, run).value.training.global_batch == 32
    assert load_model(file, run).value.training.sequence_length == 1024
    with pytest.raises(InputError, match=r"training\.global_batch: missing"):
        load_model(file, RunChoices(sequence_length=1024, precision=("bf16",)))


def test_what_is_stated_is_replaced_as_before(tmp_path: Path) -> None:
    """A file's own batch in tokens is no contradiction to one that is asked for."""
    file = tmp_path / "m.yaml"
    file.write_text(
        MODEL + "training: {sequence_length: 1024, global_batch_tokens: 65536, precision: bf16}\n"
    )
    assert load_model(file).value.training.global_batch == 64
    assert load_model(file, RunChoices(global_batch=8)).value.training.global_batch == 8


def test_batch_tokens_are_rounded_with_a_note() -> None:
    """16M tokens are 1,953 sequences of 8,192, and 16Mi are 2,048."""
    found = load_model("llama3-8b", RunChoices(batch_tokens=parse_quantity("16M", TOKENS)))
    assert found.value.training.global_batch == 1953
    (note,) = [text for text in found.notes if "rounded" in text]
    assert note == "batch_tokens 16,000,000 rounded to 1,953 sequences of 8,192 = 15,998,976 tokens"
    exact = load_model("llama3-8b", RunChoices(batch_tokens=parse_quantity("16Mi", TOKENS)))
    assert exact.value.training.global_batch == 2048
    assert not any("rounded" in text for text in exact.notes)


@pytest.mark.parametrize(
    ("text", "value"),
    [("8k", 8000), ("16K", 16000), ("16Ki", 16384), ("16Mi", 2**24), ("15.6T", 15.6e12), ("2B tokens", 2e9)],
)
def test_units_of_tokens(text: str, value: float) -> None:
    """Decimal and binary prefixes, and billions as they are spoken."""
    assert parse_quantity(text, TOKENS) == value


@pytest.mark.parametrize("value", [400, "400", "50 kB/s"])
def test_bandwidths_below_a_megabyte_lack_their_unit(value: object) -> None:
    """400 means Gbit/s to its author and bytes/s to a computer."""
    with pytest.raises(InputError, match=r'in SI .*"400 Gbit/s"'):
        parse_quantity(value, BANDWIDTH)
    assert parse_quantity("400 Gbit/s", BANDWIDTH) == 5e10


def test_micro_batch_beside_an_accelerate_file(tmp_path: Path) -> None:
    """What the training script states is given as a layout; batch and sequences as options."""
    file = tmp_path / "accelerate.yaml"
    file.write_text(
        "distributed_type: FSDP\nmixed_precision: bf16\nnum_processes: 8\n"
        "fsdp_config:\n  fsdp_version: 2\n  fsdp_activation_checkpointing: true\n"
    )
    job = load_job(
        JobRequest(cluster="h100x8", model="llama3-8b", files=(str(file),), layout="micro_batch=2"),
        RunChoices(sequence_length=4096, global_batch=64),
    )
    assert (job.layout.micro_batch, job.layout.micro_batches, job.layout.zero) == (2, 4, 3)
