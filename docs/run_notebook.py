"""Run docs/quickstart.ipynb and store what its cells answer: ``python docs/run_notebook.py``."""

from __future__ import annotations

import ast
import json
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

NOTEBOOK = Path(__file__).with_name("quickstart.ipynb")


def lines(text: str) -> list[str]:
    """Split text as notebooks store it."""
    return text.splitlines(keepends=True)


def answers(source: str, shared: dict[str, Any]) -> list[dict[str, Any]]:
    """Run one cell and return its outputs: what it prints, and the value of its last line."""
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    printed, value = StringIO(), None
    with redirect_stdout(printed):
        exec(compile(tree, NOTEBOOK.name, "exec"), shared)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), NOTEBOOK.name, "eval"), shared)
    outputs: list[dict[str, Any]] = []
    if printed.getvalue():
        outputs.append({"output_type": "stream", "name": "stdout", "text": lines(printed.getvalue())})
    if value is not None:
        shown = {"text/html": lines(value._repr_html_()), "text/plain": lines(repr(value))}
        outputs.append(
            {"output_type": "execute_result", "execution_count": None, "metadata": {}, "data": shown}
        )
    return outputs


def main() -> None:
    """Run all cells in order and write the file."""
    plain, shared = json.loads(NOTEBOOK.read_text("utf-8")), dict[str, Any]()
    for number, cell in enumerate(cell for cell in plain["cells"] if cell["cell_type"] == "code"):
        cell["outputs"], cell["execution_count"] = answers("".join(cell["source"]), shared), number + 1
        for output in cell["outputs"]:
            output |= {"execution_count": number + 1} if "execution_count" in output else {}
    NOTEBOOK.write_text(json.dumps(plain, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
