"""Explicit cluster graphs: GraphML and node-link JSON or YAML to one plain node-link mapping."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from layoutopt.optimizer.interop.reading import importer, parse_json, parse_yaml, shorten
from layoutopt.optimizer.specs.errors import input_error

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

MAX_ELEMENTS = 2_000_000
_TYPES = {"int": int, "long": int, "float": float, "double": float}

Graph = dict[str, Any]


@importer
def import_graphml(text: str, file: str = "") -> Graph:
    """Read GraphML: ``{"directed", "nodes": [{"id", ...}], "edges": [{"source", "target", ...}]}``.

    Raises ``InputError`` where there is no graph.
    """
    root = _xml(text, file)
    graph = root.find("{*}graph") if root.tag.endswith("graphml") else None
    if graph is None:
        raise input_error("no graph element", "a GraphML document", file=file)
    keys = {key.get("id", ""): key for key in root.findall(".//{*}key")}
    nodes = [{"id": node.get("id"), **_attributes(node, keys, file)} for node in graph.findall(".//{*}node")]
    edges = [
        {"source": edge.get("source"), "target": edge.get("target"), **_attributes(edge, keys, file)}
        for edge in graph.findall(".//{*}edge")
    ]
    return _checked(nodes, edges, graph.get("edgedefault") == "directed", file)


def _xml(text: str, file: str) -> Element:
    from xml.etree import ElementTree

    # entities can grow a small file without bound
    if "<!DOCTYPE" in text or "<!ENTITY" in text:
        raise input_error("document type declarations are not accepted", "plain GraphML", file=file)
    try:
        return ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise input_error(f"not valid XML: {shorten(error)}", file=file, line=error.position[0]) from None
    except ValueError:
        raise input_error("not valid XML", file=file) from None


def _attributes(element: Element, keys: dict[str, Element], file: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for data in element.findall("{*}data"):
        key = keys.get(data.get("key", ""))
        if key is None:
            raise input_error(f"key {shorten(data.get('key'))!r} is not declared", "a key element", file=file)
        name = key.get("attr.name") or key.get("id") or ""
        kind = key.get("attr.type", "string")
        value = (data.text or "").strip()
        try:
            found[name] = value.lower() == "true" if kind == "boolean" else _TYPES.get(kind, str)(value)
        except ValueError:
            raise input_error(f"{shorten(value)!r} is not a {kind}", key=name, file=file) from None
    return found


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
        raise input_error(
            f"graph has {len(nodes)} nodes and {len(edges)} edges", "at least one node", file=file
        )
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
                raise input_error(
                    f"edge ends at unknown node {shorten(name)!r}", "a node's id", key=end, file=file
                )
    return {"directed": directed, "nodes": nodes, "edges": edges}
