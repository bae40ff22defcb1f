"""One name, one class."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "optimizer"


def test_a_class_name_means_one_thing() -> None:
    """No two modules define a public class of the same name."""
    places = defaultdict(list)
    for path in PACKAGE.rglob("*.py"):
        for name in re.findall(r"^class ([A-Z]\w*)", path.read_text(encoding="utf-8"), re.MULTILINE):
            places[name].append(str(path.relative_to(PACKAGE)))
    assert len(places) > 100
    assert {name: found for name, found in places.items() if len(found) > 1} == {}
