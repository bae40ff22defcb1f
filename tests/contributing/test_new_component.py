"""A step-time component, added to the letter of CONTRIBUTING.md in a copy of the package."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from checks.contributor import Tree, files_named, row

if TYPE_CHECKING:
    from pathlib import Path

COMPONENTS, COST_MODEL = "optimizer/cost/components.py", "optimizer/cost/cost_model.py"
RECORD = """\
    BARRIER = ComponentRecord(
        key="barrier", words="waiting at the barrier", hue="plum", group=Group.HOST, place=Place.OUTSIDE,
        {ablation}axis=None, loss=True,
    )
"""
SECONDS = """\
        parts[Component.BARRIER] = np.full(len(batch), self.constants["barrier_s"])
"""
CONSTANT = """\
barrier_s:
  value: 0.25
  unit: s
  bounds: [0.0, 2.0]
  meaning: "made up"
  source: "made up"
"""
QUESTION = ("llama3-8b", "h100x16", "--batch", "64")
LAYOUT = ("--layout", "tp=2,zero=1")


def test_a_component_is_a_record_its_seconds_and_its_constant(tmp_path: Path) -> None:
    """The named files are touched and no other; every command that speaks of the step's parts speaks of the new one."""
    tree = Tree.copy(tmp_path)
    before = json.loads(tree.run("evaluate", *QUESTION, *LAYOUT, "--json").stdout)["estimate"]
    tree.insert(COMPONENTS, "    STEP = ComponentRecord(", RECORD.format(ablation="ablation=Ablation.HOST, "))
    tree.insert(COST_MODEL, "        return parts\n", SECONDS)
    tree.append("optimizer/cost/constants.yaml", CONSTANT)
    assert tree.touched() == set(files_named(row("a step-time component")))
    after = json.loads(tree.run("evaluate", *QUESTION, *LAYOUT, "--json").stdout)["estimate"]
    assert after["breakdown_s"]["barrier"] == 0.25 and "barrier" not in before["breakdown_s"]
    assert after["step_time_s"] == pytest.approx(before["step_time_s"] + 0.25, rel=1e-9)
    _every_command(tree)


PER_BLOCK = """\
        each_s = np.full((len(batch), len(self.counts)), self.constants["barrier_s"] / 1e3)
        found[Component.BARRIER] = (each_s, 2 * each_s)
"""


def test_a_component_of_every_block_is_in_the_order_of_operations(tmp_path: Path) -> None:
    """The named files are enough: it lengthens the exact step and the simulated one, and bounds stay below the optimum."""
    tree = Tree.copy(tmp_path)
    layout = ("--layout", "tp=2,pp=4,zero=1")
    before = json.loads(tree.run("evaluate", *QUESTION, *layout, "--json").stdout)["estimate"]
    record = RECORD.format(ablation="ablation=Ablation.HOST, ")
    tree.insert(COMPONENTS, "    STEP = ComponentRecord(", record.replace("Place.OUTSIDE", "Place.PIPELINE"))
    tree.insert(COST_MODEL, "        return found\n", PER_BLOCK)
    tree.append("optimizer/cost/constants.yaml", CONSTANT)
    assert tree.touched() == set(files_named(row("a step-time component")))
    after = json.loads(tree.run("evaluate", *QUESTION, *layout, "--json").stdout)["estimate"]
    # 32 micro-batches through the 8 blocks of a rank, and the three other ranks once.
    assert after["step_time_s"] - before["step_time_s"] == pytest.approx(0.75e-3 * (32 + 3) * 8, rel=0.1)
    assert after["breakdown_s"]["bubble"] > 0
    tree.run("solve", *QUESTION, "--fix", "pp=4", "-q", "-o", "plan.json")
    tree.run("verify", "plan.json")
    simulated = json.loads(tree.run("simulate", "plan.json", "--json").stdout)
    assert simulated["analytic_step_s"] == pytest.approx(simulated["simulated_step_s"], rel=1e-6)
    # its record promises a place where its seconds are not
    text = tree.path(COMPONENTS).read_text(encoding="utf-8")
    here, there = (f'hue="plum", group=Group.HOST, place=Place.{place}' for place in ("PIPELINE", "OUTSIDE"))
    tree.write(COMPONENTS, text.replace(here, there))
    told = tree.run("evaluate", *QUESTION, *layout, check=70).stderr
    assert "component barrier: its record says outside" in told


def _every_command(tree: Tree) -> None:
    """Solve with tables, page and picture, verify, explain, simulate, compare with measured runs."""
    drawn = ("--report", "page.html", "--plot", "step.svg", "--top", "5")
    answer = tree.run("solve", *QUESTION, *drawn, "-v", "-q", "-o", "plan.json").stdout
    assert "waiting at the barrier" in answer
    for name in ("page.html", "step.svg"):
        assert "waiting at the barrier" in (tree.folder / name).read_text(encoding="utf-8")
    tree.run("verify", "plan.json")
    tree.run("explain", *QUESTION, *LAYOUT)
    simulated = json.loads(tree.run("simulate", "plan.json", "--json").stdout)
    assert simulated["analytic_step_s"] == pytest.approx(simulated["simulated_step_s"], rel=0.05)
    tree.run("validate", str(tree.path("optimizer/evidence/reference_runs.csv")), "--worst", "1")
    tree.run("topology", "show", "h100x16")


def test_a_forgotten_part_is_a_type_error(tmp_path: Path) -> None:
    """A record that does not say what an ablation leaves out stops the type checker, and nothing else does."""
    tree = Tree.copy(tmp_path)
    tree.insert(COMPONENTS, "    STEP = ComponentRecord(", RECORD.format(ablation=""))
    told = tree.mypy(COMPONENTS)
    assert 'Missing named argument "ablation" for "ComponentRecord"' in told and "Found 1 error" in told
