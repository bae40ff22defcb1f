"""Explicit cluster graphs: node-link mappings, and files of node-link JSON or GraphML."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from layoutopt.optimizer.specs.document import parse_document, read_text
from layoutopt.optimizer.specs.errors import InputError, input_error
from layoutopt.optimizer.specs.units import shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path
    from xml.etree.ElementTree import Element

    from layoutopt.optimizer.specs.document import Document, KeyPath
    from layoutopt.optimizer.specs.errors import Problem

MAX_BYTES = 200_000_000
_TYPES = {"int": int, "long": int, "float": float, "double": float}


def read_graph(path: Path) -> Mapping[str, Any]:
    """Read ``{"directed", "nodes": [{"id", ...}], "edges": [{"source", "target", ...}]}`` from a file.

    Files that end in ``.graphml`` or ``.xml`` are GraphML, others node-link JSON or YAML as networkx writes
    it. Raises ``InputError`` for unreadable files and edges between unknown nodes.
    """
    text = read_text(path, max_bytes=MAX_BYTES)
    file = str(path)
    if path.suffix.lower() in {".graphml", ".xml"}:
        return _from_xml(text, file)
    return check_graph(_node_link(text, file), replace(parse_document("{}", file), lines={}), ())


def _node_link(text: str, file: str) -> Any:
    """Parse JSON by itself, which is much faster for large graphs, and anything else as YAML."""
    import json

    if not text.lstrip().startswith("{"):
        return parse_document(text, file).data
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise input_error(
            f"not valid JSON: {error.msg}", "a node-link graph", file=file, line=error.lineno
        ) from None
    except (ValueError, RecursionError):
        raise input_error("not valid JSON: numbers too long or nested too deeply", file=file) from None


def check_graph(graph: Any, document: Document, path: KeyPath) -> Mapping[str, Any]:
    """Check a node-link mapping (``links`` or ``edges``) and bring it to its plain form.

    ``document`` and ``path`` say where the mapping stands, for messages. Raises ``InputError`` with the first 20
    faults.
    """
    nodes, edges = graph.get("nodes"), graph.get("edges", graph.get("links"))
    for key, items in (("nodes", nodes), ("edges", edges)):
        if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
            raise InputError(
                document.problem((*path, key), "is not a list of mappings", "nodes and edges (or links)")
            )
    problems = list(_faults(nodes, edges, document, path))
    if problems:
        raise InputError(*problems[:20])
    return {"directed": graph.get("directed") is True, "nodes": nodes, "edges": edges}


def _faults(
    nodes: list[dict[str, Any]], edges: list[dict[str, Any]], document: Document, path: KeyPath
) -> Iterator[Problem]:
    """Yield missing and repeated ids and edges to nowhere."""
    if not nodes:
        yield document.problem((*path, "nodes"), "is empty", "at least one node")
    known: set[str | int] = set()
    for index, node in enumerate(nodes):
        name, place = node.get("id"), (*path, "nodes", index)
        if isinstance(name, bool) or not isinstance(name, str | int):
            yield document.problem(place, "has no id", "an id, text or a whole number")
        elif name in known:
            yield document.problem(place, f"id {shown(name)} is taken", "an id of its own")
        else:
            known.add(name)
    for index, edge in enumerate(edges):
        for end in ("source", "target"):
            name = edge.get(end)
            if not isinstance(name, str | int) or name not in known:
                what = f"{end} {shown(name)} is not a node"
                yield document.problem((*path, "edges", index), what, "the id of a node")


def _from_xml(text: str, file: str) -> Mapping[str, Any]:
    """Read GraphML without document types, which can expand without end."""
    from xml.etree import ElementTree

    if "<!DOCTYPE" in text or "<!ENTITY" in text:
        raise input_error("document type declarations are not accepted", "plain GraphML", file=file)
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise input_error("not valid XML", "GraphML", file=file, line=error.position[0]) from None
    except ValueError:
        raise input_error("not valid XML", "GraphML", file=file) from None
    graph = root.find("{*}graph")
    if graph is None:
        raise input_error("no graph element", "GraphML", file=file)
    keys = {key.get("id", ""): key for key in root.findall(".//{*}key")}
    plain = {
        "directed": graph.get("edgedefault") == "directed",
        "nodes": [
            {"id": node.get("id"), **_attributes(node, keys, file)} for node in graph.findall(".//{*}node")
        ],
        "edges": [
            {"source": edge.get("source"), "target": edge.get("target"), **_attributes(edge, keys, file)}
            for edge in graph.findall(".//{*}edge")
        ],
    }
    return check_graph(plain, parse_document("{}", file), ())


def _attributes(element: Element, keys: dict[str, Element], file: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for data in element.findall("{*}data"):
        key = keys.get(data.get("key", ""))
        if key is None:
            raise input_error(f"key {shown(data.get('key'))} is not declared", "a key element", file=file)
        name, kind = key.get("attr.name") or key.get("id") or "", key.get("attr.type", "string")
        value = (data.text or "").strip()
        try:
            found[name] = value == "true" if kind == "boolean" else _TYPES.get(kind, str)(value)
        except ValueError:
            raise input_error(f"{name}: {shown(value)} is not a {kind}", "a number", file=file) from None
    return found
