"""Assignments and declarations: ``x=1``, ``x+=(2)``, ``local``, ``export``, ``declare``, ``unset``."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from layoutopt.optimizer.interop.shell.patterns import balanced
from layoutopt.optimizer.interop.shell.state import NameReference
from layoutopt.optimizer.interop.shell.syntax import child_of, parse, text_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from tree_sitter import Node

    from layoutopt.optimizer.interop.shell.run import Shell
    from layoutopt.optimizer.interop.shell.values import Array

Status = bool | None


def assignment(shell: Shell, node: Node) -> str:
    """Run one assignment and return the variable's name."""
    name, value = _evaluated(shell, node)
    _assign(shell, node, name, value)
    return name


def _evaluated(shell: Shell, node: Node) -> tuple[str, str | Array]:
    """Return the name and value of an assignment."""
    target, value = child_of(node, "name"), child_of(node, "value")
    name = text_of(target).partition("[")[0] if target is not None else ""
    if value is not None and value.type == "array":
        return name, _array(shell, value, name)
    return name, shell.expander.text(value)


def _assign(shell: Shell, node: Node, name: str, value: str | Array) -> None:
    """Set what an assignment names to its value."""
    target = child_of(node, "name")
    if target is None:
        return
    append = any(child.type == "+=" for child in node.children)
    key = None
    if target.type == "subscript":
        key = shell.expander.key_of(name, text_of(target)[len(name) + 1 : -1])
    if isinstance(value, dict) and not append:  # x=(a) replaces the array, of which x=a sets one element
        shell.variables.pop(shell.target(name), None)
    shell.assign(name, value, key=key, append=append)


def _array(shell: Shell, node: Node, name: str) -> Array:
    """Read the elements of ``( ... )``; ``[key]=value`` names its place, and the next ones follow it."""
    array: Array = {}
    following = 0
    for child in node.named_children:
        if child.type == "comment":
            continue
        source = text_of(child).strip()
        end = balanced(source, 0) if source.startswith("[") else 0
        if end and source[end : end + 1] == "=":
            place = shell.expander.key_of(name, source[1 : end - 1])
            array[place] = shell.expander.plain(source[end + 1 :])
            following = int(place) + 1 if place.isdecimal() else following
            continue
        for word in shell.expander.words(child):
            array[str(following)] = word
            following += 1
    return array


def _variable_assignment(shell: Shell, node: Node) -> Status:
    shell.made = None
    assignment(shell, node)
    return shell.made_status()


def _declaration_command(shell: Shell, node: Node) -> Status:
    """Run a declaration: all its words are expanded before the first is assigned."""
    kind, words = text_of(node.children[0]).strip(), [text_of(child).strip() for child in node.named_children]
    flags = "".join(word[1:] for word in words if word.startswith("-"))
    if "f" in flags and (kind == "export" or "x" in flags):
        shell.exported_functions |= set(words)
        return True
    local = kind in ("local", "declare", "typeset") and "g" not in flags
    # keys and elements depend on what is declared, values on what was before
    found = [part for child in node.named_children for part in _parts(shell, child, flags)]
    for name, child, value in found:
        _declare(shell, name, flags, local=local)
        if "n" in flags:
            shell.variables[name] = NameReference(value or "")
        elif child is not None and value is not None:
            _assign(shell, child, name, value)
        elif value is not None:
            shell.assign(name, value)
        elif kind == "local":
            shell.assign(name, {} if set("aA") & set(flags) else "")
        if kind == "export" or "x" in flags:
            shell.exported.add(shell.target(name))
    return True


def _parts(shell: Shell, node: Node, flags: str) -> list[tuple[str, Node | None, str | Array | None]]:
    """Return names, assignments and values of one word of a declaration."""
    text = text_of(node).strip()
    if node.type == "variable_assignment":
        target = child_of(node, "name")
        if (
            "A" in flags and target is not None
        ):  # before its elements are read, whose keys would be arithmetic else
            shell.attributes[text_of(target)] = "A"
        name, value = _evaluated(shell, node)
        return [(name, node, value)]
    if node.type == "variable_name":
        return [(text, None, None)]
    if text.startswith("-"):
        return []
    found: list[tuple[str, Node | None, str | Array | None]] = []
    for word in shell.expander.words(node):
        name, equals, value = word.partition("=")
        if re.fullmatch(r"[A-Za-z_]\w*", name):
            found.append((name, None, value if equals else None))
    return found


def _declare(shell: Shell, name: str, flags: str, *, local: bool) -> None:
    """Note what a declaration makes of a variable, and hide the one outside of a function."""
    letters = "".join(letter for letter in flags if letter in "Aiul")
    if local and shell.locals and name not in shell.locals[-1]:
        shell.locals[-1][name] = (shell.variables.pop(name, None), shell.attributes.pop(name, ""))
    if letters:
        shell.attributes[name] = letters


def _unset_command(shell: Shell, node: Node) -> Status:
    functions = False
    # The grammar gives unset a node of its own, in which x[1] is no word: read as a command's it is one.
    source = "".join(text_of(node).split(maxsplit=1)[1:])
    command = parse(f"x {source}").children[0]
    for argument in command.children_by_field_name("argument"):
        for name in shell.expander.words(argument):
            if name.startswith("-"):
                functions = "f" in name
            elif functions:
                shell.functions.pop(name, None)
            else:
                bare, bracket, key = name.partition("[")
                shell.forget(bare, shell.expander.key_of(bare, key[:-1]) if bracket else None)
    return True


DECLARATIONS: dict[str, Callable[[Shell, Node], Status]] = {
    "variable_assignment": _variable_assignment,
    "declaration_command": _declaration_command,
    "unset_command": _unset_command,
}
"""What runs a statement that sets variables, by its kind in the tree."""
