"""Open conditions: which branch is taken, what the condition depends on, and what its branches set."""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutopt.optimizer.interop.shell.syntax import child_of, line_of, text_of
from layoutopt.optimizer.interop.shell.values import has_hole, holes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tree_sitter import Node

    from layoutopt.optimizer.interop.shell.run import Shell


def decide(
    shell: Shell, node: Node, labels: tuple[str, ...], condition: Node, branches: Sequence[Node] = ()
) -> int:
    """Choose a branch of an open condition; the record says which."""
    names = dict.fromkeys(_hole_names(shell, condition))
    changed = [name for branch in branches for name in assigned_in(branch)]
    return shell.record.decide(line_of(node), labels, tuple(names), tuple(dict.fromkeys(changed)))


def _hole_names(shell: Shell, node: Node) -> list[str]:
    """Return what a condition's open parts are called, seen through the variables that hold them."""
    # Expanding notes what is missing: asking for names only must not put more on that list.
    kept = dict(shell.record.missing)
    worded = node.type in ("simple_expansion", "expansion", "string", "concatenation")
    names = [*holes(shell.expander.text(node) if worded else ""), *_expansions_in(shell, node)]
    shell.record.missing.clear()
    shell.record.missing.update(kept)
    return names


def _expansions_in(shell: Shell, node: Node) -> list[str]:
    names = []
    for inner in walk(node):
        if inner.type in ("simple_expansion", "expansion"):
            text = shell.expander.text(inner)
            names += [name for name in holes(text) if name]
            targets = [one for one in inner.named_children if one.type.endswith("variable_name")]
            if targets and has_hole(text):
                names.append(text_of(targets[0]))
    return names


def walk(node: Node) -> list[Node]:
    """Return a node and all nodes below it."""
    found, waiting = [], [node]
    while waiting:
        current = waiting.pop()
        found.append(current)
        waiting.extend(reversed(current.children))
    return found


def assigned_in(node: Node) -> list[str]:
    """Return the variables that statements below a node set."""
    names = []
    for inner in walk(node):
        # ``ARGS[3]=...`` sets something of ARGS, which is what a reader of the message looks for.
        if inner.type == "variable_assignment":
            target = child_of(inner, "name")
            names.append(text_of(target).partition("[")[0] if target else "")
    return names
