"""Run commands in this process, with stdout and stderr apart."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from layoutopt.cli import main

if TYPE_CHECKING:
    from collections.abc import Callable

    from click.testing import Result

QUESTION = ("llama3-8b", "h100x8", "--batch", "64")
"""A question that is solved in well under a second."""


@pytest.fixture
def run() -> Callable[..., Result]:
    """Return a function that runs ``layoutopt`` with the given words."""

    def invoke(*words: str) -> Result:
        return CliRunner().invoke(main, list(words))

    return invoke


@pytest.fixture
def ask(run: Callable[..., Result]) -> Callable[..., dict[str, Any]]:
    """Return a function that runs a command with ``--json`` and parses the whole of stdout."""

    def invoke(*words: str) -> dict[str, Any]:
        plain: dict[str, Any] = json.loads(run(*words, "--json").stdout)
        return plain

    return invoke


@pytest.fixture(scope="session")
def plan_text() -> str:
    """Return the JSON of a solved plan."""
    return CliRunner().invoke(main, ["solve", *QUESTION, "--json"]).stdout
