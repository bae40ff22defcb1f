"""Compare all that a plan states with the same plan rebuilt: every figure is right, wrong, or was not checked."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from layoutopt.optimizer.solve.certificate import Versions
from layoutopt.optimizer.solve.verify.plain_reader import short
from layoutopt.optimizer.solve.verify.report import Check
from layoutopt.optimizer.specs.printable import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    Tree = Mapping[str, object]

TOLERANCE = 1e-9
"""Relative agreement demanded of figures: other processors and versions of numpy add up and raise to powers otherwise."""

TINY = 1e-12
"""Seconds, bytes or shares that count as nothing: what is left where a figure is the difference of others."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A statement that is not what was rebuilt; ``path`` is its dotted key."""

    path: str
    stated: str
    rebuilt: str

    def __str__(self) -> str:
        if not self.stated:
            return f"{self.path} is missing: {self.rebuilt}"
        return f"{self.path} states {self.stated}, rebuilt {self.rebuilt}"


def differences(stated: object, rebuilt: object, path: str = "") -> Iterator[Difference]:
    """Yield what is stated otherwise than rebuilt, or missing. Keys that were not rebuilt are passed over."""
    if isinstance(rebuilt, dict) and isinstance(stated, dict):
        for key, value in rebuilt.items():
            below = f"{path}.{key}" if path else str(key)
            if key in stated:
                yield from differences(stated[key], value, below)
            else:
                yield Difference(below, "", short(value))
    elif isinstance(rebuilt, list) and isinstance(stated, list):
        if len(stated) != len(rebuilt):
            yield Difference(path, f"{len(stated)} entries", f"{len(rebuilt)}")
        for index, (one, other) in enumerate(zip(stated, rebuilt, strict=False)):
            yield from differences(one, other, f"{path}[{index}]")
    elif not same_value(stated, rebuilt):
        yield Difference(path, short(stated), short(rebuilt))


def same_value(stated: object, rebuilt: object) -> bool:
    """Whether two values of parsed JSON are the same; whole numbers exactly, fractions within ``TOLERANCE``."""
    # Before numbers: True equals 1 to Python.
    if isinstance(rebuilt, bool) or isinstance(stated, bool):
        return stated is rebuilt
    if isinstance(rebuilt, int):  # a fraction counts nothing, however near it is
        return isinstance(stated, int) and stated == rebuilt
    if isinstance(rebuilt, float) and isinstance(stated, int | float):
        return close(stated, rebuilt)
    return isinstance(stated, str) is isinstance(rebuilt, str) and stated == rebuilt


def close(left: float, right: float) -> bool:
    """Whether two numbers agree within ``TOLERANCE``; never for NaN, infinity or what is too large for a float."""
    try:
        largest = float(max(abs(left), abs(right)))
    except OverflowError:
        return False
    return math.isfinite(largest) and abs(left - right) <= max(TOLERANCE * largest, TINY)


def not_rebuilt(stated: object, rebuilt: object, path: str = "") -> Iterator[tuple[str, object]]:
    """Yield the dotted keys and the values of what is stated and was not rebuilt."""
    if isinstance(stated, dict) and isinstance(rebuilt, dict):
        for key, value in stated.items():
            below = f"{path}.{key}" if path else str(key)
            if key in rebuilt:
                yield from not_rebuilt(value, rebuilt[key], below)
            else:
                yield below, value
    elif isinstance(stated, list) and isinstance(rebuilt, list):
        for index, (one, other) in enumerate(zip(stated, rebuilt, strict=False)):
            yield from not_rebuilt(one, other, f"{path}[{index}]")


def merged(tree: Tree, more: Tree) -> dict[str, object]:
    """Return nested objects with the values of others added."""
    result = dict(tree)
    for key, value in more.items():
        below = result.get(key)
        result[key] = merged(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return result


def told(found: Iterable[object], most: int = 3) -> str:
    """Write the first differences on one line; empty if there is none."""
    listed = list(found)
    more = [f"and {len(listed) - most} more"] if len(listed) > most else []
    return "; ".join([*map(str, listed[:most]), *more])


_NAMES = {
    "certificate.inputs_sha256": "inputs",
    "inputs": "inputs",
    "certificate.versions.cost_model": "cost model",
    "certificate.versions": "versions",
    "certificate.record_sha256": "record",
    "certificate.degree_tuples": "tuple table",
    "certificate.table_sha256": "tuple table",
    "certificate.solver_status": "claim",
    "certificate.bound_s": "claim",
    "certificate.gap": "claim",
    "certificate.rounding_s": "claim",
    "certificate": "counts",
    "objective.step_time_s": "step time",
    "estimate.step_time_s": "step time",
    "objective": "claim",
    "status": "claim",
    "layout": "layout",
    "verdict": "memory",
    "estimate.memory": "memory",
    "estimate.breakdown_s": "breakdown",
    "estimate": "throughput",
    "alternatives": "alternatives",
    "error_band": "how sure",
    "choice": "how sure",
    "robust": "how sure",
    "": "remarks",
}
"""Checks by the beginning of the keys that they compare; the first that fits names the check."""


def compare_statements(stated: Tree, rebuilt: Tree, wrong: Tree, right: Mapping[str, str]) -> list[Check]:
    """Compare a plan with what was rebuilt, one check for each group of keys.

    ``wrong`` adds to a check what else is wrong (nothing: empty), ``right`` gives the reason of one that passes.
    """
    found: dict[str, list[object]] = {name: [] for name in _NAMES.values()}
    for name, text in wrong.items():
        found[name] += [text] if text else []
    for difference in differences(stated, rebuilt):
        found[_name(difference.path)].append(difference)
    figures: Counter[str] = Counter(_name(path) for path in _leaves(rebuilt))
    return [
        Check(
            name=name,
            passed=not differing,
            reason=told(differing) or right.get(name, f"{figures[name]} statements as rebuilt"),
        )
        for name, differing in found.items()
        if differing or figures[name]
    ]


def _name(path: str) -> str:
    return next(name for key, name in _NAMES.items() if path.startswith(key))


def _leaves(tree: object, path: str = "") -> Iterator[str]:
    """Yield the dotted key of every value."""
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from _leaves(value, f"{path}.{key}" if path else str(key))
    elif isinstance(tree, list) and tree:
        for index, value in enumerate(tree):
            yield from _leaves(value, f"{path}[{index}]")
    else:
        yield path


_UNKNOWN = "no statement of a plan"
_REASONS = {
    "solve_time_s": "the time of another run",
    **dict.fromkeys(
        (f"certificate.versions.{field.name}" for field in fields(Versions)),
        "not what runs here; prices agree all the same",
    ),
    **dict.fromkeys(
        (
            *("certificate.removed_by_memory", "certificate.removed_by_bound", "certificate.solved"),
            *("comfortable", "open_ties", "objective.then"),
        ),
        "the course of a search that was stopped, ran on several threads or elsewhere",
    ),
    "infeasibility": "the time was up before it was all known",
    "reasons": "the time was up before they were all known",
    **dict.fromkeys(
        ("certificate.declared_tuples", "certificate.tuples", "certificate.joint_assignments"),
        "too many tuples to count again",
    ),
}
"""Why a statement was not checked, by its key; what stands in no table was never one of a plan."""


def not_checked(stated: Tree, rebuilt: Tree) -> tuple[str, ...]:
    """Name what is stated and was not rebuilt, each on one line with its value and the reason."""
    return tuple(
        printable(f"{path} {_rounded(value)}: {_why(path)}") for path, value in not_rebuilt(stated, rebuilt)
    )


def _why(path: str) -> str:
    """Return why a key was not checked, that of the statement that it is part of."""
    own = (why for key, why in _REASONS.items() if path == key or path.startswith((f"{key}.", f"{key}[")))
    return next(own, _UNKNOWN)


def _rounded(value: object) -> str:
    """Write a value that nothing is compared with: three digits of a fraction say enough."""
    return f"{value:.3g}" if isinstance(value, float) else short(value)
