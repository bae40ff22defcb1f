"""The cells of docs/quickstart.ipynb run from top to bottom."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import layoutopt

if TYPE_CHECKING:
    import pytest

NOTEBOOK = Path(__file__).parents[2] / "docs" / "quickstart.ipynb"


def cells() -> list[str]:
    """Return the source of every code cell."""
    plain = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    return ["".join(cell["source"]) for cell in plain["cells"] if cell["cell_type"] == "code"]


def test_cells_run_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    """Every cell runs and all but imports answer something; the result shows itself as HTML."""
    shared: dict[str, Any] = {}
    for source in cells():
        exec(compile(source, NOTEBOOK.name, "exec"), shared)
        last = ast.parse(source).body[-1]
        if isinstance(last, ast.Expr) and isinstance(last.value, ast.Name):
            shown = shared[last.value.id]
            assert isinstance(shown, layoutopt.Result)
            assert shown._repr_html_().startswith("<pre")
        else:
            assert capsys.readouterr().out.strip(), source


def test_notebook_is_clean() -> None:
    """No outputs or counters are stored, and the language is named, so that diffs show what changed."""
    plain = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    for cell in plain["cells"]:
        assert not cell.get("outputs") and cell.get("execution_count") is None
    assert plain["metadata"]["language_info"]["name"] == "python"
    assert len({cell["id"] for cell in plain["cells"]}) == len(plain["cells"])
