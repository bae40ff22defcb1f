"""``layoutopt plan`` from the command line."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner, Result

from layoutopt.cli import main
from layoutopt.optimizer.specs.units import rough

if TYPE_CHECKING:
    from pathlib import Path

PLAN = ["plan", "llama3-8b", "h100x64", "--top", "1"]


def run(*arguments: str) -> Result:
    """Run the command line in this process."""
    return CliRunner().invoke(main, arguments)


def test_the_plan_as_tables_and_json(tmp_path: Path) -> None:
    """Both say the same; the file holds the JSON."""
    file = tmp_path / "plan.json"
    told = run(*PLAN, "--tokens", "1T", "--gpu-hour-cost", "2")
    assert told.exit_code == 0, told.output
    for words in (
        "expected with failures for 1T tokens",
        "Rule of thumb",
        "Watch",
        "Failures",
        "Goodput by size",
        "100,000",
    ):
        assert words in told.stdout
    plain = run(*PLAN, "--tokens", "1T", "--gpu-hour-cost", "2", "--json", "-o", str(file))
    assert plain.exit_code == 0
    assert json.loads(plain.stdout) == json.loads(file.read_text())
    days = json.loads(plain.stdout)["expected_days"]
    assert f"{rough(days):,g} days" in told.stdout


def test_the_range_comes_from_measured_runs() -> None:
    """Without ``--error`` the spread of the days is that of measured runs of this kind that the fit had not seen."""
    asked = (*PLAN, "--tokens", "1T", "--json")
    plain = json.loads(run(*asked).stdout)
    band = plain["error_band"]
    low, high = plain["step_ratio"]
    assert [low, high] == band["ratios"]["80"] and plain["relative_error"] is None
    assert 1 - low < high - 1, "the interval of measured runs is not symmetric"
    budget, faults = plain["budget"], plain["faults"]
    assert budget["days_low"] / budget["days"] == pytest.approx(low)
    assert budget["days_high"] / budget["days"] == pytest.approx(high)
    alone, off = faults["simulated"]["p50_s"], faults["simulated_with_error"]
    assert (off["p10_s"] / alone, off["p90_s"] / alone) == pytest.approx((low, high), rel=0.02)
    assert band["family"] == "dense 16-bit H100"
    told = run(*PLAN, "--tokens", "1T").stdout
    assert f"for steps of {low:.2f} to {high:.2f} times the predicted time" in " ".join(told.split())
    assert "Where the range comes from" in told
    stated = json.loads(run(*asked, "--error", "5").stdout)
    assert stated["relative_error"] == pytest.approx(0.05)
    assert "error_band" not in stated
    low, high = (stated["budget"][f"days_{end}"] / stated["budget"]["days"] for end in ("low", "high"))
    assert (low, high) == pytest.approx((0.95, 1.05))


def test_all_questions_at_once() -> None:
    """Fewest GPUs, a deadline, sizes, batch, marginal values: keys of the JSON and sections of the text."""
    asked = (
        "--days",
        "30",
        "--fewest",
        "--sizes",
        "32,64",
        "--largest-batch",
        "--marginal",
        "--tokens",
        "200B",
    )
    plain = json.loads(run(*PLAN, *asked, "--json").stdout)
    assert plain["fewest"]["gpus"] == 4
    assert plain["deadline"]["gpus"] is not None
    assert [answer["gpus"] for answer in plain["sizes"]["answers"]] == [32, 64]
    assert plain["largest_batch"]["global_batch"] >= 512
    assert {value["resource"] for value in plain["marginal"]} == {
        "memory",
        "network",
        "nvlink",
        "flops",
        "hbm",
    }
    told = run(*PLAN, *asked).stdout
    for words in (
        "Fewest GPUs that fit",
        "Fewest GPUs for 30 days",
        "Sizes",
        "Global batch",
        "Worth of a better",
    ):
        assert words in told


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tokens", "many"], "--tokens"),
        (["--gpu-hour-cost", "-1"], "--gpu-hour-cost"),
        (["--days", "0"], "--days"),
        (["--sizes", "8:64"], "--sizes"),
        (["--error", "200%"], "--error"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(arguments: list[str], message: str) -> None:
    """Options out of range are refused before anything is solved, or at least before it is planned."""
    result = run(*PLAN, *arguments)
    assert result.exit_code == 2, result.output
    assert message in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_nothing_fits_is_exit_3() -> None:
    """The reason is given, and how many GPUs would do."""
    result = run("plan", "llama3-70b", "h100x8", "--top", "1", "--fewest")
    assert result.exit_code == 3, result.output
    assert "no layout fits in memory" in " ".join(result.stdout.split())
    assert "24 GPUs" in result.stdout


def test_phases_of_the_model_file(tmp_path: Path) -> None:
    """A long-context stage is a phase of the same plan."""
    model = tmp_path / "two.yaml"
    model.write_text(
        "architecture: {layers: 8, hidden: 4096, heads: 32, kv_heads: 8, ffn: 14336, vocab: 128256}\n"
        "training: {sequence_length: 4096, global_batch: 64, total_tokens: 100B, precision: bf16}\n"
        "phases:\n  - {name: long, sequence_length: 32768, global_batch: 8, total_tokens: 5B}\n"
    )
    result = run("plan", str(model), "h100x16", "--top", "1", "--json")
    assert result.exit_code == 0, result.output
    phases = json.loads(result.stdout)["phases"]
    assert [(phase["name"], phase["sequence_length"]) for phase in phases] == [
        ("main", 4096),
        ("long", 32768),
    ]
