"""What a solve claims: the size of its space, how each tuple was excluded, what was proven, and from what."""

from __future__ import annotations

import hashlib
import json
import platform
from dataclasses import asdict, dataclass, field, fields, replace
from enum import StrEnum
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import numpy as np

from layoutopt.optimizer.specs.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Mapping

    from layoutopt.optimizer.cost.batch import Codebook, LayoutBatch
    from layoutopt.optimizer.cost.terms import IntArray
    from layoutopt.optimizer.solve.search.space_size import CountedSpace, SpaceSize
    from layoutopt.optimizer.solve.verify.plain_reader import PlainReader


class Status(StrEnum):
    """What a plan claims: proven best, proven as near the best as was asked, best so far, or that nothing fits."""

    OPTIMAL = "optimal"
    WITHIN_GAP = "within_gap"
    STOPPED = "stopped"
    INFEASIBLE = "infeasible"


SAME = 1e-10
"""Relative difference of two prices of one layout: sums of floats in another order agree to about 1e-12."""


def proven_status(step_time_s: float, bound_s: float, *, rounding_s: float, gap_target: float) -> Status:
    """Return what a step time and a proven bound under every step time amount to.

    Optimal leaves no gap but the solver's rounding, ``rounding_s``; ``gap_target`` is relative to the step time.
    """
    open_s = step_time_s - bound_s
    if open_s <= rounding_s + SAME * step_time_s:
        return Status.OPTIMAL
    # The same slack as above: a gap of exactly the target is not lost to the last bit.
    within = open_s <= (gap_target + SAME) * step_time_s
    return Status.WITHIN_GAP if within else Status.STOPPED


def solver_word(status: Status, *, answered: bool) -> str:
    """Return the solver's word for an outcome; ``answered`` tells whether there is a layout."""
    proven = {Status.OPTIMAL: "OPTIMAL", Status.INFEASIBLE: "INFEASIBLE"}
    return proven.get(status, "FEASIBLE" if answered else "UNKNOWN")


@dataclass(frozen=True, slots=True, kw_only=True)
class Versions:
    """Versions of what computed, and on what.

    ``machine`` names the processor family and its widest vector instructions, by which last bits may differ;
    ``cost_model`` is a digest of all code and constants that decide an answer.
    """

    layoutopt: str
    python: str
    numpy: str
    ortools: str
    machine: str
    cost_model: str

    @classmethod
    def current(cls, cost_model: str) -> Versions:
        """Return the versions of this process, without importing the solver."""
        return cls(
            layoutopt=VERSION,
            python=platform.python_version(),
            numpy=np.__version__,
            ortools=version("ortools"),
            machine=_machine(),
            cost_model=cost_model,
        )


def _machine() -> str:
    config: Any = np.show_config(mode="dicts")
    # numpy adds in the order of its widest vectors: two machines may differ in the last bits.
    vectors = config.get("SIMD Extensions", {}).get("found", [])
    return " ".join([platform.machine(), *vectors[-1:]])


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """The record that makes an answer checkable.

    Every tuple (layout without stages) of the space was excluded by memory, excluded by its bound, or
    solved: the three numbers sum to ``tuples``. After a stop ``removed_by_bound`` holds what was not examined, too:
    nothing more is claimed of it than ``bound_s``. ``removed_by_rule`` and ``removed_by_equivalence`` count the
    other declared tuples. ``joint_assignments`` is the least number of layouts with stages.
    ``table_sha256`` is ``table_digest``, ``inputs_sha256`` is ``inputs_digest``. ``bound_s`` is a proven
    floor under every step time, ``gap`` how far the answer is above it, relative to the answer (or None).
    ``gap_target`` is the relative gap at which the search was allowed to stop, ``rounding_s`` how much the
    solver's whole numbers may have rounded the step time down. ``record_sha256`` is the digest of all other fields:
    what is changed in passing no longer agrees with it.
    """

    declared_tuples: int
    degree_tuples: int
    tuples: int
    joint_assignments: int
    removed_by_rule: dict[str, int] = field(default_factory=dict)
    removed_by_equivalence: int
    removed_by_memory: int
    removed_by_bound: int
    solved: int
    table_sha256: str
    inputs_sha256: str
    solver_status: str
    bound_s: float | None
    gap: float | None
    gap_target: float
    rounding_s: float
    versions: Versions
    record_sha256: str = ""

    def sealed(self) -> Certificate:
        """Return the record with the digest of its other fields."""
        return replace(self, record_sha256=self.digest())

    def digest(self) -> str:
        """Return the sha256 of all fields but the digest itself."""
        return record_digest(asdict(self))

    def to_plain(self) -> dict[str, object]:
        """Return plain data for JSON."""
        return asdict(self)

    @classmethod
    def read(cls, reader: PlainReader) -> Certificate:
        """Read from ``reader``, which notes the problems."""
        return cls(
            declared_tuples=reader.integer("declared_tuples"),
            degree_tuples=reader.integer("degree_tuples"),
            tuples=reader.integer("tuples"),
            joint_assignments=reader.integer("joint_assignments"),
            removed_by_rule=reader.integers("removed_by_rule"),
            removed_by_equivalence=reader.integer("removed_by_equivalence"),
            removed_by_memory=reader.integer("removed_by_memory"),
            removed_by_bound=reader.integer("removed_by_bound"),
            solved=reader.integer("solved"),
            table_sha256=reader.text("table_sha256"),
            inputs_sha256=reader.text("inputs_sha256"),
            solver_status=reader.text("solver_status"),
            bound_s=reader.optional_number("bound_s"),
            gap=reader.optional_number("gap"),
            gap_target=reader.number("gap_target"),
            rounding_s=reader.number("rounding_s"),
            versions=Versions(**{f.name: reader.text(f"versions.{f.name}") for f in fields(Versions)}),
            record_sha256=reader.text("record_sha256"),
        )


def build_certificate(
    space: CountedSpace,
    size: SpaceSize,
    *,
    inputs: Mapping[str, object],
    cost_model: str,
    solver_status: str,
    step_time_s: float | None,
    bound_s: float | None,
    removed_by_memory: int,
    solved: int,
    removed_by_rule: Mapping[str, int] | None = None,
    removed_by_equivalence: int = 0,
    gap_target: float = 0.0,
    rounding_s: float = 0.0,
) -> Certificate:
    """Record a finished or stopped solve.

    ``removed_by_memory`` and ``solved`` count tuples; the others were excluded by their bound. Raises
    ``ValueError`` when they exceed the tuples of the space.
    """
    # Counted as the rest, so that the three always sum up: no tuple is lost.
    removed_by_bound = size.tuples - removed_by_memory - solved
    if removed_by_bound < 0:
        raise ValueError(f"{removed_by_memory} + {solved} tuples excluded or solved of {size.tuples}")
    removed = dict(removed_by_rule or {})
    return Certificate(
        declared_tuples=size.tuples + sum(removed.values()) + removed_by_equivalence,
        degree_tuples=size.degree_rows,
        tuples=size.tuples,
        joint_assignments=size.joint_assignments,
        removed_by_rule=removed,
        removed_by_equivalence=removed_by_equivalence,
        removed_by_memory=removed_by_memory,
        removed_by_bound=removed_by_bound,
        solved=solved,
        table_sha256=table_digest(space),
        inputs_sha256=inputs_digest(inputs),
        solver_status=solver_status,
        bound_s=bound_s,
        gap=relative_gap(step_time_s, bound_s),
        gap_target=gap_target,
        rounding_s=rounding_s,
        versions=Versions.current(cost_model),
    ).sealed()


def relative_gap(step_time_s: float | None, bound_s: float | None) -> float | None:
    """Return (step - bound) / step, never negative, or None when either is unknown."""
    if step_time_s is None or bound_s is None:
        return None
    return max(0.0, (step_time_s - bound_s) / step_time_s)


def record_digest(record: Mapping[str, object]) -> str:
    """Return the sha256 of a written certificate without its own digest."""
    return inputs_digest({name: value for name, value in record.items() if name != "record_sha256"})


def inputs_digest(inputs: Mapping[str, object]) -> str:
    """Return the sha256 of plain data as JSON with sorted keys: the order of keys doesn't matter."""
    return hashlib.sha256(_json(inputs)).hexdigest()


def _json(plain: object) -> bytes:
    return json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


def table_digest(space: CountedSpace, *, chunk: int = 65536) -> str:
    """Return the sha256 over the sorted table of degree rows, what its codes mean, blocks and stage rule.

    The order of enumeration doesn't matter. ``chunk`` rows are read at a time, so that memory stays flat.
    """
    rows = space.degrees
    # Codes mean nothing without their book: equal tables of other orders must not agree.
    digest = hashlib.sha256(_json(_header(space)))
    order = _sorted_order(rows)
    for start in range(0, len(rows), chunk):
        # Little-endian 64 bits, so that all machines hash the same bytes.
        table = rows.take(order[start : start + chunk]).table()
        digest.update(np.ascontiguousarray(table, dtype="<i8").tobytes())
    return digest.hexdigest()


def _header(space: CountedSpace) -> dict[str, object]:
    book: Codebook = space.degrees.codebook
    return {
        "rows": len(space.degrees),
        "blocks": np.asarray(space.counts).tolist(),
        "rule": [space.rule.split, space.rule.recomputation],
        "recomputes": [[entry.granularity, list(entry.modules)] for entry in book.recomputes],
        "orders": list(book.orders),
        "schedules": list(book.schedules),
        "precisions": list(book.precisions),
        **({"savers": [list(entry) for entry in book.savers]} if any(book.savers) else {}),
        **({"switches": [entry.stated() for entry in book.switches]} if any(book.switches) else {}),
    }


def _sorted_order(rows: LayoutBatch) -> IntArray:
    """Sort rows by all columns, packing columns into as few integer keys as their ranges allow."""
    keys: list[IntArray] = [np.zeros(len(rows), dtype=np.int64)]
    room = float(2**62)
    for f in fields(rows):
        column = getattr(rows, f.name)
        if f.name == "codebook" or not len(rows):
            continue
        least = int(column.min())
        span = int(column.max()) - least + 1
        if span > room:
            keys.append(np.zeros(len(rows), dtype=np.int64))
            room = float(2**62)
        keys[-1] = keys[-1] * span + (column - least)
        room /= span
    return np.lexsort(keys[::-1])
