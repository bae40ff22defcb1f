"""OR-Tools, loaded when it is first used: most questions are decided before, and it takes half a second."""

from __future__ import annotations

import sys
from importlib.util import LazyLoader, find_spec, module_from_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType

    from ortools.sat.python import cp_model


def _lazily(name: str) -> ModuleType:
    """Return a module whose code runs with the first look at one of its names."""
    spec = None if name in sys.modules else find_spec(name)
    if spec is None or spec.loader is None:
        return sys.modules[name]
    spec.loader = LazyLoader(spec.loader)
    module = module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


if not TYPE_CHECKING:
    cp_model = _lazily("ortools.sat.python.cp_model")

__all__ = ["cp_model"]
