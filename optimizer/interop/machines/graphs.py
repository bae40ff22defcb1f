"""Explicit cluster graphs: GraphML and node-link JSON or YAML to one plain node-link mapping."""

from __future__ import annotations

from typing import Any

from layoutopt.optimizer.interop.reading import importer, parse_json, parse_yaml, shorten
from layoutopt.optimizer.specs.errors import input_error
from layoutopt.optimizer.specs.graph_file import graphml

MAX_ELEMENTS = 2_000_000

Graph = dict[str, Any]


@importer
def import_graphml(text: str, file: str = "") -> Graph:
    """Read GraphML: ``{"directed", "nodes": [{"id", ...}], "edges": [{"source", "target", ...}]}``.

    Raises ``InputError`` where there is no graph.
    """
    plain = graphml(text, file)
    return _checked(plain["nodes"], plain["edges"], plain["directed"], file)


@importer
def import_node_link(text: str, file: str = "") -> Graph:
    """Read a node-link graph as networkx writes it (``links`` or ``edges``), JSON or YAML.

    Raises ``InputError`` for other documents.
    """
    data = parse_json(text, file) if text.lstrip().startswith("{") else parse_yaml(text, file)
    nodes, edges = data.get("nodes"), data.get("edges", data.get("links"))
    if not isinstance(nodes, list) or not isinstance(edges, list):
        raise input_error("no node-link graph", "lists nodes and edges (or links)", file=file)
    if not all(isinstance(item, dict) for item in [*nodes, *edges]):
        raise input_error("nodes and edges must be mappings", 'like {"id": "leaf1"}', file=file)
    return _checked(
        [{str(key): value for key, value in node.items()} for node in nodes],
        [{str(key): value for key, value in edge.items()} for edge in edges],
        data.get("directed") is True,
        file,
    )


def _checked(nodes: list[dict[str, Any]], edges: list[dict[str, Any]], directed: bool, file: str) -> Graph:
    if not nodes or len(nodes) + len(edges) > MAX_ELEMENTS:
        what = f"graph has {len(nodes)} nodes and {len(edges)} edges"
        raise input_error(what, "at least one node", file=file)
    names = [node.get("id") for node in nodes]
    if not all(isinstance(name, str | int) for name in names):
        raise input_error("a node has no id", "an id per node", key="nodes", file=file)
    known = set(names)
    if len(known) < len(names):
        raise input_error("two nodes have the same id", "an id per node", key="nodes", file=file)
    for edge in edges:
        for end in ("source", "target"):
            name = edge.get(end)
            if not isinstance(name, str | int) or name not in known:
                what = f"edge ends at unknown node {shorten(name)!r}"
                raise input_error(what, "a node's id", key=end, file=file)
    return {"directed": directed, "nodes": nodes, "edges": edges}
