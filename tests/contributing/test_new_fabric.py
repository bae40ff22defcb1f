"""A network fabric, added to the letter of CONTRIBUTING.md in a copy of the package."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from checks.contributor import Tree, files_named, row

if TYPE_CHECKING:
    from pathlib import Path

VOCABULARY, FABRICS = "optimizer/specs/vocabulary.py", "optimizer/topology/fabrics.yaml"
CLUSTER = "gpu: h100\ngpus: 16\nfabric: spectrum-x\n"


def test_a_fabric_is_a_word_and_a_line_under_every_figure(tmp_path: Path) -> None:
    """What is forgotten is named in one line; the named files are touched and no other; commands know the new one."""
    tree = Tree.copy(tmp_path)
    (tree.folder / "spectrum.yaml").write_text(CLUSTER, encoding="utf-8")
    tree.insert(VOCABULARY, '    ETHERNET = "ethernet"', '    SPECTRUM = "spectrum-x"\n')
    told = tree.run("topology", "show", "h100x16", check=2).stderr
    assert told == (
        "topology/fabrics.yaml: network_fraction has no spectrum-x (value, bounds and source of every network fabric)\n"
    )
    text = tree.path(FABRICS).read_text(encoding="utf-8")
    tree.write(
        FABRICS, re.sub(r"^    roce: (.*)$", r"    roce: \1\n    spectrum-x: \1", text, flags=re.MULTILINE)
    )
    assert tree.touched() == set(files_named(row("a network fabric")))
    assert "spectrum-x" in tree.run("topology", "show", "spectrum.yaml").stdout
    tree.run("solve", "llama3-8b", "spectrum.yaml", "--batch", "64", "-q", "-o", "plan.json")
    tree.run("verify", "plan.json")
    tree.run("export", "plan.json", "--to", "megatron-lm")
    assert "spectrum-x" in tree.run("schema", "cluster").stdout
