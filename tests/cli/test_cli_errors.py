"""Bad command lines: one line for each problem on stderr, with what would be valid."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layoutopt.optimizer.report.commands.inputs import space_options
from layoutopt.optimizer.report.commands.options import SpaceChoices, bare_flag_values
from layoutopt.optimizer.specs.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from click.testing import Result

BASE = ("solve", "llama3-8b", "h100x8")
USAGE = "usage: layoutopt solve [OPTIONS] MODEL CLUSTER"
ERRORS: dict[tuple[str, ...], str] = {
    ("slove",): "layoutopt: no such command slove (did you mean solve?)",
    (*BASE, "--bach", "8"): "layoutopt solve: no such option --bach (did you mean --batch?)",
    ("solve",): f"layoutopt solve: missing MODEL ({USAGE})",
    ("solve", "llama3-8b"): f"layoutopt solve: missing CLUSTER ({USAGE})",
    (*BASE, "--batch", "0"): "--batch: '0' is not valid (whole numbers from 1 to 1,000,000,000)",
    (*BASE, "--batch", "1,2"): "--batch: '1,2' is not valid (whole numbers from 1 to 1,000,000,000)",
    (*BASE, "--batch", "4M tokens"): "--batch: '4M tokens' counts tokens (--batch-tokens 4M)",
    (*BASE, "--framework", "megatorn"): (
        "--framework: 'megatorn' is unknown (did you mean megatron or megatron-lm?)"
    ),
    (*BASE, "--precision", "bf61"): "--precision: 'bf61' is unknown (did you mean bf16?)",
    (*BASE, "--gap", "2"): "--gap: '2' is no share (0% up to below 100%)",
    (*BASE, "--time-limit", "5 parsecs"): (
        "--time-limit: '5 parsecs': unit 'parsecs' is unknown "
        '(expected seconds, or a unit: "10 us", "5 min", "2 h")'
    ),
    (*BASE, "--time-limit", "0"): "--time-limit: 0 is out of range (above 0)",
    (*BASE, "--allow-idle=100"): "--allow-idle: '100' is no share (0% up to below 100%)",
    (*BASE, "--allow-idle", "abc"): "--allow-idle: 'abc' is no share (0% up to below 100%)",
    (*BASE, "--require", "tpp*cp<=8"): (
        "--require: 'tpp*cp<=8' has no axis or quantity 'tpp' at character 1 (did you mean tp?)"
    ),
    (*BASE, "--require", "cost<=1e6"): "--gpu-hour-cost: is not given, and cost rests on it (e.g. 2.5)",
    (*BASE, "--then", "memoy"): "--then: 'memoy' is unknown (did you mean memory?)",
    (*BASE, "--then", "cost"): "--gpu-hour-cost: is not given, and cost rests on it (e.g. 2.5)",
    (*BASE, "--within", "1%"): "--within: is given without a second goal (then memory, for example)",
    (*BASE, "--then", "gpus", "--within", "200%"): "--within: '200%' is no share (0% up to below 100%)",
    ("evaluate", "llama3-8b", "h100x8", "--layout", "tp=2", "--require", "tp>=q"): (
        "--require: 'tp>=q' has no axis or quantity 'q' at character 5 (one of tp, cp, pp, vp, dp, ep, etp, "
        "micro_batch, micro_batches, sp, zero, hsdp_shard, step_s, days, cost, energy_kwh, gpus, peak_gb, power_mw, "
        "layers, recomputed)"
    ),
    ("evaluate", "llama3-8b", "h100x8", "--layout", ""): (
        "--layout: is empty (tp=8,pp=16,..., a layout file or a plan)"
    ),
    ("plan", "llama3-8b", "h100x8", "--days", "0"): "--days: '0' is not valid (a number above 0)",
    ("plan", "llama3-8b", "h100x8", "--gpu-hour-cost", "nan"): (
        "--gpu-hour-cost: 'nan' is not valid (a number, 0 or more)"
    ),
    ("sweep", "llama3-8b", "h100x8", "--jobs", "0"): (
        "--jobs: '0' is not valid (whole numbers from 1 to 4,096)"
    ),
    ("sweep", "llama3-8b", "h100x8", "--store", "/"): "--store: file '/' is a directory",
    ("sweep", "llama3-8b", "h100x8", "--scheduler", "foo"): (
        "--scheduler: 'foo' is no address (the address that `dask scheduler` prints, e.g. tcp://host:8786)"
    ),
    ("sweep", "llama3-8b", "h100", "--gpus", "1:1000:+1", "--batch", "1:1000:+1"): (
        "sweep: 1,000,000 combinations (at most 100,000 in one sweep)"
    ),
    ("sweep", "llama3-8b", "h100x8", "--store", ""): "--store: is empty (a file name)",
    ("sweep", "llama3-8b", "h100x8", "--gpus", ""): (
        '--gpus: \'\' is not a number ("256,512", "256:16384:x2", "8:64:+8")'
    ),
    ("sweep", "export", "--format", "foo"): "--format: 'foo' is no export format (csv, json, parquet)",
    ("plan", "llama3-8b", "h100x8", "--tokens", "1e40"): "--tokens: 1e+40 is out of range (above 0)",
    ("solve", "", "h100x8"): "MODEL: is empty (a model file or a built-in name)",
    ("export", "plan.json", "--to", "megatron-lm", "--release", "foo"): (
        '--release: \'foo\' is no release ("0.15", "core 0.9", "NeMo 25.02", "v0.2.2", "era C"'
        ', or a date: "2022", "2022-05")'
    ),
    ("export", "plan.json"): "layoutopt export: missing --to (usage: layoutopt export [OPTIONS] PLAN)",
    ("import", "/"): "/: a folder without config.json",
    ("sweep", "llama3-8b", "h100x8", "--gpu", "8"): (
        "layoutopt sweep: no such option --gpu (did you mean --gpus?)"
    ),
    (*BASE, "--batch-tokens", "4000"): (
        "--batch-tokens: 4,000 tokens are less than half a sequence of 8,192 (at least 8,192 = 1 sequence)"
    ),
    (*BASE, "--batch-tokens", "1e99"): (
        "--batch-tokens: 1e+99 tokens are out of range (up to 1,000,000,000 sequences)"
    ),
    (*BASE, "--batch-tokens", "16384", "--batch", "2"): (
        "--batch-tokens: is given together with --batch (one of the two)"
    ),
    (*BASE, "--gpus", "16"): (
        "--gpus: h100x8 has 8 GPUs, not 16 (1 to 8; h100x16 is a reference fabric of that size)"
    ),
    (*BASE, "--max", "pp=many"): "--max: pp=many is no limit (a whole number, e.g. pp=16)",
    (*BASE, "--max", "pp=4", "--max", "pp=8"): "--max: pp is given twice (one limit per axis)",
    (*BASE, "--fix", "tp"): "--fix: 'tp' is not AXIS=VALUE (tp=8, tp=4,8 or recompute=none)",
    (*BASE, "--fix", "tpp=4"): "--fix: no axis 'tpp' (did you mean tp?)",
    (*BASE, "--fix", "tp=0"): "--fix: tp can't be 0 (integers from 1)",
    (*BASE, "--fix", "tp=99999999999"): "--fix: tp can't be 99999999999 (at most 10000000)",
    (*BASE, "--software", "newest"): (
        '--software: \'newest\' is no release ("0.15", "core 0.9", "NeMo 25.02", "v0.2.2", "era C"'
        ', or a date: "2022", "2022-05")'
    ),
    (*BASE, "-o", "no/such/folder/plan.json"): (
        "no/such/folder/plan.json: --output: cannot be written (a file in a folder that exists)"
    ),
    ("schema", "modle"): "KIND: 'modle' is unknown (did you mean model?)",
    ("catalog", "modles", "llama"): "catalog: 'modles' is no kind (models, clusters, gpus)",
    ("catalog", "models", "kimi-k3"): "catalog: no name holds 'kimi-k3' (nearest: kimi-k2)",
}


@pytest.mark.parametrize(("words", "line"), ERRORS.items(), ids=[" ".join(words) for words in ERRORS])
def test_error_line(run: Callable[..., Result], words: tuple[str, ...], line: str) -> None:
    """The error is exactly one line on stderr, stdout stays empty."""
    result = run(*words)
    assert result.stderr.splitlines() == [line]
    assert result.stdout == ""
    assert result.exit_code == 2


def test_both_files_are_reported(run: Callable[..., Result]) -> None:
    """An unknown model and an unknown cluster are named at once, each with the nearest."""
    lines = run("solve", "llama3-70", "h100-1025").stderr.splitlines()
    assert len(lines) == 2
    assert "nearest: llama3-70b" in lines[0]
    assert "nearest: h100-1024" in lines[1]


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ("{", "not JSON"),
        ("[]", "mapping"),
        ("{}", "inputs"),
        ('{"inputs": {}}', "inputs lack"),
        ('{"inputs": 3}', "inputs"),
        ("[" * 100_000, "not JSON"),
        ("\0", "binary"),
    ],
)
def test_broken_plan_file(run: Callable[..., Result], tmp_path: Path, content: str, what: str) -> None:
    """A plan that is none is bad input, named with its file."""
    file = tmp_path / "plan.json"
    file.write_text(content)
    result = run("verify", str(file))
    assert result.exit_code == 2
    assert all(line.startswith(str(file)) for line in result.stderr.splitlines())
    assert what in result.stderr


def test_bare_allow_idle_leaves_the_arguments() -> None:
    """Without a number ``--allow-idle`` takes its default and not the model's name."""
    flags = {"--allow-idle": "10%"}
    assert bare_flag_values(["--allow-idle", "m", "c"], flags) == ["--allow-idle=10%", "m", "c"]
    assert bare_flag_values(["m", "c", "--allow-idle"], flags) == ["m", "c", "--allow-idle=10%"]
    assert bare_flag_values(["--allow-idle", "5", "m"], flags) == ["--allow-idle", "5", "m"]
    assert bare_flag_values(["--allow-idle", "2.5%", "m"], flags) == ["--allow-idle", "2.5%", "m"]
    assert bare_flag_values(["--allow-idle=5", "m"], flags) == ["--allow-idle=5", "m"]


def choices(**given_values: tuple[str, ...]) -> SpaceChoices:
    """Return restrictions of which only some are given."""
    empty: dict[str, tuple[str, ...]] = {name: () for name in ("fix", "max", "min", "forbid", "allow")}
    return SpaceChoices(**(empty | given_values), allow_idle=None)


def test_restrictions_are_read() -> None:
    """Lists, several axes in one option, repetition, short names and words all reach the space."""
    options = space_options(
        choices(
            fix=("tp=4,8,pp=16", "tp=2", "recompute=mla_up_proj+moe_act,none", "sp=off"),
            forbid=("zero=3", "order=tp-cp-ep-pp-dp"),
            max=("mb=4",),
            min=("dp=2",),
        ),
        None,
    )
    assert options.fix == {
        "tp": (4, 8, 2),
        "pp": (16,),
        "recompute": ("mla_up_proj+moe_act", "none"),
        "sp": (0,),
    }
    assert options.forbid == {"zero": (3,), "mesh_order": ("tp-cp-ep-pp-dp",)}
    assert (options.max, options.min) == ({"micro_batch": 4}, {"dp": 2})


@given(st.lists(st.text(st.sampled_from("tp=8,zero x-+_0é"), max_size=12), max_size=3))
@settings(max_examples=200)
def test_restrictions_fail_only_as_bad_input(texts: list[str]) -> None:
    """Whatever is written after --fix and --max is read or refused as input."""
    for name in ("fix", "max"):
        try:
            space_options(choices(**{name: tuple(texts)}), None)
        except InputError as error:
            assert str(error)
