"""What holds for all tests: hypothesis sets no time limits; tests that take minutes (``long.txt``) wait for ``--long``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    import pytest

settings.register_profile(
    "suite",
    deadline=None,  # examples share the machine with other tests: their time says nothing
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("suite")

LONG = Path(__file__).parent / "long.txt"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that runs everything."""
    parser.addoption("--long", action="store_true", help="run the tests of tests/long.txt too")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what ``tests/long.txt`` names: files, or tests by the start of their name."""
    if config.getoption("--long"):
        return
    lines = LONG.read_text(encoding="utf-8").splitlines()
    named = tuple(line.split("#")[0].strip() for line in lines if line.split("#")[0].strip())
    left_out = [item for item in items if named and item.nodeid.startswith(named)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
