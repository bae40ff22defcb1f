"""A pipeline schedule, added to the letter of CONTRIBUTING.md in a copy of the package."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from checks.contributor import Tree, files_named, row

if TYPE_CHECKING:
    from pathlib import Path

VOCABULARY, MODELS = "optimizer/specs/vocabulary.py", "optimizer/cost/schedules.py"
MEMBER = '    PLAIN = "plain"\n'
RECORD = """\
    ScheduleModel(
        schedule=Schedule.PLAIN,
        in_flight=flows.hold_one_f_one_b,
        bubble=bubbles.one_f_one_b,
        hops=flows.one_f_one_b_hops,
        waiting_hops=flows.one_f_one_b_waiting,
        hops_overlap=False,
        source="made up: 1F1B under another name",
    ),
"""
CASE = """\
        case Schedule.PLAIN:
            return _one_f_one_b
"""
QUESTION = ("llama3-8b", "h100x16", "--batch", "64", "--framework", "any")


def orders_file() -> str:
    """Return the file that the page names for the order of operations."""
    return next(name for name in files_named(row("a pipeline schedule")) if name.endswith("orders.py"))


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Tree:
    """Return a copy with the schedule, which is 1F1B under another name."""
    tree = Tree.copy(tmp_path_factory.mktemp("schedule"))
    tree.insert(VOCABULARY, '    GPIPE = "gpipe"', MEMBER)
    tree.insert(MODELS, ")\nSCHEDULES: ", RECORD)
    tree.insert(orders_file(), "        case _:\n            assert_never(schedule)", CASE)
    return tree


def priced(tree: Tree, schedule: str) -> dict[str, Any]:
    """Return the price of one layout under a schedule."""
    layout = f"tp=2,pp=4,zero=1,schedule={schedule}"
    found: dict[str, Any] = json.loads(tree.run("evaluate", *QUESTION, "--layout", layout, "--json").stdout)
    return found


def test_the_named_files_are_all(tree: Tree) -> None:
    """No other file is touched, and the type checker is content."""
    names = files_named(row("a pipeline schedule"))
    assert tree.touched() == set(names)
    assert "Success" in tree.mypy(*names)


def test_the_new_schedule_is_priced_like_its_twin(tree: Tree) -> None:
    """What runs in the same order takes the same time and memory."""
    new, old = priced(tree, "plain"), priced(tree, "1f1b")
    assert new["layout"]["schedule"] == "plain"
    assert new["estimate"] == old["estimate"]


def test_every_command_knows_it(tree: Tree) -> None:
    """It is searched, proven, verified, explained, simulated, and refused in words by trainers that lack it."""
    fixed = ("--fix", "schedule=plain", "--fix", "pp=2")
    tree.run("solve", *QUESTION, *fixed, "-q", "-o", "plan.json")
    assert json.loads((tree.folder / "plan.json").read_text())["layout"]["schedule"] == "plain"
    tree.run("verify", "plan.json")
    tree.run("explain", *QUESTION, "--layout", "tp=2,pp=2,zero=1,schedule=plain", "--no-compare")
    simulated = json.loads(tree.run("simulate", "plan.json", "--json").stdout)
    assert simulated["schedule"] == "plain"
    assert "plain" in tree.run("schema", "layout").stdout
    refused = tree.run("export", "plan.json", "--to", "megatron-lm", check=2).stderr
    assert "schedule" in refused


def test_a_forgotten_order_is_a_type_error(tmp_path: Path) -> None:
    """A schedule without an order stops the type checker at the place where it belongs."""
    tree = Tree.copy(tmp_path)
    tree.insert(VOCABULARY, '    GPIPE = "gpipe"', MEMBER)
    assert "assert_never" in tree.mypy(orders_file())
