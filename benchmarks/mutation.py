"""How many small faults the tests notice: one operator, number or condition is changed at a time, and tests follow.

``python benchmarks/mutation.py --sample 200`` changes copies of the core rooms, never the checkout. First the tests of
each room run once, and what functions each one calls is kept (``--calls FILE`` keeps it for more runs). Of each mutant
those run that call the changed function, tests that name its module first, then the fastest, until ``BUDGET_S`` of what
they took is spent; a mutant under which all of them pass has survived. The sample follows from the seed; ``--part 2/8``
tries every eighth of it, and adds its findings to ``--found FILE``. Survivors go to
``benchmarks/mutation_survivors.txt``: what nobody would notice.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

ROOT = Path(__file__).parents[1]
ROOMS = ("solve", "cost", "space", "plan", "interop")
SURVIVORS = ROOT / "benchmarks" / "mutation_survivors.txt"
TIMEOUT_S = 300.0
"""A mutant that makes the tests run so much longer than they do is noticed."""

BUDGET_S = 30.0
"""What the tests of one mutant may take, as they took without it; the first test runs whatever it takes."""

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


def mutant_at(file: Path, index: int) -> Mutant:
    """Change one of a file's places and nothing else."""
    tree = ast.parse(file.read_text("utf-8"))
    node, field, position = list(_places(tree))[index]
    before = ast.unparse(node)
    _change(node, field, position)
    what = f"{before} -> {ast.unparse(node)}"[:120]
    return Mutant(file, getattr(node, "lineno", 0), what, ast.unparse(tree))


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


@dataclass(slots=True)
class Recorder:
    """A plugin of pytest that notes which functions of the core rooms each test calls, and how long it takes."""

    here: set[tuple[str, int]] = field(default_factory=set)
    tests: dict[str, dict[str, Any]] = field(default_factory=dict)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Run a test under a tracer of calls; fixtures belong to the test that needs them first."""
        self.here, start = set(), time.process_time()
        sys.settrace(self._called)
        try:
            return (yield)
        finally:
            sys.settrace(None)
            calls = sorted(f"{name}:{line}" for name, line in self.here)
            self.tests[item.nodeid] = {"s": time.process_time() - start, "calls": calls}

    def _called(self, frame: FrameType, event: str, arg: object) -> None:
        code = frame.f_code
        found = code.co_filename.rpartition("optimizer/")[2]
        if found.partition("/")[0] in ROOMS:
            self.here.add((found, code.co_firstlineno))


def record(room: str, file: Path) -> None:
    """Run a room's tests and add what each one calls to a file."""
    known = json.loads(file.read_text("utf-8")) if file.exists() else {}
    command = [sys.executable, str(Path(__file__)), "--record", room, "--calls", str(file)]
    if not any(test.startswith(f"tests/{room}/") for test in known):
        subprocess.run(command, cwd=ROOT, check=True)


def run_recorded(room: str, file: Path) -> None:
    """Do what ``record`` asks for, in this process."""
    recorder = Recorder()
    pytest.main(["-q", "-p", "no:cacheprovider", f"tests/{room}"], plugins=[recorder])
    known = json.loads(file.read_text("utf-8")) if file.exists() else {}
    file.write_text(json.dumps(known | recorder.tests), encoding="utf-8")


def tests_of(mutant: Mutant, calls: dict[str, dict[str, Any]]) -> list[str]:
    """Return the tests to run: they call the changed function, or any of the module where it is in none."""
    own = str(mutant.file.relative_to(ROOT / "optimizer"))
    line = _function_line(mutant.file, mutant.line)
    wanted = f"{own}:" if line is None else f"{own}:{line}"
    found = [
        test
        for test, known in calls.items()
        if any(call.startswith(wanted) if line is None else call == wanted for call in known["calls"])
    ]
    module = ".".join(mutant.file.relative_to(ROOT).with_suffix("").parts)
    naming = {
        name
        for name in {test.partition("::")[0] for test in found}
        if module in (ROOT / name).read_text("utf-8")
    }
    found.sort(key=lambda test: (test.partition("::")[0] not in naming, calls[test]["s"]))
    spent, chosen = 0.0, list[str]()
    for test in found:
        spent += calls[test]["s"]
        if spent <= BUDGET_S or not chosen:
            chosen.append(test)
    return chosen


def _function_line(file: Path, line: int) -> int | None:
    """Return the first line, decorators included, of the innermost function around a line; None in a module's own code."""
    around = [
        min([node.lineno, *(one.lineno for one in node.decorator_list)])
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(node, ast.FunctionDef) and node.body[0].lineno <= line <= (node.end_lineno or 0)
    ]
    return max(around, default=None)


def survives(mutant: Mutant, copy: Path, tests: list[str]) -> bool:
    """Run the tests against a copy that holds the mutant; True where all of them pass."""
    if not tests:
        return True
    place = copy / mutant.file.relative_to(ROOT)
    original = place.read_text("utf-8")
    place.write_text(mutant.source, encoding="utf-8")
    paths = os.pathsep.join([str(copy / "src"), str(copy / "tests")])
    environment = os.environ | {"PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    try:
        done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return False
    finally:
        place.write_text(original, encoding="utf-8")
    return not done.returncode


def drawn(sample: int, seed: int, rooms: list[str]) -> list[Mutant]:
    """Draw the sample: files at random, then one place of each."""
    files = [path for room in rooms for path in sorted((ROOT / "optimizer" / room).rglob("*.py"))]
    chance, chosen = random.Random(seed), []
    for file in chance.choices(files, k=sample):
        # Making every mutant of a file to choose one of them would take longer than the tests.
        places = sum(1 for _ in _places(ast.parse(file.read_text("utf-8"))))
        if places:
            chosen.append(mutant_at(file, chance.randrange(places)))
    return chosen


def try_all(chosen: list[Mutant], calls: dict[str, dict[str, Any]], found: Path | None) -> dict[str, bool]:
    """Try every mutant that ``found`` does not know; return which of them survived."""
    known: dict[str, bool] = json.loads(found.read_text("utf-8")) if found and found.exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "copy"
        ignored = shutil.ignore_patterns(".git", ".venv", "__pycache__", ".*_cache", ".hypothesis")
        shutil.copytree(ROOT, copy, symlinks=True, ignore=ignored)
        for number, mutant in enumerate(chosen, 1):
            if mutant.name in known:
                continue
            tests = tests_of(mutant, calls)
            known[mutant.name] = survives(mutant, copy, tests)
            if found:
                found.write_text(json.dumps(known, indent=1), encoding="utf-8")
            word = "SURVIVES" if known[mutant.name] else "noticed"
            print(f"{number}/{len(chosen)} {word} {len(tests)} tests {mutant.name}", flush=True)
    return known


def main() -> int:
    """Draw a sample, try every mutant, print the share that survives, write the survivors."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sample", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rooms", nargs="*", default=list(ROOMS), help="rooms to change")
    parser.add_argument("--calls", type=Path, help="file that keeps which test calls what")
    parser.add_argument("--found", type=Path, help="file that keeps which mutants survived")
    parser.add_argument("--part", default="1/1", metavar="I/N", help="try every Nth mutant, from the Ith on")
    parser.add_argument("--record", metavar="ROOM", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.record:
        run_recorded(given.record, given.calls)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        calls = given.calls or Path(folder) / "calls.json"
        for room in given.rooms:
            record(room, calls)
        known = json.loads(calls.read_text("utf-8"))
    first, every = map(int, given.part.split("/"))
    chosen = drawn(given.sample, given.seed, given.rooms)
    tried = try_all(chosen[first - 1 :: every], known, given.found)
    left = [mutant.name for mutant in chosen if mutant.name not in tried]
    if left:
        print(f"{len(left)} of {len(chosen)} mutants are left for other parts")
        return 0
    survivors = [mutant.name for mutant in chosen if tried[mutant.name]]
    share = len(survivors) / max(len(chosen), 1)
    what = f"seed {given.seed}, rooms {' '.join(given.rooms)}"
    head = f"# {len(survivors)} of {len(chosen)} mutants survive ({share:.0%}); {what}"
    SURVIVORS.write_text("\n".join([head, *sorted(survivors)]) + "\n", encoding="utf-8")
    print(head)
    return 0


if __name__ == "__main__":
    sys.exit(main())
