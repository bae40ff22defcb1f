"""Components of a step time: one record each, and every room reads it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from itertools import product
from pathlib import Path

from checks.ablation import TERMS

from layoutopt.optimizer.cost.components import TRAFFIC, Ablation, Component, Group, in_group
from layoutopt.optimizer.evidence.ties import separating_measurement
from layoutopt.optimizer.report.html.palette import AXES, DARK, LIGHT

KEYS = (
    "forward", "backward", "recompute", "offload", "host", "tp", "cp", "ep", "fsdp", "pp", "bubble", "dp", "optimizer",
    "step",
)  # fmt: skip
"""Keys of ``breakdown_s`` in JSON, which do not change; new ones may come."""


def test_keys_are_frozen() -> None:
    """Every key that users read is there, in order, and a component is its key as text and in JSON."""
    assert [part.key for part in Component if part.key in KEYS] == list(KEYS)
    assert json.loads(json.dumps({part: 1.0 for part in Component})) == {part.key: 1.0 for part in Component}


def test_groups_cover_the_step() -> None:
    """Each component is settled by one measurement, each group holds one at least."""
    assert sorted(part for group in Group for part in in_group(group)) == sorted(Component)
    assert all(in_group(group) for group in Group)


def test_traffic_is_what_crosses_the_network() -> None:
    """Each belongs to the axis whose group it is of; what GPU and host do themselves is none of it."""
    axes = {part.key: part.record.axis for part in TRAFFIC}
    assert axes == {"tp": "tp", "cp": "cp", "ep": "ep", "fsdp": "dp", "pp": "pp", "dp": "dp"}


def test_ablations_come_from_the_records() -> None:
    """A component with an ablation is left out by exactly one term; no ablation is empty."""
    for part in Component:
        terms = [term.name for term in TERMS if part in term.parts]
        assert terms == ([part.record.ablation.value] if part.record.ablation is not None else [])
    assert all(ablation.components for ablation in Ablation)


def test_colours_exist_in_both_themes() -> None:
    """Pages draw every component, and every axis that causes traffic."""
    for part, theme in product(Component, (LIGHT, DARK)):
        assert part.record.hue in theme
    assert {part.record.axis for part in TRAFFIC} <= set(AXES)


FORGOTTEN = """
from layoutopt.optimizer.cost.components import ComponentRecord, Group, Place

ComponentRecord(key="new", words="a new one", hue="blue", group=Group.DATA, place=Place.OUTSIDE, axis=None, loss=False)
"""


def mypy(path: Path) -> str:
    """Return what mypy --strict says about a file."""
    root = Path(__file__).parents[2]
    words = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--no-incremental",
        "--follow-imports=silent",
        str(path),
    ]
    done = subprocess.run(
        words,
        capture_output=True,
        text=True,
        check=False,
        env={"MYPYPATH": str(root / "src"), "PATH": ""},
        cwd=root,
    )
    return done.stdout


def test_what_is_forgotten_is_a_type_error(tmp_path: Path) -> None:
    """A record without its ablation, and a group for which no measurement is named."""
    record, ties = tmp_path / "record.py", tmp_path / "ties.py"
    record.write_text(FORGOTTEN)
    assert 'Missing named argument "ablation"' in mypy(record)
    source = Path(sys.modules[separating_measurement.__module__].__file__ or "").read_text()
    less, removed = re.subn(r"        case Group\.HOST:\n.*\n", "", source)
    assert removed == 1
    ties.write_text(less)
    assert "assert_never" in mypy(ties)
