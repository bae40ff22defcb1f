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


def test_answers_are_stored() -> None:
    """Every code cell is stored with what it answers, once, so that the notebook can be read without running it."""
    plain = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    for number, cell in enumerate(cell for cell in plain["cells"] if cell["cell_type"] == "code"):
        assert len(cell["outputs"]) == 1, cell["source"]
        assert cell["execution_count"] == number + 1
        assert all("Error" not in str(output) for output in cell["outputs"])
    assert plain["metadata"]["language_info"]["name"] == "python"
    assert len({cell["id"] for cell in plain["cells"]}) == len(plain["cells"])
