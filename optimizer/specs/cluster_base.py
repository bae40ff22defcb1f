"""``base`` of a cluster file: another cluster's keys stand for those that the file leaves out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from layoutopt.optimizer.specs.cluster_part import resized
from layoutopt.optimizer.specs.cluster_text import cluster_mapping
from layoutopt.optimizer.specs.errors import InputError
from layoutopt.optimizer.specs.gpu_catalog import find_gpu, split_reference
from layoutopt.optimizer.specs.reference_fabric import MAX_GPUS, build_reference
from layoutopt.optimizer.specs.units import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from layoutopt.optimizer.specs.cluster import ClusterSpec
    from layoutopt.optimizer.specs.document import Document

OWN_KEYS = ("name", "base", "source")
"""Keys that a base does not lend."""


def with_base(document: Document, load: Callable[[str], ClusterSpec]) -> Document:
    """Return a cluster file with the keys of its base filled in; ``load`` reads a built-in by name.

    The network grows or shrinks with a stated number of GPUs. Raises ``InputError`` for an unknown base.
    """
    stated = document.data
    if not isinstance(stated, dict) or not isinstance(stated.get("base"), str):
        return document
    name = stated["base"]
    if "/" in name or "." in name:  # a base is a name: files could be each other's base without end
        problem = document.problem(
            ("base",), f"{shown(name)} is a file", "a built-in cluster, or NAMExN: h100x1024"
        )
        raise InputError(problem)
    try:
        lent = cluster_mapping(_sized(name, load, _count(stated)))
    except InputError as error:
        raise InputError(
            *(document.problem(("base",), found.what, found.allowed) for found in error.problems)
        ) from None
    for one, other in (("gpus", "nodes"), ("nodes", "gpus")):
        if stated.get(one) is not None:
            lent.pop(other, None)
    own = {key: value for key, value in stated.items() if value is not None}
    return document.replaced((), {**{key: lent[key] for key in lent if key not in OWN_KEYS}, **own})


def _sized(name: str, load: Callable[[str], ClusterSpec], count: Callable[[int], int | None]) -> ClusterSpec:
    """Load the base at the number of GPUs that the file states, at its own where it states none."""
    reference = split_reference(name)
    if reference is not None:
        entry = find_gpu(reference[0])
        return build_reference(entry, count(entry.gpu.gpus_per_node) or reference[1])
    base = load(name)
    gpus = count(base.gpus_per_node)
    return base if gpus in (None, base.gpu_count) or base.graph is not None else resized(base, int(gpus or 0))


def _count(stated: Mapping[str, Any]) -> Callable[[int], int | None]:
    """Return the number of GPUs that a file states, given the base's node size; what is no number is judged later."""

    def gpus(base_node: int) -> int | None:
        """Return the GPUs that the file states, over nodes of the base's size unless stated."""
        node, nodes = stated.get("gpus_per_node", base_node), stated.get("nodes")
        found = stated.get("gpus") or (
            nodes * node if isinstance(nodes, int) and isinstance(node, int) else None
        )
        return found if isinstance(found, int) and 1 <= found <= MAX_GPUS else None

    return gpus
