"""Terminal tables: what they say and that they fit 80 columns."""

from __future__ import annotations

import re
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from layoutopt.optimizer.cost.estimate import estimate
from layoutopt.optimizer.cost.factory import build_cost_model
from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.report.tables.answer import (
    divisor_table,
    divisors,
    judgement_tables,
    memory_table,
    verify_tables,
)
from layoutopt.optimizer.report.tables.console import grid, section
from layoutopt.optimizer.report.tables.layout import grouped_ranks, layout_text, stage_table
from layoutopt.optimizer.report.tables.plan import Shown, plan_tables
from layoutopt.optimizer.report.tables.proof import gap_words, rough_count
from layoutopt.optimizer.report.tables.step_time import breakdown_table, rates_table
from layoutopt.optimizer.solve.api import solve_layout
from layoutopt.optimizer.solve.judge import judge_layout
from layoutopt.optimizer.solve.plan import SolveOptions
from layoutopt.optimizer.solve.verify.report import Check, VerifyReport
from layoutopt.optimizer.specs.loading import load_cluster, load_workload, parse_layout

if TYPE_CHECKING:
    from rich.console import RenderableType

    from layoutopt.optimizer.frameworks.preset import FrameworkPreset
    from layoutopt.optimizer.specs.cluster import ClusterSpec
    from layoutopt.optimizer.specs.layout import Layout
    from layoutopt.optimizer.specs.workload import Workload


def shown(renderable: RenderableType, width: int = 80) -> str:
    """Render as a log of that width would show it."""
    console = Console(width=width, highlight=False, markup=False, color_system=None)
    with console.capture() as captured:
        console.print(renderable)
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


def question(model: str, cluster: str, text: str) -> tuple[Workload, ClusterSpec, Layout, FrameworkPreset]:
    """Return a question, a layout given as text, and the preset that prices it."""
    workload, machine = load_workload(model), load_cluster(cluster)
    layout = parse_layout(text).complete(workload, machine)
    return workload, machine, layout, build_cost_model(workload.model, workload.training, machine).preset


LLAMA = ("llama3-405b", "h100-16384", "tp=8,pp=16,vp=8,zero=1")
DEEPSEEK = ("deepseek-v3", "h800-2048", "pp=16,ep=64,zero=1,recompute=mla_up_proj+moe_act")
SHARDED = ("llama3-70b", "h100-256", "tp=2,zero=3,hsdp=32,recompute=full")

GROUPED = ("llama3-70b", "h100-256", "tp=8,pp=4,recompute=uniform:4")


@pytest.mark.parametrize("asked", [LLAMA, DEEPSEEK, SHARDED, GROUPED], ids=lambda asked: str(asked[0]))
def test_layout_line_is_read_back(asked: tuple[str, str, str]) -> None:
    """The line of degrees can be pasted after --layout and gives the same layout."""
    workload, machine, layout, _ = question(*asked)
    again = parse_layout(layout_text(layout)).complete(workload, machine)
    assert again == layout


def test_equal_ranks_share_a_line() -> None:
    """Only neighbours with equal rows are joined."""
    rows = [("8",), ("8",), ("7",), ("8",)]
    assert grouped_ranks(rows) == [("0-1", "8"), ("2", "7"), ("3", "8")]
    assert grouped_ranks([]) == []


def test_stage_table_groups_ranks() -> None:
    """The ends stand alone, the ranks between share a line with the layers of each chunk."""
    _, _, layout, _ = question(*LLAMA)
    table = stage_table(layout)
    assert table is not None
    text = shown(table)
    assert re.search(r"^1-14 +8 +0 +8 x 1$", text, re.MULTILINE)
    assert re.search(r"^0 +7 .*embedding$", text, re.MULTILINE)
    assert re.search(r"^15 +7 .*head$", text, re.MULTILINE)


def test_stage_table_names_kinds_and_recomputation() -> None:
    """Mixed stacks say how many layers of each kind a rank holds; recomputed layers are counted."""
    _, _, layout, _ = question(*DEEPSEEK)
    stages = tuple(replace(stage, recomputed=min(stage.layers, 2)) for stage in layout.stages)
    table = stage_table(replace(layout, stages=stages))
    assert table is not None
    text = shown(table)
    assert "3 dense" in text
    assert re.search(r"^15 +\d+ +2 .*head, 1 MTP$", text, re.MULTILINE)
    assert stage_table(replace(layout, stages=())) is None


@pytest.mark.parametrize(
    ("asked", "state", "size", "by"),
    [
        (LLAMA, "weights", "2", "tp = 8"),
        (LLAMA, "gradients", "4", "tp = 8"),
        (LLAMA, "optimizer", "12", "tp*dp*cp = 1,024"),
        (DEEPSEEK, "weights", "2", "tp = 1, experts ep*etp = 64"),
        (SHARDED, "optimizer", "12", "tp*hsdp = 64"),
    ],
)
def test_divisors(asked: tuple[str, str, str], state: str, size: str, by: str) -> None:
    """Bytes per parameter and divisors of the states follow the ZeRO stage and the shard group."""
    workload, _, layout, preset = question(*asked)
    assert divisors(layout, preset, moe=workload.model.is_moe)[state] == (size, by)


GROUPED = ("llama3-70b", "h100-256", "tp=8,pp=4,recompute=uniform:4")


@pytest.mark.parametrize("asked", [LLAMA, DEEPSEEK, SHARDED, GROUPED], ids=lambda asked: str(asked[0]))
def test_divisors_are_those_of_the_price(asked: tuple[str, str, str]) -> None:
    """Bytes per parameter over the stated divisor, times the rank's parameters, are the priced bytes.

    Weights and optimizer state of one rank hold the same parameters, so their ratio follows from the two divisors.
    """
    workload, machine, layout, preset = question(*asked)
    if workload.model.is_moe:
        return
    model = build_cost_model(workload.model, workload.training, machine)
    words = divisors(layout, preset, moe=False)
    priced = estimate(model, layout).memory.stages[1 % layout.pp].components_bytes
    per_parameter = {
        name: sum(
            float(part) / float(by.rpartition("=")[2].replace(",", ""))
            for part, by in zip(size.split(" + "), text.split("; "), strict=True)
        )
        for name, (size, text) in words.items()
    }
    assert priced["optimizer"] / priced["weights"] == pytest.approx(
        per_parameter["optimizer"] / per_parameter["weights"]
    )
    assert priced["gradients"] / priced["weights"] == pytest.approx(
        per_parameter["gradients"] / per_parameter["weights"]
    )


def test_memory_table_sums_up() -> None:
    """The columns of a rank add up to its total within what two decimals can show."""
    workload, machine, layout, _ = question(*DEEPSEEK)
    priced = estimate(build_cost_model(workload.model, workload.training, machine), layout)
    lines = shown(memory_table(priced.memory)).splitlines()[2:]
    alone = [line for line in lines if line.split()[0].isdigit()]
    assert len(alone) >= 3
    for line in alone:
        *parts, total, share = line.split()[1:]
        values = [0.0 if part == "-" else float(part) for part in parts]
        assert sum(values) == pytest.approx(float(total), abs=0.05)
        assert float(share.removesuffix("%")) == pytest.approx(
            100 * float(total) * 1e9 / priced.memory.capacity_bytes, abs=0.1
        )


def test_many_ranks_with_falling_activations_share_a_line() -> None:
    """Of sixteen ranks the two ends stand alone; the first and the last value of the others are shown."""
    workload, machine, layout, _ = question(*LLAMA)
    priced = estimate(build_cost_model(workload.model, workload.training, machine), layout)
    stages = priced.memory.stages
    lines = shown(memory_table(priced.memory)).splitlines()[2:]
    assert [line.split()[0] for line in lines] == ["0", "1-14", "15"]
    first, last = (stages[rank].total_bytes / 1e9 for rank in (1, 14))
    assert f"{first:.1f}-{last:.1f}" in lines[1]
    shares = [stages[rank].total_bytes / priced.memory.capacity_bytes for rank in (1, 14)]
    assert f"{shares[0]:.0%}"[:-1] + f"-{shares[1]:.0%}" in lines[1]


def test_divisor_table_lists_the_fullest_rank() -> None:
    """Every component of the fullest rank is listed, largest first."""
    workload, machine, layout, preset = question(*LLAMA)
    memory = estimate(build_cost_model(workload.model, workload.training, machine), layout).memory
    fullest = max(memory.stages, key=lambda stage: stage.total_bytes)
    lines = shown(divisor_table(layout, memory, preset, moe=False)).splitlines()
    assert lines[0].startswith(f"fullest rank ({fullest.rank})")
    assert len(lines) == 2 + sum(value > 0 for value in fullest.components_bytes.values())


def test_breakdown_shares_sum_to_the_step() -> None:
    """Components with time are listed with their share, the last line is the step."""
    workload, machine, layout, _ = question(*LLAMA)
    priced = estimate(build_cost_model(workload.model, workload.training, machine), layout)
    lines = shown(breakdown_table(priced)).splitlines()[2:]
    shares = [float(match[1]) for line in lines if (match := re.search(r"([\d.]+)%", line))]
    assert shares[-1] == 100.0
    assert sum(shares[:-1]) == pytest.approx(100.0, abs=0.05 * len(shares))
    stated = replace(workload.training, builtin_tokens=False)
    rates = shown(rates_table(priced, stated))
    assert "Megatron-LM's count" in rates
    assert "PaLM's count" in rates
    assert "whole run" in rates
    unknown = replace(workload.training, total_tokens=None)
    assert "whole run" not in shown(rates_table(priced, unknown))


@pytest.mark.parametrize(
    ("gap", "words"),
    [(None, "unknown"), (0.0, "none"), (1e-7, "none"), (2e-5, "2.0e-05"), (0.0123, "1.23%")],
)
def test_gap_words(gap: float | None, words: str) -> None:
    """Gaps of nothing read as none, small ones are not rounded to nothing."""
    assert gap_words(gap) == words


def test_rough_count() -> None:
    """Large counts become powers of ten."""
    assert rough_count(137_680) == "137,680"
    assert rough_count(prod([10] * 25)) == "about 10^25"


@pytest.mark.parametrize(("model", "cluster"), [("llama3-8b", "h100x8"), ("mixtral-8x7b", "h100x64")])
def test_plan_fits_80_columns(model: str, cluster: str) -> None:
    """A whole plan has no line beyond 80 columns, says every part, and needs no colour."""
    workload, machine = load_workload(model), load_cluster(cluster)
    plan = solve_layout(workload, machine, SolveOptions())
    preset = build_cost_model(workload.model, workload.training, machine).preset
    text = shown(
        plan_tables(plan, workload, machine, preset, framework="megatron", shown=Shown(verbose=True))
    )
    assert max(map(len, text.splitlines())) <= 80
    for part in ("optimal", "Layout", "Step time", "Memory", "divided by", "Proof", "declared", "bound"):
        assert part in text
    with_notes = replace(plan, idle_gpus=2, freer_gain=0.031, warnings=("a warning",))
    notes = shown(plan_tables(with_notes, workload, machine, preset, framework="megatron"))
    assert "2 of" in notes
    assert "3.1% faster" in notes
    assert "a warning" in notes


def test_infeasible_plan_says_why() -> None:
    """Where nothing fits the least memory, what binds and the fewest GPUs are shown."""
    workload, machine = load_workload("llama3-405b"), load_cluster("h100x64")
    plan = solve_layout(workload, machine, SolveOptions())
    preset = build_cost_model(workload.model, workload.training, machine).preset
    text = shown(plan_tables(plan, workload, machine, preset, framework="megatron"))
    for part in ("infeasible", "binds", "least memory", "fewest GPUs", "of this kind fit"):
        assert part in text


def test_judgement_lists_every_reason() -> None:
    """An invalid layout shows each broken rule on a line of its own, with the price where there is one."""
    workload, machine = load_workload("llama3-405b"), load_cluster("h100-16384")
    partial = parse_layout("tp=8,pp=7,zero=2")
    judgement = judge_layout(workload, machine, partial, framework=Framework.MEGATRON)
    preset = build_cost_model(workload.model, workload.training, machine).preset
    text = shown(judgement_tables(judgement, workload, machine, preset, framework="megatron"))
    assert text.startswith("invalid")
    assert len(judgement.reasons) >= 2
    for reason in judgement.reasons:
        assert reason.split(":")[0] in text
    assert max(map(len, text.splitlines())) <= 80


def test_verify_table_marks_failures() -> None:
    """Failed checks are marked."""
    report = VerifyReport(
        accepted=False,
        checks=(
            Check(name="inputs", passed=True, reason="same"),
            Check(name="step time", passed=False, reason="1 s stated, priced 2 s"),
        ),
        degree_rows=1,
        tuples=2,
        even_layouts=3,
        solved_exactly=4,
        rows_by_optimistic_terms=0,
        seconds=0.5,
    )
    text = shown(verify_tables(report, "plan.json"))
    assert text.startswith("plan.json: rejected")
    assert re.search(r"step time +FAIL +1 s stated", text)


@pytest.mark.parametrize("width", [40, 80, 200])
def test_tables_follow_the_width(width: int) -> None:
    """Long text wraps inside its column, numbers never break."""
    table = grid(["name", "count", "reason"], [("a", "1,234,567", "word " * 40)], left=(0, 2))
    text = shown(section("Title", table, note="note"), width)
    assert max(map(len, text.splitlines())) <= width
    assert "1,234,567" in text
