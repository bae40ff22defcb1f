"""A throughput alone: MFU and HFU by every count, and published figures reproduced by the command."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner

from layoutopt import InputError, load_model, utilization
from layoutopt.cli import main


def diagnosed(*words: str) -> dict[str, Any]:
    """Return what the command prints as JSON."""
    result = CliRunner().invoke(main, ["diagnose", *words, "--json"])
    assert result.exit_code == 0, result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    return found


@pytest.mark.parametrize(
    ("model", "words", "mfu", "with_attention"),
    [
        ("palm-540b", ("--peak", "275 TFLOP/s", "--gpus", "6144", "--tokens-per-s", "238.3k"), 45.7, 46.2),
        ("mt-nlg-530b", ("--gpu", "a100", "--gpus", "2240", "--tokens-per-s", "65.43k"), 29.8, 30.3),
    ],
)
def test_published_utilization(model: str, words: tuple[str, ...], mfu: float, with_attention: float) -> None:
    """PaLM 540B and MT-NLG 530B without and with attention (Chowdhery et al. 2022, appendix B), to a tenth of a point."""
    by_count = diagnosed(model, *words)["by_count"]
    assert 100 * by_count["matrices"]["mfu"] == pytest.approx(mfu, abs=0.1)
    assert 100 * by_count["full"]["mfu"] == pytest.approx(with_attention, abs=0.1)
    assert by_count["matrices"]["mfu"] < by_count["causal"]["mfu"] < by_count["full"]["mfu"]


def test_published_hardware_utilization() -> None:
    """PaLM's HFU of 57.8% beside an MFU of 46.2% is what repeating three quarters of the forward pass gives."""
    words = ("--peak", "275 TFLOP/s", "--gpus", "6144", "--tokens-per-s", "238.3k", "--repeated", "75%")
    full = diagnosed("palm-540b", *words)["by_count"]["full"]
    assert 100 * full["hfu"] == pytest.approx(57.8, abs=0.05)
    assert full["hfu"] / full["mfu"] == pytest.approx(1.25)
    whole = diagnosed("palm-540b", *words[:-1], "100%")["by_count"]["full"]
    assert whole["hfu"] / whole["mfu"] == pytest.approx(4 / 3)


@pytest.mark.parametrize(
    ("gpus", "seq", "tflops", "mfu"),
    [(8192, 8192, 430, 43.5), (16384, 8192, 400, 40.4), (16384, 131072, 380, 38.4)],
)
def test_llama3_rows(gpus: int, seq: int, tflops: float, mfu: float) -> None:
    """Llama 3 405B's three rows (arXiv:2407.21783, table 4): TFLOP/s per GPU as a share of the H100's peak."""
    words = ("llama3-405b", "--gpu", "h100", "--gpus", str(gpus), "--seq", str(seq), "--batch", "128")
    found = diagnosed(*words, "--tflops", str(tflops))
    assert 100 * found["by_count"]["full"]["mfu"] == pytest.approx(mfu, abs=0.1)
    assert found["by_count"]["full"]["tflops_per_gpu"] == pytest.approx(tflops)


def test_the_three_ways_of_stating_a_speed_agree() -> None:
    """Tokens per second, the step time and TFLOP/s of one run give one utilisation."""
    words = ("llama3-8b", "--gpu", "h100", "--gpus", "256", "--batch", "512", "--seq", "8192")
    first = diagnosed(*words, "--tokens-per-s", "2.5M")
    step = diagnosed(*words, "--step", repr(first["step_time_s"]))
    causal = repr(first["by_count"]["causal"]["tflops_per_gpu"])
    tflops = diagnosed(*words, "--tflops", causal, "--count", "causal")
    for other in (step, tflops):
        assert other["tokens_per_s"] == pytest.approx(first["tokens_per_s"])
        assert other["by_count"]["full"]["mfu"] == pytest.approx(first["by_count"]["full"]["mfu"])


def test_parameters_that_take_part() -> None:
    """Of a mixture of experts the chosen ones count, of a dense model all but the input embedding."""
    words = ("--gpu", "h100", "--gpus", "256", "--tokens-per-s", "1M")
    experts = diagnosed("deepseek-v3", *words)["parameters"]
    assert experts["matrices"] < experts["active"] < 0.1 * experts["total"]
    dense = diagnosed("llama3-8b", *words)["parameters"]
    assert dense["total"] - dense["matrices"] == pytest.approx(128256 * 4096, rel=1e-2)


def test_python_call() -> None:
    """The call from Python is that of the command."""
    found = utilization(
        load_model("palm-540b"), gpus=6144, peak_flops=275e12, tokens_per_s=238.3e3, repeated=0.75
    )
    assert 100 * found.by_count["full"].hfu == pytest.approx(57.8, abs=0.05)  # type: ignore[index]
    named = utilization(load_model("llama3-8b"), gpus=1024, gpu="h100", step_time_s=4.0)
    assert named.step_time_s == pytest.approx(4.0)
    with pytest.raises(InputError, match="exactly one speed"):
        utilization(load_model("llama3-8b"), gpus=8, gpu="h100")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--gpus", "8", "--step", "4"), "--gpu: missing"),
        (("--gpu", "h100", "--step", "4"), "--gpus: missing"),
        (("--gpu", "h100", "--gpus", "8"), "nothing to diagnose"),
        (("--gpu", "h100", "--gpus", "8", "--step", "4", "--tflops", "400"), "exactly one speed"),
        (("--gpu", "h100", "--gpus", "8", "--tokens-per-s", "300M"), "times the hardware's peak"),
        (("--gpu", "h10", "--gpus", "8", "--step", "4"), "no GPU is called"),
        (("--gpu", "a100", "--gpus", "8", "--step", "4", "--precision", "fp8"), "no fp8 arithmetic"),
        (("--gpu", "h100", "--gpus", "8", "--step", "4", "--repeated", "101%"), "0% to 100%"),
    ],
)
def test_bad_speeds(words: tuple[str, ...], message: str) -> None:
    """What is missing or impossible is said in one line."""
    result = CliRunner().invoke(main, ["diagnose", "llama3-8b", *words])
    assert result.exit_code == 2
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_what_is_repeated_stays_below_the_peak_too() -> None:
    """An HFU above 100% is refused as an MFU above it is, and the line says how much may be repeated."""
    words = (
        "llama3-8b",
        "--gpu",
        "h100",
        "--gpus",
        "8",
        "--tflops",
        "950",
        "--seq",
        "2048",
        "--repeated",
        "100%",
    )
    result = CliRunner().invoke(main, ["diagnose", *words])
    assert result.exit_code == 2 and "--repeated: 100% of the forward pass" in result.stderr
    assert len(result.stderr.splitlines()) == 1 and "more than the hardware's peak" in result.stderr
    with pytest.raises(InputError, match="count: 'half' is none"):
        utilization(load_model("llama3-8b"), gpus=8, gpu="h100", tflops_per_gpu=400, count="half")
