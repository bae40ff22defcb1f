"""The format's page names every column and every rule it is tested for."""

from __future__ import annotations

from pathlib import Path

import pytest

from layoutopt.optimizer.evidence.run import COLUMNS

PAGE = Path(__file__).parents[2] / "docs" / "measured-runs.md"


@pytest.mark.parametrize("name", sorted(COLUMNS))
def test_every_column_is_documented(name: str) -> None:
    """The page has one table row per column with its allowed values and meaning."""
    column = COLUMNS[name]
    required = " (required)" if column.required else ""
    row = f"| `{name}`{required} | {column.allowed} | {column.meaning} |"
    assert row.replace("\\|", "|") in PAGE.read_text(encoding="utf-8").replace("\\|", "|")
