"""Explicit cluster graphs: node-link mappings, and files of node-link JSON or GraphML."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from layoutopt.optimizer.specs.document import parse_document, read_text
from layoutopt.optimizer.specs.errors import InputError, input_error
from layoutopt.optimizer.specs.layout_string import shorten
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
    plain = graphml(text, file) if path.suffix.lower() in {".graphml", ".xml"} else _node_link(text, file)
    return check_graph(plain, replace(parse_document("{}", file), lines={}), ())


def _node_link(text: str, file: str) -> Any:
    """Parse JSON by itself, which is much faster for large graphs, and anything else as YAML."""
    import json

    if not text.lstrip().startswith("{"):
        return parse_document(text, file).data
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        what = f"not valid JSON: {error.msg}"
        raise input_error(what, "a node-link graph", file=file, line=error.lineno) from None
    except (ValueError, RecursionError):
        raise input_error("not valid JSON: numbers too long or nested too deeply", file=file) from None


def check_graph(graph: Any, document: Document, path: KeyPath) -> Mapping[str, Any]:
    """Check a node-link mapping (``links`` or ``edges``) and bring it to its plain form.

    ``document`` and ``path`` say where the mapping stands, for messages. Raises ``InputError`` with the first 20
    faults.
    """
    # networkx wrote links before 3.4 and edges since.
    nodes, edges = graph.get("nodes"), graph.get("edges", graph.get("links"))
    for key, items in (("nodes", nodes), ("edges", edges)):
        if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
            what = "is not a list of mappings"
            raise InputError(document.problem((*path, key), what, "nodes and edges (or links)"))
    problems = list(_faults(nodes, edges, document, path))
    # A graph that another tool wrote is wrong everywhere at once.
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


def graphml(text: str, file: str) -> dict[str, Any]:
    """Read GraphML as a node-link mapping, which is not checked yet. Raises ``InputError`` where there is no graph."""
    from xml.etree import ElementTree

    # Entities of a document type can make a small file unfold without end.
    if "<!DOCTYPE" in text or "<!ENTITY" in text:
        raise input_error("document type declarations are not accepted", "plain GraphML", file=file)
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        what = f"not valid XML: {shorten(error)}"
        raise input_error(what, file=file, line=error.position[0]) from None
    except ValueError:
        raise input_error("not valid XML", "GraphML", file=file) from None
    # Files differ in whether they name GraphML's namespace.
    graph = root.find("{*}graph") if root.tag.endswith("graphml") else None
    if graph is None:
        raise input_error("no graph element", "a GraphML document", file=file)
    keys = {key.get("id", ""): key for key in root.findall(".//{*}key")}

    def read(kind: str, *names: str) -> list[dict[str, Any]]:
        """Return the elements of a kind with some of their own names and all of their data."""
        found = graph.findall(f".//{{*}}{kind}")
        return [{name: one.get(name) for name in names} | _attributes(one, keys, file) for one in found]

    directed = graph.get("edgedefault") == "directed"
    return {"directed": directed, "nodes": read("node", "id"), "edges": read("edge", "source", "target")}


def _attributes(element: Element, keys: dict[str, Element], file: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for data in element.findall("{*}data"):
        key = keys.get(data.get("key", ""))
        if key is None:
            raise input_error(f"key {shown(data.get('key'))} is not declared", "a key element", file=file)
        name, kind = key.get("attr.name") or key.get("id") or "", key.get("attr.type", "string")
        value = (data.text or "").strip()
        try:
            # XML's booleans are in small letters, Python's writers have others
            found[name] = value.lower() == "true" if kind == "boolean" else _TYPES.get(kind, str)(value)
        except ValueError:
            raise input_error(f"{shown(value)} is not a {kind}", "a number", key=name, file=file) from None
    return found
