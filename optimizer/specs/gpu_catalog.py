"""The catalog of GPUs (``gpus.yaml``): entries by name and alias, nearest names in errors."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from layoutopt.optimizer.specs.cluster import Generation, GpuSpec
from layoutopt.optimizer.specs.document import parse_document
from layoutopt.optimizer.specs.errors import input_error
from layoutopt.optimizer.specs.kinds import nearest
from layoutopt.optimizer.specs.units import shown, whole_number

if TYPE_CHECKING:
    from layoutopt.optimizer.specs.document import Document

GENERATION_FACTS = ("any_arrangement", "sized_experts", "ordered_streams", "deepep", "hybridep")
GENERATION_KEYS = ("architectures", *GENERATION_FACTS)
_MODEL = re.compile(r"(?!nvl|sxm|hbm)[a-z]{1,3}\d{2,3}[a-z]?|\d{4}")
"""A word that names a GPU."""

_REFERENCE = re.compile(r"([A-Za-z0-9][A-Za-z0-9.-]*?)([x-])(\d[\d_.]{0,29}[A-Za-z]{0,2})")


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogEntry:
    """A GPU with its other names and the RAM of its reference node in bytes."""

    gpu: GpuSpec
    aliases: tuple[str, ...]
    node_memory_bytes: float | None


@cache
def _document() -> Document:
    text = resources.files("layoutopt.optimizer.specs").joinpath("gpus.yaml").read_text("utf-8")
    return parse_document(text, "gpus.yaml")


def catalog() -> dict[str, dict[str, Any]]:
    """Return the entries as they stand in the file, by name."""
    entries: dict[str, dict[str, Any]] = _document().data["gpus"]
    return entries


@cache
def generations() -> dict[str, Generation]:
    """Return the generation of every architecture; raises ``InputError`` for an entry that leaves a fact out."""
    found: dict[str, Generation] = {}
    for name, entry in _document().data["generations"].items():
        missing = [key for key in GENERATION_KEYS if key not in entry]
        if missing:
            key = f"generations.{name}.{missing[0]}"
            raise input_error("is missing", "yes or no", key=key, file="gpus.yaml")
        facts = {key: bool(entry[key]) for key in GENERATION_FACTS}
        found |= {architecture: Generation(name=name, **facts) for architecture in entry["architectures"]}
    return found


@cache
def _names() -> dict[str, str]:
    """Map every name and alias to the name of its entry."""
    names = {name: name for name in catalog()}
    for name, entry in catalog().items():
        names |= {alias: name for alias in entry.get("aliases", ())}
    return names


def entry_name(name: str) -> str:
    """Return the entry of a name or alias in any case; raises ``InputError`` with the nearest."""
    try:
        return _names()[name.lower()]
    except KeyError:
        hint = nearest(name, _names())
        raise input_error(f"no GPU is called {shown(name)}{hint}", ", ".join(catalog()), key="gpu") from None


@cache
def find_gpu(name: str) -> CatalogEntry:
    """Return an entry by name or alias; raises ``InputError`` with the nearest name."""
    from layoutopt.optimizer.specs.file_model import validate
    from layoutopt.optimizer.specs.gpu_file import GpuFile  # it reads the generations of this module

    # Validated as a user's GPU is, entry by entry: a command that names one GPU does not wait for the whole catalog.
    found = entry_name(name)
    document = _document()
    named = {"name": found, **document.data["gpus"][found]}
    entry = validate(GpuFile, document.replaced(("gpus", found), named), path=("gpus", found))
    return CatalogEntry(gpu=entry.spec(), aliases=entry.aliases, node_memory_bytes=entry.node_memory)


@cache
def _models() -> frozenset[str]:
    """Return the words of the catalog that tell GPUs apart: h100, mi300x; not their memory, power or socket."""
    words = {word for name in _names() for word in name.split("-")}
    return frozenset(word for word in words if _MODEL.fullmatch(word))


def gpu_model(name: str) -> str | None:
    """Return which GPU a name is of: ``h100`` of h100-80g and of NVIDIA H100 80GB HBM3; None unless it has one such word."""
    words = re.split(r"[^a-z0-9]+", name.lower())
    found = {word.removesuffix("x") for word in words if word in _models()}  # MI300X is MI300 in short
    return found.pop() if len(found) == 1 else None


def is_gpu(text: str) -> bool:
    """Tell whether a text is a catalog name or alias."""
    return text.lower() in _names()


def split_reference(text: str) -> tuple[str, int] | None:
    """Read ``h100x16384`` or ``h100x16Ki`` as a GPU and a count; None if the text has another form or no such GPU is known.

    ``h100-64`` is the same where it is a part of a node or whole nodes: other numbers misspell a built-in cluster's name.
    """
    match = _REFERENCE.fullmatch(text)
    if match is None or match[1].lower() not in _names():
        return None
    name, joint, count = match[1], match[2], whole_number(match[3])
    if count is None or (joint == "-" and not match[3].isdecimal()):
        return None
    # h100-16 is two nodes; h100-80 or a100-40 are somebody's words for the memory of a card.
    node = catalog()[_names()[name.lower()]]["gpus_per_node"]
    return None if joint == "-" and count > node and count % node else (name, count)
