"""Slurm: job environment, ``topology.conf`` (tree, block, ring) and ``topology.yaml`` to nodes."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from layoutopt.optimizer.interop.reading import Fields, importer, parse_yaml_value, shorten
from layoutopt.optimizer.interop.records import NodeBlock, NodeSet
from layoutopt.optimizer.specs.errors import InputError, input_error

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


_VARIABLE = re.compile(r"^[ \t]*(?:export[ \t]+)?(SLURM_\w+)=(.*)$", re.MULTILINE)
_PAIR = re.compile(r"\b(\w{1,64})=(\S*)")
KINDS = ("tree", "block", "ring", "torus3d", "flat")


@importer
def import_slurm_environment(text: str, file: str = "") -> NodeSet:
    """Read ``SLURM_*`` variables (one per line, as ``env`` prints them): the allocation's nodes.

    Raises ``InputError`` without a node list, and where its length is not the number stated.
    """
    found = {name: value.strip().strip("'\"") for name, value in _VARIABLE.findall(text)}
    listed = found.get("SLURM_JOB_NODELIST") or found.get("SLURM_NODELIST")
    if listed is None:
        raise input_error("no SLURM_JOB_NODELIST", "the environment of a Slurm job", file=file)
    nodes = expand_hostlist(listed, key="SLURM_JOB_NODELIST")
    stated = found.get("SLURM_JOB_NUM_NODES") or found.get("SLURM_NNODES")
    if stated is not None and stated != str(len(nodes)):
        what = f"{shorten(stated)} nodes stated, {len(nodes)} listed"
        raise input_error(what, "the number of names in SLURM_JOB_NODELIST", key="SLURM_NNODES", file=file)
    kind, blocks = _own_block(found)
    return NodeSet(nodes=nodes, gpus_per_node=_gpus(found), kind=kind, blocks=blocks)


def _gpus(found: Mapping[str, str]) -> int | None:
    for name in ("SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE", "SLURM_NTASKS_PER_NODE"):
        last = found.get(name, "").split(":")[-1]  # "h100:8" names the type in front
        if re.fullmatch(r"[1-9]\d{0,4}", last):
            return int(last)
    return None


def _own_block(found: Mapping[str, str]) -> tuple[str, tuple[NodeBlock, ...]]:
    """Where the node that printed the environment sits; the other nodes' places are not in it."""
    pattern = found.get("SLURM_TOPOLOGY_ADDR_PATTERN", "").split(".")
    address = found.get("SLURM_TOPOLOGY_ADDR", "").split(".")
    if len(pattern) < 2 or len(pattern) != len(address):
        return "flat", ()
    kind = "block" if pattern[0] == "block" else "tree"
    parent = address[-3] if len(address) > 2 else ""
    return kind, (NodeBlock(name=address[-2], nodes=(address[-1],), parent=parent),)


@importer
def import_topology_conf(text: str, file: str = "") -> NodeSet:
    """Read ``topology.conf``: keys in any case, ``#`` comments; LinkSpeed is ignored, as Slurm does.

    Raises ``InputError`` for files of no kind of topology or of several.
    """
    entries = list(_entries(text))
    kinds = {kind for kind in ("switch", "block", "ring") for _, entry in entries if f"{kind}name" in entry}
    if len(kinds) != 1:
        mixed = f"mixes {' and '.join(sorted(kinds))}"
        what = mixed if kinds else "no SwitchName, BlockName or RingName line"
        raise input_error(what, "one topology kind", file=file)
    kind = kinds.pop()
    groups = [_group(entry, f"{kind}name", line, file) for line, entry in entries if f"{kind}name" in entry]
    if kind == "switch":
        return _tree(groups, file)
    sizes = next((entry["blocksizes"] for _, entry in entries if "blocksizes" in entry), "")
    return _blocks(kind, groups, _block_size(sizes, file), file)


def _entries(text: str) -> Iterable[tuple[int, dict[str, str]]]:
    for number, line in enumerate(text.splitlines(), start=1):
        entry = {key.lower(): value for key, value in _PAIR.findall(line.split("#", 1)[0])}
        if entry:
            yield number, entry


class _Group(NamedTuple):
    """A switch, block or ring with what it holds."""

    name: str
    nodes: tuple[str, ...]
    children: tuple[str, ...]


def _group(entry: Mapping[str, str], name_key: str, line: int, file: str) -> _Group:
    name = entry[name_key]
    if not entry.get("nodes") and not entry.get("switches"):
        raise input_error("neither Nodes nor Switches", "one of them", key=name, file=file, line=line)
    try:
        nodes = expand_hostlist(entry["nodes"]) if entry.get("nodes") else ()
        children = expand_hostlist(entry["switches"]) if entry.get("switches") else ()
    except InputError as error:
        raise input_error(error.problems[0].what, file=file, line=line, key=name) from None
    return _Group(name, nodes, children)


def _block_size(text: str, file: str) -> int | None:
    if not text:
        return None
    first, *rest = text.split(",")
    if not all(part.isdecimal() and 0 < len(part) < 10 for part in (first, *rest)) or int(first) < 1:
        what = f"{shorten(text)!r} is not a list of sizes"
        raise input_error(what, "like 16,32", key="BlockSizes", file=file)
    for part in rest:
        # Slurm plans with the base size and doubles it
        ratio = int(part) // int(first)
        if int(part) % int(first) or ratio & (ratio - 1) or ratio < 1:
            what = f"{part} is not {first} times a power of two"
            raise input_error(what, "base size, then power-of-two multiples", key="BlockSizes", file=file)
    return int(first)


def _tree(groups: list[_Group], file: str) -> NodeSet:
    parents = {child: group.name for group in groups for child in group.children}
    known = {group.name.lower() for group in groups}
    unknown = sorted(child for child in parents if child.lower() not in known)
    if unknown:
        what = f"switch {shorten(unknown[0])} is not defined"
        raise input_error(what, "a SwitchName line", key="Switches", file=file)
    leaves = [group for group in groups if group.nodes]
    roots = [group for group in groups if group.name not in parents]
    notes = () if len(roots) == 1 else (f"{len(roots)} switches without a common root: separate islands",)
    blocks = [NodeBlock(name=g.name, nodes=g.nodes, parent=parents.get(g.name, "")) for g in leaves]
    return _node_set("tree", blocks, None, notes, file)


def _blocks(kind: str, groups: list[_Group], size: int | None, file: str) -> NodeSet:
    small = [group.name for group in groups if size is not None and len(group.nodes) < size]
    if small:
        what = f"block {shorten(small[0])} has fewer nodes than the base size {size}"
        raise input_error(what, key="BlockSizes", file=file)
    return _node_set(kind, [NodeBlock(name=g.name, nodes=g.nodes) for g in groups], size, (), file)


def _node_set(
    kind: str, blocks: list[NodeBlock], size: int | None, notes: tuple[str, ...], file: str
) -> NodeSet:
    nodes = tuple(dict.fromkeys(node for block in blocks for node in block.nodes))
    if not nodes:
        raise input_error("no nodes", "leaf switches or blocks with Nodes", file=file)
    if len(nodes) < sum(len(block.nodes) for block in blocks):
        notes = (*notes, "some nodes are in several switches or blocks: counted once")
    return NodeSet(nodes=nodes, kind=kind, blocks=tuple(blocks), block_size=size, notes=notes)


@importer
def import_topology_yaml(text: str, file: str = "", name: str | None = None) -> NodeSet:
    """Read ``topology.yaml``: the topology called ``name``, else the cluster's default, else the first.

    Raises ``InputError`` for other documents.
    """
    data = parse_yaml_value(text, file)
    if not isinstance(data, list) or not data or not all(isinstance(entry, dict) for entry in data):
        raise input_error("not a list of topologies", "entries with topology: NAME", file=file)
    entries = [Fields({str(key): value for key, value in entry.items()}, file=file) for entry in data]
    entry = _chosen(entries, name, file)
    others = [shorten(other.data.get("topology")) for other in entries if other is not entry]
    found = _of_topology(entry, file)
    if not others or name is not None:
        return found
    which = "the cluster's default" if entry.on("cluster_default") else "the first"
    note = f"topology {shorten(entry.data.get('topology'))} was read, {which} of {len(entries)}; others: "
    return replace(found, notes=(*found.notes, note + ", ".join(others)))


def _of_topology(entry: Fields, file: str) -> NodeSet:
    kinds = [kind for kind in KINDS if kind in entry]
    if len(kinds) != 1:
        raise input_error(f"topology has {len(kinds)} kinds", "exactly one of " + ", ".join(KINDS), file=file)
    kind = kinds[0]
    if kind in {"flat", "torus3d"}:
        what = f"a {kind} topology lists no nodes by block"
        raise input_error(what, "a tree, block or ring topology", key=entry.text("topology") or "", file=file)
    section, name_key = entry.section(kind), "switch" if kind == "tree" else kind
    plural = "switches" if kind == "tree" else f"{kind}s"
    groups = [_yaml_group(item, name_key, section) for item in section.items(plural) or []]
    if kind == "tree":
        return _tree(groups, file)
    sizes = ",".join(str(size) for size in section.items("block_sizes") or [])
    return _blocks(kind, groups, _block_size(sizes, file), file)


def _chosen(entries: list[Fields], name: str | None, file: str) -> Fields:
    if name is None:
        return next((entry for entry in entries if entry.on("cluster_default")), entries[0])
    for entry in entries:
        if entry.text("topology") == name:
            return entry
    names = ", ".join(shorten(entry.data.get("topology")) for entry in entries)
    raise input_error(f"no topology {shorten(name)!r}", names, file=file)


def _yaml_group(item: Any, name_key: str, section: Fields) -> _Group:
    if not isinstance(item, dict):
        raise section.fail(name_key, f"{shorten(item)!r} is not a mapping")
    plain = {str(key): value for key, value in item.items()}
    fields = Fields(plain, file=section.file, prefix=section.prefix)
    name = fields.text(name_key)
    nodes, children = fields.text("nodes"), fields.text("children", "switches")
    if name is None or (not nodes and not children):
        raise fields.fail(name_key, "needs a name and nodes or children")
    held = [expand_hostlist(text, key=name) if text else () for text in (nodes, children)]
    return _Group(name, *held)


MAX_HOSTS = 200_000
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")
_BRACKETS = re.compile(r"\[([^\[\]]*)\]")


@importer
def expand_hostlist(text: str, *, key: str = "") -> tuple[str, ...]:
    """Expand a hostlist to its names, in order. Raises ``InputError`` where it names no host or too many."""
    names: list[str] = []
    for part in _split(text, key):
        names += _expand(part, key)
        if len(names) > MAX_HOSTS:
            raise input_error("hostlist is too long", f"at most {MAX_HOSTS} hosts", key=key)
    if not names:
        raise input_error(f"hostlist {shorten(text)!r} is empty", "like gpu[001-016]", key=key)
    return tuple(names)


def _split(text: str, key: str) -> list[str]:
    """Split at the commas outside of brackets."""
    parts, depth, start = [], 0, 0
    for index, char in enumerate(text):
        depth += (char == "[") - (char == "]")
        if depth not in (0, 1):
            break
        if char == "," and depth == 0:
            parts.append(text[start:index])
            start = index + 1
    if depth != 0:
        raise input_error(f"hostlist {shorten(text)!r} has unbalanced brackets", "like gpu[001-016]", key=key)
    return [part.strip() for part in [*parts, text[start:]] if part.strip()]


def _expand(part: str, key: str) -> list[str]:
    match = _BRACKETS.search(part)
    if match is None:
        if not re.fullmatch(r"[\w.\-]+", part):
            raise input_error(f"{shorten(part)!r} is not a host name", "like gpu[001-016]", key=key)
        return [part]
    tails = _expand(part[match.end() :], key) if part[match.end() :] else [""]
    numbers = _numbers(match[1], part, key)
    # Several brackets multiply: rack[0-999]node[0-999] is short, and a million names.
    if len(numbers) * len(tails) > MAX_HOSTS:
        raise input_error("hostlist is too long", f"at most {MAX_HOSTS} hosts", key=key)
    return [part[: match.start()] + number + tail for number in numbers for tail in tails]


def _numbers(inside: str, part: str, key: str) -> list[str]:
    numbers: list[str] = []
    for piece in inside.split(","):
        match = _RANGE.fullmatch(piece.strip())
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if match is None or last < first or last - first > MAX_HOSTS or len(numbers) > MAX_HOSTS:
            raise input_error(f"{shorten(part)!r} is not a hostlist", "like gpu[001-016,018]", key=key)
        # the start of a range fixes the zero padding of all its numbers
        width = len(match[1])
        numbers += [str(number).zfill(width) for number in range(first, last + 1)]
    return numbers
