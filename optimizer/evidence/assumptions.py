"""What may be assumed for cells that a source leaves empty: stated in a file, per row, never silently."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from layoutopt.optimizer.evidence.run import COLUMNS
from layoutopt.optimizer.evidence.table import read_cells
from layoutopt.optimizer.specs.errors import InputError, Problem

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from layoutopt.optimizer.evidence.run import MeasuredRun

BUILT_IN = ("reference",)
_KEYS = ("ids", "set", "why")
_MAX_BYTES = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumption:
    """Values for the empty cells of the rows whose id matches one of ``ids`` (shell patterns)."""

    ids: tuple[str, ...]
    values: Mapping[str, Any]
    why: str

    def concerns(self, run: MeasuredRun) -> bool:
        """Whether the row is one of those it was stated for."""
        return any(fnmatchcase(run.id, pattern) for pattern in self.ids)


def parse_assumptions(text: str, file: str = "") -> tuple[Assumption, ...]:
    """Read an assumptions file: a YAML list of ``{ids, set, why}`` under ``rows``.

    Raises
    ------
    InputError
        For anything else, with the entry's number and the column.
    """
    import yaml

    if len(text) > _MAX_BYTES:
        raise InputError(
            Problem(what="assumptions file too long", allowed=f"{_MAX_BYTES:,} bytes", file=file)
        )
    try:
        data = yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else None
        raise InputError(Problem(what=f"not valid YAML: {error.problem}", file=file, line=line)) from None
    except (yaml.YAMLError, ValueError, TypeError, RecursionError):
        raise InputError(Problem(what="not valid YAML", file=file)) from None
    rows = data.get("rows") if isinstance(data, dict) and set(data) == {"rows"} else None
    if not isinstance(rows, list) or not rows:
        raise InputError(Problem(what="no list of assumptions", allowed="rows: [{ids, set, why}]", file=file))
    results = [_entry(entry, f"rows[{index}]", file) for index, entry in enumerate(rows)]
    problems = [result for result in results if isinstance(result, Problem)]
    if problems:
        raise InputError(*problems)
    return tuple(result for result in results if isinstance(result, Assumption))


def _entry(entry: object, key: str, file: str) -> Assumption | Problem:
    if not isinstance(entry, dict) or set(entry) != set(_KEYS):
        return Problem(what="not an assumption", allowed="keys ids, set and why", key=key, file=file)
    ids, cells, why = (entry[name] for name in _KEYS)
    if not isinstance(ids, list) or not ids or not all(isinstance(name, str) for name in ids):
        return Problem(what="ids name no rows", allowed="a list of ids or patterns", key=key, file=file)
    if not isinstance(cells, dict) or not cells or not isinstance(why, str) or not why.strip():
        return Problem(
            what="set or why is empty", allowed="columns with values, a reason", key=key, file=file
        )
    # A row without its model, GPU or trainer is no run: such cells can't be assumed.
    unknown = [name for name in cells if name not in COLUMNS or COLUMNS[name].required]
    if unknown:
        return Problem(
            what=f"{unknown[0]!r} can't be assumed", allowed="an optional column", key=key, file=file
        )
    values, wrong = read_cells({name: _cell(value) for name, value in cells.items()}, file=file)
    if wrong:
        return replace(wrong[0], key=f"{key}.set.{wrong[0].key}")
    return Assumption(ids=tuple(ids), values=values, why=why.strip())


def _cell(value: object) -> str:
    # YAML's yes and no are the table's 1 and 0.
    return str(int(value)) if isinstance(value, bool) else str(value).strip()


@cache
def built_in(name: str) -> tuple[Assumption, ...]:
    """Return the package's own assumptions; ``reference`` is for the published reference layouts.

    Raises ``InputError`` for an unknown name.
    """
    if name not in BUILT_IN:
        raise InputError(Problem(what=f"no built-in assumptions {name!r}", allowed=", ".join(BUILT_IN)))
    text = (
        resources.files("layoutopt.optimizer.evidence").joinpath(f"{name}.yaml").read_text(encoding="utf-8")
    )
    return parse_assumptions(text, f"{name}.yaml")


def assume(run: MeasuredRun, assumptions: Sequence[Assumption]) -> tuple[MeasuredRun, tuple[str, ...]]:
    """Fill a row's empty cells; return it with the filled columns' names. Stated cells stay as they are."""
    values: dict[str, Any] = {}
    for assumption in assumptions:
        if assumption.concerns(run):
            values |= {name: value for name, value in assumption.values.items() if getattr(run, name) is None}
    return (replace(run, **values) if values else run), tuple(values)
