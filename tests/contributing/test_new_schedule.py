"""A pipeline schedule, added to the letter of CONTRIBUTING.md in a copy of the package."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from checks.contributor import Tree, files_named, row

if TYPE_CHECKING:
    from pathlib import Path

VOCABULARY, MODELS = "optimizer/specs/vocabulary.py", "optimizer/cost/schedules.py"
FLOWS, BUBBLES = "optimizer/cost/flows.py", "optimizer/cost/bubbles.py"
MEMBER = '    PLAIN = "plain"\n'
RECORD = """\
_PLAIN = ScheduleModel(
    schedule=Schedule.PLAIN,
    in_flight=flows.hold_plain,
    bubble=bubbles.plain,
    hops=flows.one_f_one_b_hops,
    waiting_hops=flows.one_f_one_b_waiting,
    hops_overlap=False,
    source="made up: 1F1B under another name",
)


"""
HELD = """\
def hold_plain(pipelines: Pipelines, ranks: IntArray) -> FloatArray:
    return hold_one_f_one_b(pipelines, ranks)


"""
BUBBLE = """\
def plain(pipelines: Pipelines) -> list[Chain]:
    return one_f_one_b(pipelines)


"""
MODEL, CASE = (
    f"        case Schedule.PLAIN:\n            return {name}\n" for name in ("_PLAIN", "_one_f_one_b")
)
LAST_CASE = "        case _:\n            assert_never(schedule)"
QUESTION = ("llama3-8b", "h100x16", "--batch", "64", "--framework", "any")


def orders_file() -> str:
    """Return the file that the page names for the order of operations."""
    return next(name for name in files_named(row("a pipeline schedule")) if name.endswith("orders.py"))


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Tree:
    """Return a copy with the schedule, which is 1F1B under another name."""
    tree = Tree.copy(tmp_path_factory.mktemp("schedule"))
    tree.insert(VOCABULARY, '    GPIPE = "gpipe"', MEMBER)
    tree.insert(FLOWS, "def no_hops", HELD)
    tree.insert(BUBBLES, "def interleaved", BUBBLE)
    tree.insert(MODELS, "def _model", RECORD)
    tree.insert(MODELS, LAST_CASE, MODEL)
    tree.insert(orders_file(), LAST_CASE, CASE)
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
    assert new["estimate"]["memory"] == old["estimate"]["memory"]
    for name, seconds in old["estimate"]["breakdown_s"].items():
        assert new["estimate"]["breakdown_s"][name] == pytest.approx(seconds, rel=1e-9, abs=1e-12), name


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


def test_a_forgotten_order_or_record_is_a_type_error(tmp_path: Path) -> None:
    """A schedule without an order or a record stops the type checker at the places where they belong."""
    tree = Tree.copy(tmp_path)
    tree.insert(VOCABULARY, '    GPIPE = "gpipe"', MEMBER)
    told = tree.mypy(orders_file(), MODELS)
    assert (
        f"{orders_file()}:" in told
        and f"{MODELS}:" in told
        and told.count('"assert_never" has incompatible') == 2
    )
