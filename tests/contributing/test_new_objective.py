"""An objective, added to the letter of CONTRIBUTING.md in a copy of the package."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from checks.contributor import Tree, files_named, row

from layoutopt.optimizer.cost.interruptions import job_slowdown
from layoutopt.optimizer.specs.loading import load_cluster, load_workload

if TYPE_CHECKING:
    from pathlib import Path

QUANTITIES = "optimizer/cost/quantities.py"
RECORD = """\
    Quantity(
        name="carbon_t", goal="carbon", unit="t", meaning="carbon of the whole run at 0.4 kg per kWh",
        {of}
    ),
"""
OF = "of=lambda facts, use: Linear(per_second=_hours(facts, use) * use.gpus * facts.power_w * 0.4e-6),"
QUESTION = ("llama3-8b", "h100x16", "--batch", "64")


def test_an_objective_is_one_record(tmp_path: Path) -> None:
    """The named file is touched and no other; second goals, requirements, evaluate and verify know the new one."""
    tree = Tree.copy(tmp_path)
    tree.insert(QUANTITIES, ")  # fmt: skip", RECORD.format(of=OF))
    assert tree.touched() == set(files_named(row("an objective")))
    assert "carbon" in tree.run("solve", "--help").stdout
    plan = json.loads(
        tree.run("solve", *QUESTION, "--then", "carbon", "--within", "5%", "--json", "-q").stdout
    )
    second = plan["objective"]["then"]
    slower = job_slowdown(load_workload("llama3-8b").model, load_cluster("h100x16"), 16)
    # two nodes of 8 H100s: 36% beside the GPUs, a NIC of 25 W and a switch port of 29 W each, PUE 1.2
    power_w, steps = (700.0 * 1.36 + 25 + 29) * 1.2, 15e12 / (64 * 8192)
    tonnes = plan["estimate"]["step_time_s"] * steps / 3600 * 16 * power_w * 0.4e-6 * slower
    assert (second["name"], second["unit"], second["proven"]) == ("carbon", "t", True)
    assert second["value"] == pytest.approx(tonnes, rel=1e-6)
    answer = tree.run(
        "solve",
        *QUESTION,
        "--then",
        "carbon",
        "--require",
        f"carbon_t<={tonnes * 1.01}",
        "-q",
        "-o",
        "p.json",
    )
    assert "second goal carbon" in answer.stdout and "carbon_t<=" in answer.stdout
    tree.run("verify", "p.json")
    tree.run("solve", *QUESTION, "--require", f"carbon_t<={tonnes * 0.5}", "-q", check=3)
    judged = tree.run(
        "evaluate", *QUESTION, "--layout", "tp=2", "--require", f"carbon_t<={tonnes * 0.5}", check=3
    )
    assert "does not hold" in judged.stdout


def test_a_forgotten_part_is_a_type_error(tmp_path: Path) -> None:
    """A record that does not say how the quantity follows from the step stops the type checker."""
    tree = Tree.copy(tmp_path)
    tree.insert(QUANTITIES, ")  # fmt: skip", RECORD.format(of=""))
    assert 'Missing named argument "of" for "Quantity"' in tree.mypy(QUANTITIES)
