"""Saved activations: what real blocks of the trainers keep for their backward pass, against what we say a layer keeps."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from checks.saved import LIMITS, blocks, kept_bytes

if TYPE_CHECKING:
    from checks.saved import Block

INSIDE = Path(__file__).parent / "inside" / "saved_tensors.py"
RECORDED = Path(__file__).parents[2] / "tests" / "data" / "referees" / "saved_tensors.json"
ENVIRONMENTS = {"transformers": "accelerate", "torchtitan": "torchtitan"}
"""Whose environment each source of blocks runs in."""


def found(source: str, python: Path, tree: Path | None, asked: list[Block]) -> list[dict[str, Any]]:
    """What the blocks of a source keep."""
    command = [str(python), str(INSIDE), source, *([str(tree)] if tree else [])]
    lines = "\n".join(map(json.dumps, asked))
    quiet = {**os.environ, "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"}
    done = subprocess.run(command, input=lines, capture_output=True, text=True, env=quiet)
    findings = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"error"')]
    if len(findings) != len(asked):
        raise RuntimeError((done.stderr.strip().splitlines() or ["no word"])[-1])
    return findings


def referee(pythons: dict[str, tuple[Path, Path | None]], *, record: bool) -> int:
    """Print what each block keeps; return how many keep other than we say by more than their mode's limit."""
    rows: list[dict[str, Any]] = []
    for source, (python, tree) in pythons.items():
        asked = [block for block in blocks() if block["source"] == source]
        for block, finding in zip(asked, found(source, python, tree, asked), strict=True):
            if finding["error"]:
                raise RuntimeError(f"{source} {block['kind']}: {finding['error']}")
            rows.append({"block": block, "bytes": sum(size for *_, size in finding["kept"])})
    wrong = 0
    for row in rows:
        block, ours = row["block"], kept_bytes(row["block"])
        apart = ours / row["bytes"] - 1
        wrong += abs(apart) > LIMITS[block["mode"]]
        words = f"{block['source']:13}{block['mode']:10}{block['kind']:9}"
        print(
            f"{words} theirs {row['bytes'] / block['tokens']:9.0f} bytes a token, ours {apart:+.2%}",
            flush=True,
        )
    if record:
        RECORDED.write_text("[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n")
    return wrong
