"""Walk a script as the shell would, and keep the commands that it would start; nothing is ever executed."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from layoutopt.optimizer.interop.shell import builtins as shell_builtins
from layoutopt.optimizer.interop.shell.choices import assigned_in, decide
from layoutopt.optimizer.interop.shell.conditions import test_node
from layoutopt.optimizer.interop.shell.control import CONTROL, Leave
from layoutopt.optimizer.interop.shell.declarations import DECLARATIONS, assignment
from layoutopt.optimizer.interop.shell.expand import Expander
from layoutopt.optimizer.interop.shell.parameters import raw
from layoutopt.optimizer.interop.shell.redirects import Input, given, redirected
from layoutopt.optimizer.interop.shell.state import WORD, ShellVariables
from layoutopt.optimizer.interop.shell.syntax import child_of, line_of, parse, text_of
from layoutopt.optimizer.interop.shell.values import has_hole, hole

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tree_sitter import Node

    from layoutopt.optimizer.interop.shell.record import Record
    from layoutopt.optimizer.interop.shell.values import Array

MAX_DEPTH = 40
"""Deepest nesting of functions and strings; launch scripts stay far below."""

STATEMENT = 50
"""What a statement costs of ``record.MAX_SPENT``; a character of a value costs 1."""

RECOVERED = 500
"""Square of the characters of a text with errors that one of ``record.MAX_SPENT`` pays: recovery takes this much."""

PARSED = 4
"""What a character of a text costs that is run as commands: its tree is larger than itself."""

_SKIPPED = ("comment", "file_descriptor", "heredoc_redirect", "file_redirect", "herestring_redirect")
_FAILING = (
    "command", "test_command", "compound_statement", "subshell", "pipeline", "redirected_statement", "variable_assignment",
)  # fmt: skip
"""Statements whose failure ends a shell under ``set -e``; lists end it through their last part."""

Status = bool | None


class Shell(ShellVariables):
    """One shell process: variables, functions, positional parameters; ``record`` collects for all of them."""

    def __init__(self, record: Record, *, arguments: Sequence[str] | None = None, depth: int = 0) -> None:
        super().__init__(record, arguments)
        self.depth = depth
        self.functions: dict[str, tuple[Node, list[Node]]] = {}
        self.exported_functions: set[str] = set()
        self.locals: list[dict[str, tuple[str | Array | None, str]]] = []
        self.prefix: list[str] = []
        self.stdin: Input | None = None
        self.printed = ""
        self.opaque = False
        """A program ran whose output is not known."""

        self.substituted: dict[str, str] = {}
        """Files that stand for what ``<(...)`` prints, by the name that the command sees."""

        self.stops = False
        """``set -e``: a command that fails outside of a condition ends the shell."""

        self.conditions = 0
        """How many conditions the running command is part of."""

        self.returned: int | None = None
        """What the last function or file returned."""

        self.made: tuple[Status, int | None] | None = None
        """How the last ``$(...)`` ended, and its number: what an assignment or a command without a name ends with."""

        self.at_exit = ""
        self.cluster = (1, 1)
        """Where ``getopts`` stands: the argument and the letter in it."""

        self.expander = Expander(self)

    def child(self) -> Shell:
        """Return a copy of this shell, as a subshell is."""
        inner = Shell(self.record, arguments=self.arguments, depth=self.depth + 1)
        inner.variables, inner.functions = dict(self.variables), dict(self.functions)
        inner.attributes, inner.exported = dict(self.attributes), set(self.exported)
        inner.exported_functions, inner.withheld = set(self.exported_functions), self.withheld
        inner.prefix, inner.stdin, inner.zero = self.prefix, self.stdin, self.zero
        inner.folder, inner.sources = self.folder, list(self.sources)
        inner.stops, inner.conditions = self.stops, self.conditions
        inner.grouped, inner.empties, inner.plain = self.grouped, self.empties, self.plain
        inner.exports_all, inner.line, inner.code = self.exports_all, self.line, self.code
        inner.locals = [{}] if self.locals else []
        return inner

    def substitute(self, node: Node) -> str:
        """Return what ``$(...)`` prints, as far as its commands are known by heart."""
        source = text_of(node).strip()
        if self.depth >= MAX_DEPTH:
            return hole(source)
        inner = self.child()
        # Bash clears -e in command substitutions, unless it was started as sh.
        inner.stops = False
        kept = len(self.record.commands)
        redirects = [child for child in node.named_children if child.type == "file_redirect"]
        if redirects and len(node.named_children) == 1:
            read = given(inner, redirects, None)
            inner.printed, inner.opaque = ("", True) if read is None else (read.rest(), False)
        elif source.startswith("`") and "\\" in source:
            inner.ended(lambda: inner.source(re.sub(r"\\([\\`$])", r"\1", source[1:-1])))
        else:
            status = inner.ended(lambda: inner.block(node))
            self.made = (status, inner.code if inner.returned is None else inner.returned)
        # What runs to make a word is no job of the script's.
        del self.record.commands[kept:]
        if node.type == "process_substitution":
            name = hole(source)
            if not inner.opaque and source.startswith("<"):
                self.substituted[name] = f"<({len(self.record.files)})"
                self.record.files[self.substituted[name]] = inner.printed
            return name
        return hole(source) if inner.opaque else inner.printed.rstrip("\n")

    def made_status(self) -> Status:
        """Return the status of what is nothing but assignments or ``$(...)``: a failure only where it is known."""
        status, code = self.made or (True, 0)
        if status is False:
            self.returned = code
        return status is not False

    def ended(self, run: Callable[[], Status]) -> Status:
        """Run something in this shell up to where it leaves, and what it keeps for its end."""
        try:
            status = run()
        except Leave as leave:
            status, self.returned = leave.status, leave.code
        if self.at_exit:
            text, self.at_exit = self.at_exit, ""
            with suppress(Leave):
                self.source(text)
        return status

    def apart(self, text: str) -> Status:
        """Run a script of its own."""
        return self.ended(lambda: self.source(text))

    def assign_to(self, place: str, value: str) -> None:
        """Set a variable or ``name[key]``."""
        name, bracket, key = place.partition("[")
        self.assign(name, value, key=self.expander.key_of(name, key[:-1]) if bracket else None)

    def assign(self, name: str, value: str | Array, *, key: str | None = None, append: bool = False) -> None:
        """Set or extend a variable as its attributes say."""
        letters = self.attributes.get(self.target(name), "")
        if isinstance(value, str) and letters and not has_hole(value):
            if "i" in letters:
                before = raw(self.expander, name, key) if append else None
                number = self.expander.number(f"({before})+({value})" if before else value)
                value, append = hole(name) if number is None else str(number), False
            value = value.upper() if "u" in letters else value.lower() if "l" in letters else value
        super().assign(name, value, key=key, append=append)

    # --- statements

    def source(self, text: str) -> Status:
        """Run a text in this shell."""
        if self.depth >= MAX_DEPTH:
            return None
        self.depth += 1
        self.record.spend(PARSED * len(text))
        try:
            root = parse(text, self.record.file)
            if root.has_error:
                self.record.spend(len(text) ** 2 // RECOVERED)
            return self.run(root)
        finally:
            self.depth -= 1

    def run(self, root: Node) -> Status:
        """Run a whole text; what it sets anywhere is its own, not the outside's."""
        self.record.own.update(assigned_in(root))
        return self.block(root)

    def block(self, node: Node) -> Status:
        """Run the statements of a node in turn."""
        status: Status = True
        before: Node | None = None
        for child in node.children:
            if child.is_error and self._continues(before, child):
                continue
            if child.is_named and child.type not in _SKIPPED:
                status = self.statement(child)
            before = child
        return status

    def _continues(self, before: Node | None, node: Node) -> bool:
        """Add what the grammar does not understand behind a command to that command, as an open word."""
        commands = self.record.commands
        same_line = before is not None and before.end_point[0] == node.start_point[0]
        if before is None or before.type != "command" or not same_line or not commands:
            return False
        source = text_of(node).strip()
        self.record.spend(len(source) + len(commands[-1].words))
        commands[-1] = replace(commands[-1], words=(*commands[-1].words, hole(source)))
        return True

    def statement(self, node: Node) -> Status:
        """Run one statement; its status is None where only the outside knows.

        Raises ``Leave`` where the shell stops at a failure.
        """
        self.record.spend(STATEMENT)
        self.line = line_of(node)
        self.returned = None
        control = CONTROL.get(node.type) or DECLARATIONS.get(node.type)
        method = getattr(self, f"_{node.type}", None)
        status: Status = control(self, node) if control else method(node) if method else self.block(node)
        known = 0 if status else 1 if self.returned in (None, 0) else self.returned
        self.code = None if status is None else known
        if status is False and self.stops and not self.conditions and node.type in _FAILING:
            raise Leave("exit", False, code=self.code)
        return status

    def judged(self, node: Node) -> Status:
        """Run a condition, which may fail without ending the shell."""
        self.conditions += 1
        try:
            return self.statement(node)
        finally:
            self.conditions -= 1

    def _compound_statement(self, node: Node) -> Status:
        return self._counted(node) if text_of(node.children[0]).strip() == "((" else self.block(node)

    def _test_command(self, node: Node) -> Status:
        double = text_of(node.children[0]).strip() == "(("
        return self._counted(node) if double else test_node(node, self.expander)

    def _counted(self, node: Node) -> Status:
        """``(( ))`` holds where its value is not 0; the grammar takes it for a block here, for a test there."""
        value = self.expander.number(self.expander.arithmetic_source(node))
        return None if value is None else value != 0

    def _subshell(self, node: Node) -> Status:
        inner = self.child()
        status = inner.ended(lambda: inner.block(node))
        self.printed, self.opaque = self.printed + inner.printed, self.opaque or inner.opaque
        self.returned = inner.returned
        return status

    def _list(self, node: Node) -> Status:
        """``a && b || c``: the right side runs if the left one says so, and forks where that is open."""
        left, mark, right = node.children[0], text_of(node.children[1]).strip(), node.children[-1]
        status = self.judged(left)
        if status is None:
            status = decide(self, node, ("the left side holds", "it does not"), left) == 0
        return self.statement(right) if status == (mark == "&&") else status

    def _negated_command(self, node: Node) -> Status:
        status = self.judged(node.children[-1])
        return None if status is None else not status

    def _pipeline(self, node: Node) -> Status:
        """Run each part in a subshell that reads what the one before it prints."""
        status: Status = True
        stdin = self.stdin
        parts = [child for child in node.named_children if child.type != "comment"]
        for place, part in enumerate(parts):
            inner = self.child()
            inner.stdin = stdin
            status = inner.ended(lambda inner=inner, part=part: inner.statement(part))  # type: ignore[misc]
            stdin = None if inner.opaque else Input(inner.printed)
            if place == len(parts) - 1:
                self.printed, self.opaque = self.printed + inner.printed, self.opaque or inner.opaque
        return status

    def _redirected_statement(self, node: Node) -> Status:
        redirects = [child for child in node.children if "redirect" in child.type]
        return redirected(self, child_of(node, "body"), redirects)

    def _function_definition(self, node: Node) -> Status:
        name, body = child_of(node, "name"), child_of(node, "body")
        if name is not None and body is not None:
            redirects = [child for child in node.children if "redirect" in child.type]
            self.functions[text_of(name)] = (body, redirects)
        return True

    def call(self, name: str, arguments: list[str]) -> Status:
        """Run a function of the script."""
        if self.depth >= MAX_DEPTH:
            return None
        before, self.arguments = self.arguments, arguments
        self.depth += 1
        self.locals.append({})
        try:
            body, redirects = self.functions[name]
            return redirected(self, body, redirects) if redirects else self.statement(body)
        except Leave as leave:
            if leave.kind != "return":
                raise
            self.returned = leave.code
            return leave.status
        finally:
            self.arguments, self.depth = before, self.depth - 1
            for variable, (value, letters) in self.locals.pop().items():
                self.variables.pop(variable, None)
                self.attributes[variable] = letters
                if value is not None:
                    self.variables[variable] = value

    # --- commands

    def _command(self, node: Node) -> Status:
        """Run a command: assignments alone stay, those before a command hold for it."""
        named = child_of(node, "name")
        own = [child for child in node.named_children if child.type == "variable_assignment"]
        self.made = None
        if named is None or (own and _ends_line(node, own[-1], named)):
            for child in own:
                assignment(self, child)
            own = []
        words = self.expander.words(named) if named is not None else []
        arguments = {child.id for child in node.children_by_field_name("argument")}
        children = node.children
        for child, following in zip(children, [*children[1:], None], strict=True):
            # $"text" is a text that may be translated: its dollar is no word.
            touches = following is not None and following.start_byte == child.end_byte
            translated = child.type == "$" and touches
            if (child.id in arguments and not translated) or (child.is_error and words):
                words += self.expander.words(child)
        self.record.spend(sum(map(len, words)) + WORD * len(words))
        before = dict(self.variables) if words and own else {}
        names = [assignment(self, child) for child in own]
        if not words:
            return self.made_status()
        exported, self.exported = self.exported, self.exported | set(names)
        stdin = self.stdin
        strings = [child for child in node.children if child.type == "herestring_redirect"]
        self.stdin = given(self, strings, stdin)
        try:
            return shell_builtins.run(self, words, line_of(node))
        finally:
            self.stdin = stdin
            self.exported -= set(names) - exported
            for name in names:
                if name in before:
                    self.variables[name] = before[name]
                else:
                    self.variables.pop(name, None)


def _ends_line(node: Node, own: Node, named: Node) -> bool:
    """Whether assignments end their line: behind ``;`` the grammar counts them to the command of the next line."""
    between = (node.text or b"")[own.end_byte - node.start_byte : named.start_byte - node.start_byte]
    return b"\n" in between.replace(b"\\\n", b"")
