"""The software release of a measured run: its own column, or what its publication ran."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from layoutopt.optimizer.evidence.run import MeasuredRun


def release_of(run: MeasuredRun) -> str | None:
    """Return the release that the row states or that its source is known to have run, else None."""
    if run.software is not None:
        return run.software
    return next((release for phrase, release in _releases() if phrase in (run.source or "")), None)


@cache
def _releases() -> tuple[tuple[str, str], ...]:
    import yaml

    text = (
        resources.files("layoutopt.optimizer.evidence").joinpath("releases.yaml").read_text(encoding="utf-8")
    )
    return tuple((entry["phrase"], entry["software"]) for entry in yaml.safe_load(text))
