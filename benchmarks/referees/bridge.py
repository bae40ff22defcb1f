"""Megatron-Bridge: do the recipes, options and keys that we write exist in its sources, release by release?

Its configurations need the packages of a GPU machine to be built, so they are read, not run.
"""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

from checks.bridge import keys_of, launches

from benchmarks.referees.environments import tree_of

if TYPE_CHECKING:
    from collections.abc import Iterable

RELEASES = {"0.3": "0.16", "0.4": "0.17", "0.5": "0.18", "0.6": "0.19"}
"""Tags, and the megatron-core whose classes each takes most fields from (pyproject.toml of the tag)."""
RECORDED = Path(__file__).parents[2] / "tests" / "data" / "referees" / "bridge_keys.json"


def fields_of(sources: Iterable[Path]) -> set[str]:
    """Annotated fields of every class."""
    found = set()
    for path in sources:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                found |= {
                    item.target.id
                    for item in node.body
                    if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
                }
    return found


def known(bridge: Path, core: Path, keys: Iterable[str]) -> set[str]:
    """Which of the keys a release has: options of its parser, functions of its recipes, fields of its classes."""
    package = bridge / "src" / "megatron" / "bridge"
    parsers = "".join(path.read_text() for path in (bridge / "scripts" / "training").glob("*.py"))
    recipes = "".join(path.read_text() for path in (package / "recipes").rglob("*.py"))
    parts = [package / "training", package / "models"]
    fields = fields_of([p for part in parts for p in part.rglob("*.py")])
    fields |= fields_of(
        [*(core / "megatron" / "core").rglob("*config*.py"), *(core / "megatron" / "training").rglob("*.py")]
    )
    return {
        key
        for key in keys
        if (key.startswith("recipe ") and re.search(rf"(def|as) {key.removeprefix('recipe ')}\b", recipes))
        or (key.startswith("-") and re.search(rf"[\"']{key}[\"']", parsers))
        or ("recipe " not in key and not key.startswith("-") and key.rsplit(".", 1)[-1] in fields)
    }


def referee(bridge: Path, megatron: Path, folder: Path, number: int, seed: int, *, record: bool) -> int:
    """Print what each release lacks; return how many launches hold a word that their release does not know."""
    wrong, rows = 0, {}
    before = json.loads(RECORDED.read_text())
    for release, core in RELEASES.items():
        asked = [(launch, keys_of(launch)) for launch in launches(release, number, seed)]
        every = set().union(*(keys for _, keys in asked))
        trees = (
            tree_of(bridge, f"v{release}.0", "src/megatron/bridge scripts/training", folder),
            tree_of(megatron, f"core_v{core}.0", "megatron", folder),
        )
        have = known(*trees, every)
        faulty = [keys - have for _, keys in asked if keys - have]
        wrong += len(faulty)
        rows[release] = sorted(have | set(before.get(release, ())))
        lacking = ", ".join(sorted(every - have)) or "nothing"
        print(
            f"megatron-bridge {release}: {len(asked) - len(faulty)} of {len(asked)} launches known; lacking: {lacking}"
        )
    if record:
        RECORDED.write_text(json.dumps(rows, indent=1) + "\n")
    return wrong
