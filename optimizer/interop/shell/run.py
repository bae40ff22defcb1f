"""Walk a script as the shell would, and keep the commands that it would start; nothing is ever executed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from layoutopt.optimizer.interop.shell import builtins as shell_builtins
from layoutopt.optimizer.interop.shell.conditions import test_node
from layoutopt.optimizer.interop.shell.expand import Expander
from layoutopt.optimizer.interop.shell.syntax import child_of, line_of, parse, text_of
from layoutopt.optimizer.interop.shell.values import glob_matches, has_hole, hole, holes, show

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tree_sitter import Node

    from layoutopt.optimizer.interop.shell.record import Record
    from layoutopt.optimizer.interop.shell.values import Array

MAX_DEPTH = 40
MAX_ROUNDS = 1_000
"""Deepest nesting of functions and strings, and rounds of one loop; launch scripts stay far below."""

STATEMENT = 50
"""What a statement costs of ``record.MAX_SPENT``; a character of a value costs 1."""

_SKIPPED = ("comment", "file_descriptor", "heredoc_redirect", "file_redirect", "herestring_redirect")
Status = bool | None


class Leave(Exception):
    """``break``, ``continue``, ``return`` or ``exit`` on its way up."""

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.kind = kind


class Shell:
    """One shell process: variables, functions, positional parameters; ``record`` collects for all of them."""

    def __init__(self, record: Record, *, arguments: Sequence[str] | None = None, depth: int = 0) -> None:
        self.record, self.depth = record, depth
        self.variables: dict[str, str | Array] = {}
        self.exported: set[str] = set()
        self.functions: dict[str, Node] = {}
        self.arguments = None if arguments is None else list(arguments)
        self.locals: list[dict[str, str | Array | None]] = []
        self.prefix: list[str] = []
        self.withheld: set[str] = set()
        """Variables of the shell around this one that it did not export."""
        self.printed = ""
        self.line = 1
        self.expander = Expander(self)

    # --- what expansion asks for

    def value(self, name: str) -> str | Array | None:
        """Return a variable, else what the caller gave under its name."""
        found = self.variables.get(name)
        if found is None and name in self.withheld:
            return ""
        return self.record.given.get(name) if found is None else found

    def positional(self, name: str) -> str | Array | None:
        """Return a positional or special parameter."""
        known = self.arguments if self.arguments is not None else self.record.arguments
        if name in ("@", "*"):
            if known is None:
                self.record.assume('no arguments beside the script ("$@" is empty)')
            return dict(enumerate_texts(known or []))
        if name == "#":
            return None if known is None else str(len(known))
        if name == "0":
            return self.record.file or "script.sh"
        if name.isdigit():
            place = int(name) - 1
            if known is None:
                return self.record.numbered.get(name)
            return known[place] if place < len(known) else "" if self.arguments is not None else None
        return None

    def assign(self, name: str, value: str | Array, *, key: str | None = None, append: bool = False) -> None:
        """Set or extend a variable or one element; what the caller gave replaces a value from outside."""
        before = self.variables.get(name)
        if isinstance(value, str) and has_hole(value) and name in self.record.given and not append:
            value = self.record.given[name]
        if key is not None:
            array = dict(before) if isinstance(before, dict) else {} if before is None else {"0": before}
            old = array.get(key, "") if append else ""
            array[key] = old + (value if isinstance(value, str) else "")
            value = array
        elif append and before is not None:
            value = _appended(before, value)
        self.record.spend(
            len(value) if isinstance(value, str) else sum(map(len, value.values())) + len(value)
        )
        self.variables[name] = value

    def unset(self, name: str) -> str:
        """Note a variable that only the outside sets."""
        bare = name.lstrip("#").partition("[")[0]
        if bare in self.record.own:  # a branch that is not taken sets it, or A="$A more" begins it
            self.assume_unset(bare, "")
            return ""
        if bare in self.record.given:
            return ""
        self.record.missing.setdefault(bare, self.line)
        return hole(name)

    def assume_unset(self, name: str, instead: str) -> None:
        """Note a default that holds as long as the outside sets nothing."""
        if not has_hole(instead):
            shown = f"${name}" if name.isdigit() else name
            self.record.assume(
                f"{shown} is not set outside: {instead!r}" if instead else f"{shown} is not set outside"
            )

    def substitute(self, node: Node) -> str:
        """Return what ``$(...)`` prints, as far as its commands are known by heart."""
        inner = Shell(self.record, arguments=self.arguments, depth=self.depth + 1)
        inner.variables, inner.functions, inner.exported = (
            dict(self.variables),
            self.functions,
            set(self.exported),
        )
        kept = len(self.record.commands)
        body = [child for child in node.named_children if child.type != "comment"]
        known = self.depth < MAX_DEPTH and all(shell_builtins.prints(child, inner) for child in body)
        del self.record.commands[kept:]
        return (
            inner.printed.rstrip("\n")
            if known and node.type == "command_substitution"
            else hole(text_of(node).strip())
        )

    # --- statements

    def source(self, text: str) -> Status:
        """Run a text in this shell."""
        if self.depth >= MAX_DEPTH:
            return None
        self.depth += 1
        try:
            return self.run(parse(text, self.record.file))
        finally:
            self.depth -= 1

    def run(self, root: Node) -> Status:
        """Run a whole text; what it sets anywhere is its own, not the outside's."""
        self.record.own.update(assigned_in(root))
        return self.block(root)

    def block(self, node: Node) -> Status:
        """Run the statements of a node in turn."""
        status: Status = True
        for child in node.children:
            if child.is_named and child.type not in _SKIPPED:
                status = self.statement(child)
        return status

    def statement(self, node: Node) -> Status:
        """Run one statement; its status is None where only the outside knows."""
        self.record.spend(STATEMENT)
        self.line = line_of(node)
        method = getattr(self, f"_{node.type}", None)
        result: Status = method(node) if method else self.block(node)
        return result

    def _program(self, node: Node) -> Status:
        return self.block(node)

    def _compound_statement(self, node: Node) -> Status:
        if text_of(node.children[0]).strip() != "((":
            return self.block(node)
        value = self.expander.number(self.expander.arithmetic_source(node))
        return None if value is None else value != 0

    def _subshell(self, node: Node) -> Status:
        kept, exported = dict(self.variables), set(self.exported)
        try:
            return self.block(node)
        except Leave as leave:
            if leave.kind != "exit":
                raise
            return None
        finally:
            self.variables, self.exported = kept, exported

    def _list(self, node: Node) -> Status:
        """``a && b || c``: the right side runs if the left one says so, and forks where that is open."""
        left, mark, right = node.children[0], text_of(node.children[1]).strip(), node.children[-1]
        status = self.statement(left)
        if status is None:
            status = self.decide(node, ("the left side holds", "it does not"), left) == 0
        return self.statement(right) if status == (mark == "&&") else status

    def _negated_command(self, node: Node) -> Status:
        status = self.statement(node.children[-1])
        return None if status is None else not status

    def _pipeline(self, node: Node) -> Status:
        status: Status = True
        for child in node.named_children:
            status = self._subshell_of(child)
        return status

    def _subshell_of(self, node: Node) -> Status:
        kept = dict(self.variables)
        try:
            return self.statement(node)
        finally:
            self.variables = kept

    def _redirected_statement(self, node: Node) -> Status:
        body = child_of(node, "body")
        if body is None:
            return True
        return shell_builtins.redirected(
            self, body, [child for child in node.children if "redirect" in child.type]
        )

    def _test_command(self, node: Node) -> Status:
        if text_of(node.children[0]).strip() == "((":
            value = self.expander.number(self.expander.arithmetic_source(node))
            return None if value is None else value != 0
        return test_node(node, self.expander)

    def _if_statement(self, node: Node) -> Status:
        branches = self._branches(node)
        labels = [self._label(condition) for condition, _ in branches if condition is not None]
        for place, (condition, body) in enumerate(branches):
            holds = True if condition is None else self.statement(condition)
            if holds is None and condition is not None:
                last = len(labels) == 1 and len(branches) == 1
                label = (labels[place], "not so" if last else f"not: {labels[place]}")
                holds = self.decide(condition, label, condition, body) == 0
            if holds:
                return self._each(body)
        return True

    def _each(self, body: list[Node]) -> Status:
        status: Status = True
        for statement in body:
            status = self.statement(statement)
        return status

    def _branches(self, node: Node) -> list[tuple[Node | None, list[Node]]]:
        """Return each branch's condition (None for ``else``) and statements."""
        branches: list[tuple[Node | None, list[Node]]] = []
        found: list[Node] = []
        condition: Node | None = None
        for child in node.children:
            if child.type in ("then", "else"):
                found = []
                branches.append((condition if child.type == "then" else None, found))
            elif child.type in ("elif_clause", "else_clause"):
                branches += self._branches(child)
            elif child.is_named and child.type != "comment":
                if branches:
                    found.append(child)
                else:
                    condition = child
        return branches

    def _label(self, node: Node) -> str:
        return " ".join(text_of(node).split())[:60]

    def _case_statement(self, node: Node) -> Status:
        subject = child_of(node, "value")
        value = self.expander.text(subject)
        items = [child for child in node.named_children if child.type == "case_item"]
        patterns = [
            [text_of(part).strip() for part in item.children_by_field_name("value")] for item in items
        ]
        chosen = self._chosen_item(node, subject, value, items, patterns)
        return self.block_of_item(items[chosen]) if chosen is not None else True

    def _chosen_item(
        self, node: Node, subject: Node | None, value: str, items: list[Node], patterns: list[list[str]]
    ) -> int | None:
        if has_hole(value):
            if not items or subject is None:
                return None
            labels = tuple(f"{show(value)} is {' or '.join(own)}" for own in patterns)
            return self.decide(node, labels, subject, items)
        for place, item in enumerate(items):
            for part in item.children_by_field_name("value"):
                quoted = part.type in ("string", "raw_string")
                text = self.expander.text(part)
                if text == value if quoted else glob_matches(value, text):
                    return place
        return None

    def block_of_item(self, item: Node) -> Status:
        """Run the statements of a case's branch."""
        values = {part.id for part in item.children_by_field_name("value")}
        return self._each(
            [child for child in item.named_children if child.id not in values and child.type != "comment"]
        )

    def _for_statement(self, node: Node) -> Status:
        name, body = child_of(node, "variable"), child_of(node, "body")
        values = [
            word for child in node.children_by_field_name("value") for word in self.expander.words(child)
        ]
        if name is None or body is None:
            return True
        return self._loop(body, lambda turn: self._set_turn(text_of(name), values, turn))

    def _set_turn(self, name: str, values: list[str], turn: int) -> bool:
        if turn >= len(values):
            return False
        self.assign(name, values[turn])
        return True

    def _c_style_for_statement(self, node: Node) -> Status:
        body, condition = child_of(node, "body"), child_of(node, "condition")
        update, start = child_of(node, "update"), child_of(node, "initializer")
        if start is not None:
            self._arithmetic(start)
        if body is None or condition is None:
            return True

        def goes_on(turn: int) -> bool:
            if turn and update is not None:
                self._arithmetic(update)
            return bool(self._arithmetic(condition))

        return self._loop(body, goes_on)

    def _arithmetic(self, node: Node) -> int | None:
        return self.expander.number(text_of(node))

    def _while_statement(self, node: Node) -> Status:
        condition, body = child_of(node, "condition"), child_of(node, "body")
        if condition is None or body is None:
            return True
        wanted = text_of(node.children[0]).strip() == "while"

        def goes_on(turn: int) -> bool:
            status = self.statement(condition)
            if status is None and turn == 0:
                self.record.assume(f"the loop of line {line_of(node)} does not run")
            return status == wanted

        return self._loop(body, goes_on)

    def _loop(self, body: Node, goes_on: Callable[[int], bool]) -> Status:
        status: Status = True
        for turn in range(MAX_ROUNDS):
            if not goes_on(turn):
                break
            try:
                status = self.block(body)
            except Leave as leave:
                if leave.kind == "break":
                    break
                if leave.kind != "continue":
                    raise
        return status

    def _function_definition(self, node: Node) -> Status:
        name, body = child_of(node, "name"), child_of(node, "body")
        if name is not None and body is not None:
            self.functions[text_of(name)] = body
        return True

    def call(self, name: str, arguments: list[str]) -> Status:
        """Run a function of the script."""
        if self.depth >= MAX_DEPTH:
            return None
        before, self.arguments = self.arguments, arguments
        self.depth += 1
        self.locals.append({})
        try:
            return self.statement(self.functions[name])
        except Leave as leave:
            if leave.kind != "return":
                raise
            return None
        finally:
            self.arguments, self.depth = before, self.depth - 1
            for variable, value in self.locals.pop().items():
                if value is None:
                    self.variables.pop(variable, None)
                else:
                    self.variables[variable] = value

    # --- assignments

    def _variable_assignment(self, node: Node) -> Status:
        self.assignment(node)
        return True

    def _variable_assignments(self, node: Node) -> Status:
        return self.block(node)

    def assignment(self, node: Node) -> str:
        """Run one assignment and return the variable's name."""
        target, value = child_of(node, "name"), child_of(node, "value")
        append = any(child.type == "+=" for child in node.children)
        if target is None:
            return ""
        key = None
        name = text_of(target)
        if target.type == "subscript":
            named = child_of(target, "name")
            name = text_of(named) if named else name
            key = self.expander.key(name, child_of(target, "index"))
        if value is not None and value.type == "array":
            self.assign(name, self._array(value, name), append=append)
        else:
            self.assign(name, self.expander.text(value), key=key, append=append)
        return name

    def _array(self, node: Node, name: str) -> Array:
        """Read the elements of ``( ... )``; ``[key]=value`` names its place."""
        array: Array = {}
        for child in node.named_children:
            if child.type == "comment":
                continue
            keyed = re.match(r"\s*\[([^\]]*)\]=", text_of(child))
            if keyed:
                text = self.expander.text(child)
                place, _, value = text[1:].partition("]=")
                array[place] = value
            else:
                for word in self.expander.words(child):
                    array[str(len(array))] = word
        return array

    def _declaration_command(self, node: Node) -> Status:
        kind, names, flags = text_of(node.children[0]).strip(), [], ""
        for child in node.named_children:
            if child.type == "variable_assignment":
                self._keep_local(kind, child_of(child, "name"))
                names.append(self.assignment(child))
            elif child.type == "variable_name":
                self._keep_local(kind, child)
                names.append(text_of(child))
                if kind == "local":
                    self.assign(names[-1], "")
            elif text_of(child).startswith("-"):
                flags += text_of(child)
            else:
                names += [self._assign_word(word) for word in self.expander.words(child)]
        if kind == "export" or "x" in flags:
            self.exported.update(names)
        return True

    def _assign_word(self, word: str) -> str:
        name, equals, value = word.partition("=")
        if equals and re.fullmatch(r"[A-Za-z_]\w*", name):
            self.assign(name, value)
        return name

    def _keep_local(self, kind: str, node: Node | None) -> None:
        if self.locals and node is not None and kind in ("local", "declare", "typeset"):
            name = text_of(node)
            self.locals[-1].setdefault(name, self.variables.get(name))

    def _unset_command(self, node: Node) -> Status:
        for child in node.named_children:
            self.variables.pop(text_of(child), None)
        return True

    # --- commands

    def _command(self, node: Node) -> Status:
        """Run a command: assignments alone stay, those before a command hold for it."""
        named = child_of(node, "name")
        words = self.expander.words(named) if named is not None else []
        for argument in node.children_by_field_name("argument"):
            words += self.expander.words(argument)
        before = dict(self.variables)
        own = [self.assignment(child) for child in node.named_children if child.type == "variable_assignment"]
        if not words:
            return True
        strings = [child for child in node.children if child.type == "herestring_redirect"]
        exported, self.exported = self.exported, self.exported | set(own)
        try:
            return shell_builtins.run(self, words, line_of(node), strings)
        finally:
            self.exported = exported
            for name in own:
                if name in before:
                    self.variables[name] = before[name]
                else:
                    self.variables.pop(name, None)

    def decide(
        self, node: Node, labels: tuple[str, ...], condition: Node, branches: Sequence[Node] = ()
    ) -> int:
        """Choose a branch of an open condition; the record says which."""
        names = dict.fromkeys(name for part in self._hole_names(condition) for name in (part,))
        changed = [name for branch in branches for name in assigned_in(branch)]
        return self.record.decide(line_of(node), labels, tuple(names), tuple(dict.fromkeys(changed)))

    def _hole_names(self, node: Node) -> list[str]:
        """Return what a condition's open parts are called, seen through the variables that hold them."""
        kept = dict(self.record.missing)
        text = (
            self.expander.text(node)
            if node.type in ("simple_expansion", "expansion", "string", "concatenation")
            else ""
        )
        names = [*holes(text), *self._expansions_in(node)]
        self.record.missing.clear()
        self.record.missing.update(kept)
        return names

    def _expansions_in(self, node: Node) -> list[str]:
        names = []
        for inner in walk(node):
            if inner.type in ("simple_expansion", "expansion"):
                names += [name for name in holes(self.expander.text(inner)) if name]
                target = next(
                    (c for c in inner.named_children if c.type in ("variable_name", "special_variable_name")),
                    None,
                )
                if target is not None and has_hole(self.expander.text(inner)):
                    names.append(text_of(target))
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
        if inner.type == "variable_assignment":
            target = child_of(inner, "name")
            names.append(text_of(target).partition("[")[0] if target else "")
    return names


def enumerate_texts(values: Sequence[str]) -> list[tuple[str, str]]:
    """Return values with their places as texts: the elements of an array."""
    return [(str(place), value) for place, value in enumerate(values)]


def _appended(before: str | Array, value: str | Array) -> str | Array:
    if isinstance(value, str) and isinstance(before, str):
        return before + value
    array = dict(before) if isinstance(before, dict) else {"0": before}
    if isinstance(value, str):
        array["0"] = array.get("0", "") + value
        return array
    numbered = all(key.isdigit() for key in value)
    start = 1 + max((int(key) for key in array if key.isdigit()), default=-1)
    for key, element in value.items():
        array[str(start + int(key)) if numbered else key] = element
    return array
