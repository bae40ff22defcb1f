"""layoutopt: the fastest parallel layout for a model on a GPU cluster, with a proof.

Everything a script needs is here: ``load_model``, ``load_cluster``, ``load_job``, ``solve``, ``evaluate``, ``explain``.
Names are imported when they are used, so that ``import layoutopt`` costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from layoutopt.optimizer.specs.version import VERSION

if TYPE_CHECKING:
    from layoutopt.optimizer.report.answers import Diagnosed, Evaluation, Reasons, Result
    from layoutopt.optimizer.report.api import (
        diagnose,
        evaluate,
        explain,
        load_cluster,
        load_job,
        load_model,
        solve,
        utilization,
    )
    from layoutopt.optimizer.solve.plan import SolveOptions
    from layoutopt.optimizer.space.options import SpaceOptions
    from layoutopt.optimizer.specs.errors import InputError

__version__ = VERSION

_API = "layoutopt.optimizer.report.api"
_HOMES = {
    **dict.fromkeys(
        (
            "diagnose",
            "evaluate",
            "explain",
            "load_cluster",
            "load_job",
            "load_model",
            "solve",
            "utilization",
        ),
        _API,
    ),
    **dict.fromkeys(("Diagnosed", "Evaluation", "Reasons", "Result"), "layoutopt.optimizer.report.answers"),
    "SolveOptions": "layoutopt.optimizer.solve.plan",
    "SpaceOptions": "layoutopt.optimizer.space.options",
    "InputError": "layoutopt.optimizer.specs.errors",
}

__all__ = [
    "Diagnosed",
    "Evaluation",
    "InputError",
    "Reasons",
    "Result",
    "SolveOptions",
    "SpaceOptions",
    "__version__",
    "diagnose",
    "evaluate",
    "explain",
    "load_cluster",
    "load_job",
    "load_model",
    "solve",
    "utilization",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names without importing them."""
    return sorted(__all__)
