"""Importing the room costs nothing: heavy packages wait until a file needs them."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("numpy", "scipy", "networkx", "pydantic", "ortools", "yaml", "plotly", "dask")


@pytest.mark.parametrize(
    "module",
    [
        "layoutopt.optimizer.interop",
        "layoutopt.optimizer.interop.sources",
        "layoutopt.optimizer.interop.records",
    ],
)
def test_import_loads_no_heavy_package(module: str) -> None:
    """A fresh interpreter that imports the module has none of the heavy packages."""
    code = f"import sys, {module}; print([name for name in {HEAVY!r} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
