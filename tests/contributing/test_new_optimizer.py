"""An optimizer, added to the letter of CONTRIBUTING.md in a copy of the package."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from checks.contributor import Tree, files_named, row

if TYPE_CHECKING:
    from pathlib import Path

VOCABULARY, RECORDS = "optimizer/specs/vocabulary.py", "optimizer/cost/optimizers.py"
MEMBER = '    ADAN = "adan"\n'
CASE = """\
        case Optimizer.ADAN:
            return OptimizerRecord(matrix_moments=3, other_moments=3)
"""
QUESTION = ("h100x16", "--batch", "64", "--framework", "any")


def test_an_optimizer_is_a_word_and_a_record(tmp_path: Path) -> None:
    """The named files are touched and no other; it takes three moments' memory and is refused where it is not known."""
    tree = Tree.copy(tmp_path)
    tree.insert(VOCABULARY, '    LION = "lion"', MEMBER)
    assert "assert_never" in tree.mypy(RECORDS)  # forgotten
    tree.insert(RECORDS, "        case _:\n            assert_never(kind)", CASE)
    assert tree.touched() == set(files_named(row("an optimizer")))
    assert "Success" in tree.mypy(VOCABULARY, RECORDS)
    text = tree.path("models/llama3-8b.yaml").read_text(encoding="utf-8")
    for name in ("adan", "adamw"):
        (tree.folder / f"{name}.yaml").write_text(
            text.replace("training:", f"training:\n  optimizer: {name}"), encoding="utf-8"
        )
    peaks = {}
    for name in ("adan", "adamw"):
        judged = tree.run(
            "evaluate", f"{name}.yaml", *QUESTION, "--layout", "tp=2,pp=2,zero=0", "--json", check=None
        )
        stage = json.loads(judged.stdout)["estimate"]["memory"]["stages"][0]
        peaks[name] = stage["components_bytes"]["optimizer"]
    assert peaks["adan"] > peaks["adamw"] * 1.2
    tree.run("solve", "adan.yaml", *QUESTION, "-q", "-o", "plan.json")
    tree.run("verify", "plan.json")
    tree.run("simulate", "plan.json")
    told = tree.run("export", "plan.json", "--to", "megatron-lm", check=2).stderr
    assert "megatron has no adan" in told
