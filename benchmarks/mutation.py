"""How many small faults the tests notice: one operator, number or condition is changed at a time, and the nearest tests run.

``python benchmarks/mutation.py --sample 200`` changes copies of the core rooms, never the checkout. Of each mutant the tests
that name its module run, then those of its room; a mutant under which all of them pass has survived. The sample follows from
the seed; the survivors go to ``benchmarks/mutation_survivors.txt``, which says what nobody would notice.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[1]
ROOMS = ("solve", "cost", "space", "plan", "interop")
SURVIVORS = ROOT / "benchmarks" / "mutation_survivors.txt"
TIMEOUT_S = 300.0
"""A mutant that makes the tests run so much longer than they do is noticed."""

NAMED_FILES = 4
"""Test files that name a module, the shortest first; more would only take longer."""

SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.And: ast.Or, ast.Or: ast.And, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change: the file below the root, the line, what was changed, and the changed source."""

    file: Path
    line: int
    change: str
    source: str

    @property
    def name(self) -> str:
        """One line for lists; sources move, so the line is only a hint."""
        return f"{self.file.relative_to(ROOT)}:{self.line}: {self.change}"


def mutants(file: Path) -> Iterator[Mutant]:
    """Yield every mutant of a file, one change each."""
    text = file.read_text("utf-8")
    for index in range(sum(1 for _ in _places(ast.parse(text)))):
        tree = ast.parse(text)
        node, field, position = list(_places(tree))[index]
        before = ast.unparse(node)
        _change(node, field, position)
        yield Mutant(
            file, getattr(node, "lineno", 0), f"{before} -> {ast.unparse(node)}"[:120], ast.unparse(tree)
        )


def _places(tree: ast.AST) -> Iterator[tuple[ast.AST, str, int]]:
    """Yield what can be changed: operators, whole numbers outside docstrings and annotations, conditions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.BinOp | ast.BoolOp) and type(node.op) in SWAPS:
            yield node, "op", 0
        elif isinstance(node, ast.Compare):
            yield from ((node, "ops", place) for place, op in enumerate(node.ops) if type(op) in SWAPS)
        elif isinstance(node, ast.Constant) and type(node.value) is int:
            yield node, "value", 0
        elif isinstance(node, ast.If | ast.IfExp) and "TYPE_CHECKING" not in ast.unparse(node.test):
            yield node, "test", 0


def _change(node: ast.AST, field: str, position: int) -> None:
    if isinstance(node, ast.BinOp | ast.BoolOp):
        node.op = SWAPS[type(node.op)]()  # type: ignore[assignment]
    elif isinstance(node, ast.Compare):
        node.ops[position] = SWAPS[type(node.ops[position])]()  # type: ignore[call-overload]
    elif isinstance(node, ast.Constant):
        node.value = int(node.value) + 1  # type: ignore[arg-type]
    elif isinstance(node, ast.If | ast.IfExp):
        node.test = ast.UnaryOp(op=ast.Not(), operand=node.test)


def nearest_tests(file: Path) -> list[list[str]]:
    """Return test files to run: first those that name the module, then those of its room."""
    module = ".".join(file.relative_to(ROOT).with_suffix("").parts)
    room = file.relative_to(ROOT / "optimizer").parts[0]
    long = {
        line.split("::")[0].split("#")[0].strip()
        for line in (ROOT / "tests/long.txt").read_text("utf-8").splitlines()
    }
    tests = [
        path
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        if str(path.relative_to(ROOT)) not in long
    ]
    naming = sorted(
        (path for path in tests if f"{module} " in path.read_text("utf-8")),
        key=lambda path: path.stat().st_size,
    )
    rest = [path for path in tests if path.parent == ROOT / "tests" / room]
    first = [str(path.relative_to(ROOT)) for path in naming[:NAMED_FILES]]
    return (
        [first, [str(path.relative_to(ROOT)) for path in rest]]
        if first
        else [[str(p.relative_to(ROOT)) for p in rest]]
    )


def survives(mutant: Mutant, copy: Path) -> bool:
    """Run the tests against a copy that holds the mutant; True where all of them pass."""
    place = copy / mutant.file.relative_to(ROOT)
    original = place.read_text("utf-8")
    place.write_text(mutant.source, encoding="utf-8")
    paths = os.pathsep.join([str(copy / "src"), str(copy / "tests")])
    environment = os.environ | {"PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        for files in nearest_tests(mutant.file):
            command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *files]
            done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, timeout=TIMEOUT_S)
            if done.returncode:
                return False
    except subprocess.TimeoutExpired:
        return False
    finally:
        place.write_text(original, encoding="utf-8")
    return True


def main() -> int:
    """Draw a sample, try every mutant, print the share that survives, write the survivors."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sample", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rooms", nargs="*", default=ROOMS, help="rooms to change")
    given = parser.parse_args()
    files = [path for room in given.rooms for path in sorted((ROOT / "optimizer" / room).rglob("*.py"))]
    drawn = random.Random(given.seed)
    chosen = [
        drawn.choice(found) for file in drawn.choices(files, k=given.sample) if (found := list(mutants(file)))
    ]
    survivors: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "copy"
        ignored = shutil.ignore_patterns(".git", ".venv", "__pycache__", ".*_cache", ".hypothesis")
        shutil.copytree(ROOT, copy, symlinks=True, ignore=ignored)
        for number, mutant in enumerate(chosen, 1):
            alive = survives(mutant, copy)
            survivors += [mutant.name] if alive else []
            print(f"{number}/{len(chosen)} {'SURVIVES' if alive else 'noticed'} {mutant.name}", flush=True)
    share = len(survivors) / max(len(chosen), 1)
    what = f"seed {given.seed}, rooms {' '.join(given.rooms)}"
    head = f"# {len(survivors)} of {len(chosen)} mutants survive ({share:.0%}); {what}"
    SURVIVORS.write_text("\n".join([head, *sorted(survivors)]) + "\n", encoding="utf-8")
    print(head)
    return 0


if __name__ == "__main__":
    sys.exit(main())
