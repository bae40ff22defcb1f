"""CONTRIBUTING.md names files that are there, and all constants of a GPU generation; ``tests/contributing`` follows it."""

from __future__ import annotations

import re
from pathlib import Path

from checks.contributor import ROOT, constants_named, row

from layoutopt.optimizer.specs.gpu_catalog import generations

BY_DEFAULT_NONE = ("nvlink_mesh", "network_start_s")
"""Constants of generations that have none by default."""


def test_files_that_are_named_exist() -> None:
    """Every path of the page but those of things that a contributor brings."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    named = {word for word in re.findall(r"`([^`\s]+/[^`\s]*)`", text) if "NAME" not in word}
    assert len(named) > 20
    places = (ROOT, ROOT / "optimizer")
    assert {word for word in named if not any((place / word).exists() for place in places)} == set()


def test_constants_of_a_generation_are_named() -> None:
    """The row names every constant that is kept by generation, with the file of those without a default."""
    line = row("a GPU of a new generation")
    named = {(name.partition(".")[0], Path(file).name) for name, file in constants_named(line).items()}
    named |= {(name, "links.yaml") for name in BY_DEFAULT_NONE if f"`{name}`" in line}
    kept = set()
    for file in ("cost/constants.yaml", "topology/links.yaml"):
        text = (ROOT / "optimizer" / file).read_text(encoding="utf-8")
        stated = re.findall(r"^(\w+)\.([\w-]+):", text, re.MULTILINE)
        kept |= {(family, Path(file).name) for family, owner in stated if owner in generations()}
    assert named == kept
