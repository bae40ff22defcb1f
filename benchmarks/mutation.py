"""How many small faults the tests notice: one operator, number or condition is changed at a time, and tests follow.

``python benchmarks/mutation.py --sample 200`` changes copies of the core rooms, never the checkout. First the tests of
each folder run once, and which lines each one runs is kept (``--lines FILE`` keeps it for more runs). Of each mutant
those run that passed and run the changed line, tests that name its module first, then the fastest, until ``BUDGET_S``
of what they took is spent; a mutant under which all of them pass has survived. Rooms have equal shares of the sample,
which follows from the seed; ``--part 2/8`` tries every eighth of it, ``--found FILE`` keeps what was found and goes on
from there, ``--minutes`` ends a run early. Survivors go to ``benchmarks/mutation_survivors.txt``: what nobody would
notice; a reason that is written behind one stays. Mutants that compute the same are no faults: who has read one writes
``the same`` and why behind it, and ``--recount`` brings the first line up to date, which states both shares.
"""

from __future__ import annotations

import argparse
import ast
import compileall
import importlib
import json
import math
import multiprocessing
import os
import random
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    from _typeshed import TraceFunction

ROOT = Path(__file__).parents[1]
ROOMS = ("solve", "cost", "space", "plan", "interop")
TESTS = (*ROOMS, "diagnose")
"""Folders of tests that may notice: ``diagnose`` reads logs and profiles, whose readers are in interop."""

SURVIVORS = ROOT / "benchmarks" / "mutation_survivors.txt"
SLOWER = 5.0
"""A mutant that makes the tests take so many times the CPU time that they took is noticed."""

START_S = 20.0
"""CPU time that the start of pytest may take beside the tests."""

TIMEOUT_S = 900.0
"""A mutant under which the tests sleep so long is noticed; busy machines make them wait, so it is generous."""

MOST_BYTES = 8 << 30
"""Memory that the tests of one mutant may take: a size that a mutant made absurd must not starve the machine."""

LIBRARIES = (
    "click", "hypothesis", "networkx", "numpy", "ortools.sat.python.cp_model", "pydantic", "scipy.optimize", "yaml",
)  # fmt: skip
"""What the tests import from elsewhere and takes long."""

CALLS = 20
"""Calls of one function whose lines are followed in one test; more would take longer and rarely run other lines."""

BUDGET_S = 30.0
"""What the tests of one mutant may take, as they took without it; the first test runs whatever it takes."""

SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.And: ast.Or, ast.Or: ast.And, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change: the file below the root, its first and last line, what was changed, and the changed source."""

    file: Path
    line: int
    last_line: int
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
    around = node.test if isinstance(node, ast.If | ast.IfExp) else node
    _change(node, field, position)
    what = f"{before} -> {ast.unparse(node)}"[:120]
    line, last_line = getattr(around, "lineno", 0), getattr(around, "end_lineno", 0)
    return Mutant(file, line, last_line, what, ast.unparse(tree))


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
    """A plugin of pytest that notes which lines of the core rooms each passing test runs, and how long it takes."""

    files: dict[str, str] = field(default_factory=dict)
    calls: Counter[tuple[str, int]] = field(default_factory=Counter)
    lines: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    failed: set[str] = field(default_factory=set)
    tests: dict[str, dict[str, Any]] = field(default_factory=dict)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Run a test under a tracer; fixtures belong to the test that needs them first."""
        self.calls.clear()
        self.lines.clear()
        start = time.process_time()
        sys.settrace(self._called)
        try:
            return (yield)
        finally:
            sys.settrace(None)
            if item.nodeid not in self.failed:
                lines = {name: f"{bits:x}" for name, bits in self.lines.items()}
                self.tests[item.nodeid] = {"s": time.process_time() - start, "lines": lines}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A test that fails without a mutant says nothing about one."""
        if not report.passed:
            self.failed.add(report.nodeid)

    def _called(self, frame: FrameType, event: str, arg: object) -> TraceFunction | None:
        code = frame.f_code
        name = self.files.get(code.co_filename)
        if name is None:
            name = code.co_filename.rpartition("optimizer/")[2]
            name = name if name.partition("/")[0] in ROOMS else ""
            self.files[code.co_filename] = name
        self.calls[name, code.co_firstlineno] += 1
        return self._stepped if name and self.calls[name, code.co_firstlineno] <= CALLS else None

    def _stepped(self, frame: FrameType, event: str, arg: object) -> TraceFunction:
        self.lines[self.files[frame.f_code.co_filename]] |= 1 << frame.f_lineno
        return self._stepped


def preload() -> None:
    """Import what the tests import from elsewhere, so that the process of each mutant need not."""
    for name in LIBRARIES:
        importlib.import_module(name)


def record(folder: str, file: Path) -> None:
    """Run a folder's tests and add what each one runs to a file."""
    known = json.loads(file.read_text("utf-8")) if file.exists() else {}
    command = [sys.executable, str(Path(__file__)), "--record", folder, "--lines", str(file)]
    if not any(test.startswith(f"tests/{folder}/") for test in known):
        subprocess.run(command, cwd=ROOT, check=True)


def run_recorded(folder: str, file: Path) -> None:
    """Do what ``record`` asks for, in this process."""
    preload()
    recorder = Recorder()
    pytest.main(["-q", "-p", "no:cacheprovider", f"tests/{folder}"], plugins=[recorder])
    known = json.loads(file.read_text("utf-8")) if file.exists() else {}
    file.write_text(json.dumps(known | recorder.tests), encoding="utf-8")


def tests_of(mutant: Mutant, known: dict[str, dict[str, Any]]) -> list[str]:
    """Return the tests to run: they run the changed line, or any of the module where it is in no function.

    What fixtures and caches of a file run was noted for the test that came first, so that its other tests follow.
    """
    own = str(mutant.file.relative_to(ROOT / "optimizer"))
    inside = _function_line(mutant.file, mutant.line) is not None
    lines = sum(1 << line for line in range(mutant.line, mutant.last_line + 1)) if inside else -1
    direct = {test for test, one in known.items() if int(one["lines"].get(own, "0"), 16) & lines}
    module = ".".join(mutant.file.relative_to(ROOT).with_suffix("").parts)
    texts = {name: (ROOT / name).read_text("utf-8") for name in {test.partition("::")[0] for test in direct}}
    shared = {name for name, text in texts.items() if "scope=" in text or "cache" in text}
    found = [test for test in known if test in direct or test.partition("::")[0] in shared]

    def order(test: str) -> tuple[bool, bool, float]:
        """Tests that name the module first, then those that run the line, then the fastest."""
        return module not in texts[test.partition("::")[0]], test not in direct, known[test]["s"]

    spent, chosen = 0.0, list[str]()
    for test in sorted(found, key=order):
        spent += known[test]["s"]
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


def survives(mutant: Mutant, copy: Path, tests: list[str], limit_s: float) -> bool:
    """Run the tests against a copy that holds the mutant; True where all of them pass."""
    if not tests:
        return True
    place = copy / mutant.file.relative_to(ROOT)
    original, before = place.read_text("utf-8"), place.stat()
    place.write_text(mutant.source, encoding="utf-8")
    # A fork has what was loaded before: pytest and libraries, which take longer to import than most tests to run.
    context = multiprocessing.get_context("fork")
    child = context.Process(target=_run, args=(copy, tests, int(limit_s)))
    try:
        child.start()
        child.join(TIMEOUT_S)
        if child.is_alive():
            child.kill()
        child.join()
    finally:
        place.write_text(original, encoding="utf-8")
        # As old as what was compiled of it, which is valid again.
        os.utime(place, ns=(before.st_atime_ns, before.st_mtime_ns))
    return child.exitcode == 0


def compiled_copy(folder: Path) -> Path:
    """Copy the checkout and compile it with its tests: most of what a mutant takes would be compiling them again."""
    copy = folder / "copy"
    ignored = shutil.ignore_patterns(".git", ".venv", "__pycache__", ".*_cache", ".hypothesis")
    shutil.copytree(ROOT, copy, symlinks=True, ignore=ignored)
    paths = os.pathsep.join((str(copy / "src"), str(copy / "tests")))
    compileall.compile_dir(copy / "optimizer", quiet=1)
    collect = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "no:cacheprovider"]
    subprocess.run(
        [*collect, *(f"tests/{name}" for name in TESTS)],
        cwd=copy, env=os.environ | {"PYTHONPATH": paths}, stdout=subprocess.DEVNULL, check=False,
    )  # fmt: skip
    return copy


def _run(copy: Path, tests: list[str], limit_s: int) -> None:
    """Run tests of a copy in this process, and end it with pytest's status."""
    resource.setrlimit(resource.RLIMIT_CPU, (limit_s, limit_s))
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_BYTES, MOST_BYTES))
    silent = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(silent, stream)
    os.chdir(copy)
    paths = [str(copy / "src"), str(copy / "tests")]
    sys.path[:0] = paths
    sys.dont_write_bytecode = True
    os.environ |= {"PYTHONPATH": os.pathsep.join(paths), "PYTHONDONTWRITEBYTECODE": "1"}
    os._exit(int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", *tests])))


def drawn(sample: int, seed: int, rooms: list[str]) -> list[Mutant]:
    """Draw the sample: rooms in turn, in each a file at random, then one place of it."""
    files = {room: sorted((ROOT / "optimizer" / room).rglob("*.py")) for room in rooms}
    chance, chosen = random.Random(seed), list[Mutant]()
    while len(chosen) < sample:
        file = chance.choice(files[rooms[len(chosen) % len(rooms)]])
        # Making every mutant of a file to choose one of them would take longer than the tests.
        places = sum(1 for _ in _places(ast.parse(file.read_text("utf-8"))))
        if places:
            chosen.append(mutant_at(file, chance.randrange(places)))
    return chosen


def try_all(
    chosen: list[Mutant], recorded: dict[str, dict[str, Any]], found: Path | None, minutes: float
) -> dict[str, bool]:
    """Try every mutant that ``found`` does not know, as far as the time goes; return which of them survived."""
    end = time.monotonic() + 60 * minutes
    known: dict[str, bool] = json.loads(found.read_text("utf-8")) if found and found.exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        copy = compiled_copy(Path(folder))
        for number, mutant in enumerate(chosen, 1):
            if mutant.name in known:
                continue
            if time.monotonic() > end:
                break
            tests = tests_of(mutant, recorded)
            limit_s = START_S + SLOWER * sum(recorded[test]["s"] for test in tests)
            known[mutant.name] = survives(mutant, copy, tests, limit_s)
            if found:
                found.write_text(json.dumps(known, indent=1), encoding="utf-8")
            word = "SURVIVES" if known[mutant.name] else "noticed"
            print(f"{number}/{len(chosen)} {word} {len(tests)} tests {mutant.name}", flush=True)
    return known


REASON = "  # "
"""Between a survivor and why nobody has to notice it: such a mutant computes the same, or ends at another limit."""


SAME = "the same"
"""How a reason begins that tells of a mutant that computes the same: no test could notice it, and none has to."""

HEAD = re.compile(r"# \d+ of (\d+) mutants survive [^;]*; (.*)")


def headline(survivors: list[str], tried: int, what: str) -> str:
    """State which share of the mutants survives, and which of those that compute something else."""
    same = sum(f"{REASON}{SAME}" in line for line in survivors)
    left, real = len(survivors) - same, tried - same
    shares = f"({len(survivors) / max(tried, 1):.0%}), {same} of them compute the same"
    without = f"{left} of the other {real} ({left / max(real, 1):.0%})"
    return f"# {len(survivors)} of {tried} mutants survive {shares}: {without}; {what}"


def recounted(text: str) -> str:
    """Return the list of survivors with a first line that follows from the reasons behind them."""
    first, *rest = text.splitlines()
    found = HEAD.fullmatch(first)
    if found is None:
        raise SystemExit(f"{SURVIVORS.name}: the first line does not say how many of how many survive")
    survivors = [line for line in rest if not line.startswith("#")]
    return "\n".join([headline(survivors, int(found[1]), found[2]), *rest]) + "\n"


def _with_reasons(survivors: list[str]) -> list[str]:
    """Return the survivors in order, each with the reason that the committed list gives."""
    given = SURVIVORS.read_text("utf-8").splitlines() if SURVIVORS.exists() else []
    reasons = {line.partition(REASON)[0]: line for line in given}
    return [reasons.get(name, name) for name in sorted(survivors)]


def main() -> int:
    """Draw a sample, try every mutant, print the share that survives, write the survivors."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sample", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rooms", nargs="*", default=list(ROOMS), help="rooms to change")
    parser.add_argument("--tests", nargs="*", default=list(TESTS), help="folders of tests that may notice")
    parser.add_argument("--lines", type=Path, help="file that keeps which test runs which lines")
    parser.add_argument("--found", type=Path, help="file that keeps which mutants survived")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no mutant after this time")
    parser.add_argument("--part", default="1/1", metavar="I/N", help="try every Nth mutant, from the Ith on")
    parser.add_argument(
        "--recount", action="store_true", help="only count the reasons in the list of survivors anew"
    )
    parser.add_argument("--record", metavar="FOLDER", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.record:
        run_recorded(given.record, given.lines)
        return 0
    if given.recount:
        SURVIVORS.write_text(recounted(SURVIVORS.read_text("utf-8")), encoding="utf-8")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        lines = given.lines or Path(folder) / "lines.json"
        for tests in given.tests:
            record(tests, lines)
        known = json.loads(lines.read_text("utf-8"))
    preload()
    first, every = map(int, given.part.split("/"))
    chosen = drawn(given.sample, given.seed, given.rooms)
    tried = try_all(chosen[first - 1 :: every], known, given.found, given.minutes)
    left = [mutant.name for mutant in chosen if mutant.name not in tried]
    if left:
        print(f"{len(left)} of {len(chosen)} mutants are left for other parts")
        return 0
    survivors = [mutant.name for mutant in chosen if tried[mutant.name]]
    listed = _with_reasons(survivors)
    head = headline(listed, len(chosen), f"seed {given.seed}, rooms {' '.join(given.rooms)}")
    SURVIVORS.write_text("\n".join([head, *listed]) + "\n", encoding="utf-8")
    print(head)
    return 0


if __name__ == "__main__":
    sys.exit(main())
