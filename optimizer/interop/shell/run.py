"""Walk a script as the shell would, and keep the commands that it would start; nothing is ever executed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from layoutopt.optimizer.interop.shell import builtins as shell_builtins
from layoutopt.optimizer.interop.shell.choices import assigned_in, decide
from layoutopt.optimizer.interop.shell.conditions import test_node
from layoutopt.optimizer.interop.shell.control import CONTROL, Leave
from layoutopt.optimizer.interop.shell.expand import Expander
from layoutopt.optimizer.interop.shell.outputs import prints
from layoutopt.optimizer.interop.shell.redirects import redirected
from layoutopt.optimizer.interop.shell.state import WORD, ShellVariables
from layoutopt.optimizer.interop.shell.syntax import child_of, line_of, parse, text_of
from layoutopt.optimizer.interop.shell.values import hole

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tree_sitter import Node

    from layoutopt.optimizer.interop.shell.record import Record
    from layoutopt.optimizer.interop.shell.values import Array

MAX_DEPTH = 40
"""Deepest nesting of functions and strings; launch scripts stay far below."""

STATEMENT = 50
"""What a statement costs of ``record.MAX_SPENT``; a character of a value costs 1."""

PARSED = 4
"""What a character of a text costs that is run as commands: its tree is larger than itself."""

_SKIPPED = ("comment", "file_descriptor", "heredoc_redirect", "file_redirect", "herestring_redirect")
Status = bool | None


class Shell(ShellVariables):
    """One shell process: variables, functions, positional parameters; ``record`` collects for all of them."""

    def __init__(self, record: Record, *, arguments: Sequence[str] | None = None, depth: int = 0) -> None:
        super().__init__(record, arguments)
        self.depth = depth
        self.exported: set[str] = set()
        self.functions: dict[str, Node] = {}
        self.locals: list[dict[str, str | Array | None]] = []
        self.prefix: list[str] = []
        self.printed = ""
        self.opaque = False
        """A program ran whose output is not known."""

        self.expander = Expander(self)

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
        known = self.depth < MAX_DEPTH and all(prints(child, inner) for child in body) and not inner.opaque
        del self.record.commands[kept:]
        return (
            inner.printed.rstrip("\n")
            if known and node.type == "command_substitution"
            else hole(text_of(node).strip())
        )

    def prints(self, node: Node) -> bool:
        """Add what a statement prints to ``printed``; False where only running it would tell."""
        return prints(node, self)

    # --- statements

    def source(self, text: str) -> Status:
        """Run a text in this shell."""
        if self.depth >= MAX_DEPTH:
            return None
        self.depth += 1
        self.record.spend(PARSED * len(text))
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
        control = CONTROL.get(node.type)
        if control is not None:
            return control(self, node)
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
            status = decide(self, node, ("the left side holds", "it does not"), left) == 0
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
        return redirected(self, body, [child for child in node.children if "redirect" in child.type])

    def _test_command(self, node: Node) -> Status:
        if text_of(node.children[0]).strip() == "((":
            value = self.expander.number(self.expander.arithmetic_source(node))
            return None if value is None else value != 0
        return test_node(node, self.expander)

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
        self.record.spend(sum(map(len, words)) + WORD * len(words))
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
