"""The list of importers names what there is: nothing misspelt, nothing forgotten."""

from __future__ import annotations

import pkgutil
from importlib import import_module
from inspect import getmembers, isfunction, signature

import pytest

from layoutopt.optimizer import interop
from layoutopt.optimizer.interop.sources import _IMPORTERS, KINDS, FileKind, _importer

PACKAGE = interop.__name__


def listed() -> set[tuple[str, str]]:
    """Return module and function of every kind."""
    return {_importer(kind) for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_its_importer(kind: str) -> None:
    """The module can be imported and has the function, which takes a text and its file's name."""
    module, name = _importer(kind)
    function = getattr(import_module(f"{PACKAGE}.{module}"), name)
    assert list(signature(function).parameters)[:2] == ["text", "file"]


def test_every_importer_has_its_kind() -> None:
    """Every public ``import_...`` of a module of the room is reached by a kind; every kind of file has one."""
    assert set(_IMPORTERS) == set(FileKind)
    found = set()
    for info in pkgutil.walk_packages(interop.__path__, PACKAGE + "."):
        module = import_module(info.name)
        short = info.name.removeprefix(PACKAGE + ".")
        found |= {
            (short, name)
            for name, function in getmembers(module, isfunction)
            if name.startswith("import_") and function.__module__ == info.name and short != "sources"
        }
    assert found == listed()
