"""One answered point of a sweep as a flat row: what people filter by, and the plan beside it."""

from __future__ import annotations

import hashlib
import json
import zlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from layoutopt.optimizer.evidence.honesty import assess_layout
from layoutopt.optimizer.specs.errors import input_error
from layoutopt.optimizer.specs.loading import MAX_PLAN_BYTES

if TYPE_CHECKING:
    from layoutopt.optimizer.solve.inputs import Question
    from layoutopt.optimizer.solve.plan import Plan
    from layoutopt.optimizer.specs.layout import Layout

ERROR = "error"
"""Status of a point whose solve failed; the others are those of a plan."""

COLUMNS: dict[str, str] = {
    "key": "TEXT PRIMARY KEY",
    "model": "TEXT NOT NULL", "family": "TEXT NOT NULL", "cluster": "TEXT NOT NULL", "gpu": "TEXT NOT NULL",
    "gpus": "INTEGER NOT NULL", "global_batch": "INTEGER NOT NULL", "sequence_length": "INTEGER NOT NULL",
    "network_gbit_per_s": "REAL NOT NULL", "framework": "TEXT NOT NULL",
    "status": "TEXT NOT NULL", "verdict": "TEXT",
    "step_time_s": "REAL", "step_low_s": "REAL", "step_high_s": "REAL", "measured_runs": "INTEGER",
    "bound_s": "REAL", "gap": "REAL",
    "tokens_per_s_per_gpu": "REAL", "mfu_causal": "REAL", "mfu_full": "REAL",
    "peak_bytes": "REAL", "capacity_bytes": "REAL", "idle_gpus": "INTEGER",
    "tp": "INTEGER", "sp": "INTEGER", "cp": "INTEGER", "pp": "INTEGER", "vp": "INTEGER", "ep": "INTEGER",
    "etp": "INTEGER", "dp": "INTEGER", "zero": "INTEGER", "hsdp_shard": "INTEGER",
    "micro_batch": "INTEGER", "micro_batches": "INTEGER",
    "recompute": "TEXT", "schedule": "TEXT", "mesh_order": "TEXT", "precision": "TEXT",
    "message": "TEXT", "solve_time_s": "REAL", "time_limit_s": "REAL", "warm_started": "INTEGER",
    "solved_at": "TEXT",
    "chain": "TEXT NOT NULL", "tiers": "TEXT NOT NULL", "plan": "BLOB", "checksum": "TEXT NOT NULL",
}  # fmt: skip
"""Columns of the store with their SQL types, in order.

``tiers`` is JSON, ``plan`` compressed JSON with a checksum of its own, ``checksum`` that of all other columns.
``time_limit_s`` is the limit under which an answer was searched, NULL for none. Between ``step_low_s`` and ``step_high_s``
four of five such runs are expected, by so many ``measured_runs`` of its kind (0: none, NULL: not recorded).
"""

HIDDEN = ("chain", "tiers", "plan", "checksum")
"""Columns that are the store's own."""

EXPORTED = tuple(name for name in COLUMNS if name not in HIDDEN)
"""Columns that an export holds."""

_DEGREES = ("tp", "cp", "pp", "vp", "ep", "etp", "dp", "zero", "hsdp_shard", "micro_batch", "micro_batches")

Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What solving one point gave: columns of the answer, and the compressed plan (None after an error).

    ``lost``: the worker died over it, so that there is no answer to keep.
    """

    key: str
    columns: dict[str, Any]
    plan: bytes | None = None
    lost: bool = False

    @property
    def failed(self) -> bool:
        """Whether the solve ended in an error."""
        return bool(self.columns["status"] == ERROR)


def failed_outcome(key: str, message: str) -> Outcome:
    """Return the outcome of a solve that raised."""
    return Outcome(key=key, columns={"status": ERROR, "message": message})


def lost_outcome(key: str, message: str) -> Outcome:
    """Return the outcome of a solve whose process died: nothing is known of the point."""
    return replace(failed_outcome(key, message), lost=True)


def checksum(values: Row) -> str:
    """Return a checksum of a row's cells, as SQLite gives them back."""
    # In the type of the column: what is written as 1 comes back from a REAL column as 1.0, which is another text.
    types = {"REAL": float, "INTEGER": int, "TEXT": str}
    cells = [
        None if values.get(name) is None else types[kind.split()[0]](values[name])
        for name, kind in COLUMNS.items()
        if name not in ("plan", "checksum")  # zlib keeps a checksum of the plan itself (RFC 1950)
    ]
    return hashlib.sha256(json.dumps(cells).encode()).hexdigest()[:16]


def answer_columns(plan: Plan) -> dict[str, Any]:
    """Return what a plan answers as columns."""
    columns: dict[str, Any] = {
        "status": plan.status.value,
        "verdict": plan.verdict.value if plan.verdict else None,
        "bound_s": plan.bound_s,
        "gap": plan.gap,
        "message": plan.infeasibility.message if plan.infeasibility else None,
        "solve_time_s": plan.solve_time_s,
    }
    if plan.layout is not None:
        columns |= _layout_columns(plan.layout) | {"idle_gpus": plan.idle_gpus}
    if plan.estimate is not None:
        names = ("step_time_s", "tokens_per_s_per_gpu", "mfu_causal", "mfu_full")
        columns |= {name: getattr(plan.estimate, name) for name in names}
        memory = plan.estimate.memory
        columns |= {"peak_bytes": memory.peak_bytes, "capacity_bytes": memory.capacity_bytes}
    return columns


def sure_columns(plan: Plan, question: Question) -> dict[str, Any]:
    """Return how sure an answer's step time is; nothing without a layout, and of the simple cost model."""
    if plan.layout is None or plan.estimate is None:
        return {}
    asked, options = question, question.options
    judged = assess_layout(
        plan.layout, asked.workload, asked.cluster, framework=options.framework, cost=options.cost
    )
    if judged is None:
        return {}
    low, high = judged.intervals_s(plan.estimate.step_time_s)["80"]
    return {"step_low_s": low, "step_high_s": high, "measured_runs": judged.band.rows}


def _layout_columns(layout: Layout) -> dict[str, Any]:
    recompute = layout.recompute.granularity.value
    return {name: getattr(layout, name) for name in _DEGREES} | {
        "sp": int(layout.sp),
        "recompute": "+".join(layout.recompute.modules) or recompute,
        "schedule": layout.schedule.value,
        "mesh_order": layout.mesh_order,
        "precision": layout.precision.value,
    }


def pack_plan(plain: dict[str, Any]) -> bytes:
    """Compress a plan's plain data."""
    return zlib.compress(json.dumps(plain, separators=(",", ":"), allow_nan=False).encode(), level=6)


def unpack_plan(packed: bytes, *, file: str = "") -> dict[str, Any]:
    """Undo ``pack_plan``; raises ``InputError`` naming the store when the bytes are damaged or hold more than a plan."""
    try:
        # Not ``zlib.decompress``, which knows no limit: a few stored kilobytes may unfold to gigabytes.
        unfolding = zlib.decompressobj()
        text = unfolding.decompress(packed, MAX_PLAN_BYTES)
        if unfolding.unconsumed_tail or not unfolding.eof:
            raise ValueError("longer than a plan, or cut short")
        plain = json.loads(text)
    except (zlib.error, ValueError, RecursionError) as error:
        raise input_error(f"a stored plan is damaged ({error})", "a backup of the store", file=file) from None
    assert isinstance(plain, dict)
    return plain
