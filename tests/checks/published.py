"""Published runs, reports and file formats that tests and benchmarks judge by (``tests/data/README.md``)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from layoutopt.optimizer.evidence.table import parse_runs

if TYPE_CHECKING:
    from collections.abc import Iterable

    from layoutopt.optimizer.evidence.run import MeasuredRun

DATA = Path(__file__).parents[1] / "data"
EVIDENCE, FORMATS = DATA / "evidence", DATA / "formats"
CASES = EVIDENCE / "cases.yaml"
TABLES = tuple(
    EVIDENCE / f"runs_{name}.csv" for name in ("a100", "h100", "h100_finetune", "ultrascale", "vtrain")
)
"""The tables that constants were fitted to: accuracy goals and the fidelity baseline are about these alone."""
NEWER = EVIDENCE / "runs_more.csv"
"""Runs of 2024 to 2026, collected after the fit."""


def read_runs(tables: Iterable[Path] = TABLES) -> list[MeasuredRun]:
    """Return the rows of some tables but for those that train adapters: nothing is fitted to these (``adapter_runs``)."""
    return [run for run in _rows(tables) if run.method != ADAPTERS]


SHOWN_ONLY = re.compile(r"^aws-q30.*-(uccl|nvshmem)$")
"""Arms that are bound by their host's library: shown, not counted (the evidence notes' rule)."""


def newer_runs() -> list[MeasuredRun]:
    """Return the rows of the newer table that accuracy is about."""
    return [run for run in read_runs([NEWER]) if not SHOWN_ONLY.match(run.id)]


def adapter_runs() -> list[MeasuredRun]:
    """Return the rows of all tables that train adapters."""
    return [run for run in _rows((*TABLES, NEWER)) if run.method == ADAPTERS]


ADAPTERS = "lora"


def _rows(tables: Iterable[Path]) -> list[MeasuredRun]:
    return [run for path in tables for run in parse_runs(path.read_bytes(), path.name)]
