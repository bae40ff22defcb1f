"""Rows of trainers, precisions and splits without a model of their own: priced as the nearest, marked, counted apart."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from layoutopt.cli import main
from layoutopt.optimizer.evidence.case import Case, Skip
from layoutopt.optimizer.evidence.cases import build_case, build_cases
from layoutopt.optimizer.evidence.nearest import nearest_frameworks
from layoutopt.optimizer.evidence.predict import predict, preset_of
from layoutopt.optimizer.evidence.table import parse_runs
from layoutopt.optimizer.evidence.validate import validate
from layoutopt.optimizer.frameworks.registry import Framework, find_framework

if TYPE_CHECKING:
    from collections.abc import Callable

    from layoutopt.optimizer.evidence.run import MeasuredRun

MORE = Path(__file__).parents[1] / "data" / "evidence" / "runs_more.csv"


def case_of(run: MeasuredRun) -> Case:
    """Build a case that must exist."""
    case = build_case(run)
    assert isinstance(case, Case), case
    return case


def test_four_in_five_pretraining_rows_are_priced() -> None:
    """Of the table of 2024-26 whose runs have no preset for the most part; what is skipped leaves its batch open."""
    rows = [run for run in parse_runs(MORE.read_bytes(), MORE.name) if run.method == "pretrain"]
    cases, skips = build_cases(rows)
    assert len(cases) >= 0.8 * len(rows)
    assert {skip.reason for skip in skips} == {
        "micro-batch not stated",
        "recomputation 'other' is none of none, selective, full",
    }


def test_a_trainer_is_priced_as_its_nearest_and_counted_apart(make_run: Callable[..., MeasuredRun]) -> None:
    """The seconds are those of the preset; the headline figures leave the row out and its family has a line."""
    cells = {"pp": 1, "dp": 16}
    known = case_of(make_run(framework="torchtitan", **cells))
    like = case_of(make_run(framework="Prime-RL", **cells))
    assert (like.framework, like.assumed) == (Framework.TORCHTITAN, ("framework as torchtitan",))
    whole = replace(known, switches={"loss_chunks": 1})  # torchtitan's own are of a later day
    assert predict(like).step_time_s == predict(whole).step_time_s
    report = validate([make_run(framework="prime-rl", **cells)])
    assert (report.step_time.rows, report.assumed.rows) == (0, 1)
    assert {name: one.rows for name, one in report.assumed_families.items()} == {"dense 16-bit H100": 1}
    assert list(report.assumed_frameworks) == ["prime-rl"]


@pytest.mark.parametrize(("gpus", "blocking"), [(8, False), (512, True)])
def test_a_publications_setting_may_begin_at_a_size(
    make_run: Callable[..., MeasuredRun], gpus: int, blocking: bool
) -> None:
    """BLOOM's jobs of many GPUs hang unless every launch is waited for, those of one node do not."""
    source = "bigscience-workshop/bigscience train/tr11-176B-ml/chronicles-prequel.md"
    cells = {"framework": "megatron-deepspeed", "tp": 8, "pp": 1, "dp": gpus // 8, "n_gpus": gpus}
    case = case_of(make_run(source=source, **cells))
    assert preset_of(case).blocking_launches is blocking
    assert not preset_of(case_of(make_run(**cells))).blocking_launches


def test_no_stand_in_hides_a_preset() -> None:
    """An entry that names a trainer with a preset of its own would never be read."""
    assert not [name for name in nearest_frameworks() if find_framework(name)]


def test_a_users_stand_in_is_first(make_run: Callable[..., MeasuredRun]) -> None:
    """It prices what the package leaves out, and replaces what it assumes."""
    assert isinstance(build_case(make_run(framework="homegrown")), Skip)
    for name in ("homegrown", "prime-rl"):
        case = build_case(make_run(framework=name), (), {name: Framework.MEGATRON})
        assert isinstance(case, Case)
        assert case.framework is Framework.MEGATRON


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("framework.x=nobody", "nobody"),
        ("framework.=torchtitan", "names no trainer"),
        ("framework.nemo=torchtitan", "has a preset of its own"),
    ],
)
def test_bad_stand_ins_are_one_line(text: str, says: str) -> None:
    """Exit 2, the option named."""
    result = CliRunner().invoke(main, ["validate", str(MORE), "--assume", text])
    assert (result.exit_code, len(result.output.strip().splitlines())) == (2, 1)
    assert says in result.output
    assert "--assume" in result.output


def test_32_bit_training_is_16_bytes_a_parameter_at_tf32_rate(make_run: Callable[..., MeasuredRun]) -> None:
    """Weights, gradients and two moments of 4 bytes each, counted in elements of twice the size; TF32 at half of bf16."""
    wide, narrow = case_of(make_run(precision="fp32")), case_of(make_run())
    preset = preset_of(wide)
    assert 2 * (preset.weight_bytes + preset.grad_bytes + preset.master_bytes + 2 * preset.moment_bytes) == 16
    assert wide.assumed == ("precision",)
    assert not wide.memory_known
    half = narrow.cluster.gpu
    assert (
        wide.cluster.gpu.dense_flops[wide.layout.precision] == half.dense_flops[narrow.layout.precision] / 2
    )
    assert wide.cluster.nic_bytes_per_s == narrow.cluster.nic_bytes_per_s / 2
    assert 1.7 < predict(wide).step_time_s / predict(narrow).step_time_s < 2.1


def test_volta_has_no_tf32(make_run: Callable[..., MeasuredRun]) -> None:
    """Its tensor cores multiply 16-bit operands alone."""
    skip = build_case(make_run(precision="fp32", gpu="V100-32G"))
    assert isinstance(skip, Skip)
    assert "TF32" in skip.reason


def test_an_empty_dp_is_what_the_gpus_leave(make_run: Callable[..., MeasuredRun]) -> None:
    """32 GPUs of tp 2 and pp 2 are 8 replicas; a rest that doesn't divide stays an error."""
    assert case_of(make_run(dp=None)).layout.dp == case_of(make_run()).layout.dp
    skip = build_case(make_run(dp=None, tp=3))
    assert isinstance(skip, Skip)
    assert "dp not stated" in skip.reason


@pytest.mark.parametrize(
    ("split", "pp", "layers"),
    [
        ("E+9,7,2x8+L", 4, [9, 7, 8, 8]),
        ("E+9,2x8,7+L", 4, [9, 8, 8, 7]),
        ("layers incl. embedding (first) and head (last): [7, 9, 9, 9]", 4, [6, 9, 9, 8]),
    ],
)
def test_splits_in_words(
    make_run: Callable[..., MeasuredRun], split: str, pp: int, layers: list[int]
) -> None:
    """How tables write unequal stages: layers a stage beside the ends, or with each end counted as a layer."""
    case = case_of(make_run(stage_split=split, pp=pp, dp=4))
    assert [stage.layers for stage in case.layout.stages] == layers


def test_offloaded_activations_are_priced_as_assumed(make_run: Callable[..., MeasuredRun]) -> None:
    """How much goes to the host is not in the table: all of it is assumed, and the row counted apart."""
    case = case_of(make_run(offload="activations"))
    assert case.assumed == ("offload",)
    assert preset_of(case).offload_activations
