"""Statements that choose or repeat others: ``if``, ``case``, ``for`` and ``while``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutopt.optimizer.interop.shell.choices import decide
from layoutopt.optimizer.interop.shell.patterns import glob_matches
from layoutopt.optimizer.interop.shell.syntax import child_of, line_of, text_of
from layoutopt.optimizer.interop.shell.values import has_hole, hole, show

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tree_sitter import Node

    from layoutopt.optimizer.interop.shell.run import Shell
    from layoutopt.optimizer.interop.shell.values import Array

MAX_ROUNDS = 10_000
"""Rounds of one loop; launch scripts stay far below."""

ENDLESS, WAYS_OUT, ENDLESS_ROUNDS = ("true", ":"), ("break", "exit", "return"), 1_000
"""Conditions that always hold, what leaves a loop nevertheless, and rounds of one without: it restarts a job."""

Status = bool | None


class Leave(Exception):
    """``break``, ``continue``, ``return`` or ``exit`` on its way up."""

    def __init__(
        self, kind: str, status: bool | None = True, *, code: int | None = None, levels: int = 1
    ) -> None:
        super().__init__(kind)
        self.kind, self.status, self.code, self.levels = kind, status, code, levels


def _if_statement(shell: Shell, node: Node) -> Status:
    branches = _branches(node)
    labels = [_label(condition) for condition, _ in branches if condition is not None]
    for place, (condition, body) in enumerate(branches):
        holds = True if condition is None else shell.judged(condition)
        if holds is None and condition is not None:
            # Each open condition is a choice of two ways; those behind it come up only on the way that reaches them.
            last = len(labels) == 1 and len(branches) == 1
            label = (labels[place], "not so" if last else f"not: {labels[place]}")
            holds = decide(shell, condition, label, condition, body) == 0
        if holds:
            return _each(shell, body)
    return True


def _each(shell: Shell, body: list[Node]) -> Status:
    status: Status = True
    for statement in body:
        status = shell.statement(statement)
    return status


def _branches(node: Node) -> list[tuple[Node | None, list[Node]]]:
    """Return each branch's condition (None for ``else``) and statements."""
    branches: list[tuple[Node | None, list[Node]]] = []
    found: list[Node] = []
    condition: Node | None = None
    for child in node.children:
        if child.type in ("then", "else"):
            found = []
            branches.append((condition if child.type == "then" else None, found))
        elif child.type in ("elif_clause", "else_clause"):
            branches += _branches(child)
        elif child.is_named and child.type != "comment":
            if branches:
                found.append(child)
            else:
                condition = child
    return branches


def _label(node: Node) -> str:
    return " ".join(text_of(node).split())[:60]


def _case_statement(shell: Shell, node: Node) -> Status:
    subject = child_of(node, "value")
    value = shell.expander.text(subject)
    items = [child for child in node.named_children if child.type == "case_item"]
    patterns = [[text_of(part).strip() for part in item.children_by_field_name("value")] for item in items]
    chosen = _chosen_item(shell, node, subject, value, items, patterns)
    status: Status = True
    while chosen is not None:
        status = _run_item(shell, items[chosen])
        end = text_of(items[chosen].children[-1]).strip()
        # ;& runs the next branch unasked, ;;& goes on looking for one that matches.
        if end == ";&" and chosen + 1 < len(items):
            chosen += 1
        elif end == ";;&" and chosen + 1 < len(items):
            later = _chosen_item(shell, node, subject, value, items[chosen + 1 :], patterns[chosen + 1 :])
            chosen = None if later is None else chosen + 1 + later
        else:
            chosen = None
    return status


def _chosen_item(
    shell: Shell, node: Node, subject: Node | None, value: str, items: list[Node], patterns: list[list[str]]
) -> int | None:
    if has_hole(value):
        if not items or subject is None:
            return None
        labels = tuple(f"{show(value)} is {' or '.join(own)}" for own in patterns)
        return decide(shell, node, labels, subject, items)
    for place, item in enumerate(items):
        for part in item.children_by_field_name("value"):
            glob = shell.expander.pattern(text_of(part).strip())
            matches = None if has_hole(glob) else glob_matches(value, glob, grouped=shell.grouped)
            if matches is None:
                labels = (f"{show(value)} is {show(glob)}", "it is not")
                matches = decide(shell, part, labels, part, items) == 0
            if matches:
                return place
    return None


def _run_item(shell: Shell, item: Node) -> Status:
    """Run the statements of a case's branch."""
    values = {part.id for part in item.children_by_field_name("value")}
    body = [child for child in item.named_children if child.id not in values and child.type != "comment"]
    return _each(shell, body)


def _for_statement(shell: Shell, node: Node) -> Status:
    name, body = child_of(node, "variable"), child_of(node, "body")
    values = [word for child in node.children_by_field_name("value") for word in shell.expander.words(child)]
    if name is None or body is None:
        return True
    if text_of(node.children[0]).strip() == "select":
        values = _selected(shell, node, text_of(name), values)
    elif not any(child.type == "in" for child in node.children):
        every = shell.positional("@")
        values = list(every.values()) if isinstance(every, dict) else []
    return _loop(shell, node, body, lambda turn: _set_turn(shell, text_of(name), values, turn))


def _selected(shell: Shell, node: Node, name: str, values: list[str]) -> list[str]:
    """Return what somebody at the keyboard selects: what the caller gave, else each is offered."""
    if name in shell.record.given:
        return [shell.record.given[name]]
    labels = tuple(f"{name} is {show(value)}" for value in values)
    return [values[shell.record.decide(line_of(node), labels, (name,), (name,))]] if values else [hole(name)]


def _set_turn(shell: Shell, name: str, values: list[str], turn: int) -> bool:
    if turn >= len(values):
        return False
    shell.assign(name, values[turn])
    return True


def _c_style_for_statement(shell: Shell, node: Node) -> Status:
    body, condition = child_of(node, "body"), child_of(node, "condition")
    update, start = (node.children_by_field_name(field) for field in ("update", "initializer"))
    _arithmetic(shell, start)
    if body is None:
        return True

    def goes_on(turn: int) -> bool:
        """Count on, then judge the condition; none always holds."""
        if turn:
            _arithmetic(shell, update)
        return condition is None or bool(_arithmetic(shell, [condition]))

    endless = condition is None and not _has_way_out(body)
    return _loop(shell, node, body, goes_on, ENDLESS_ROUNDS if endless else MAX_ROUNDS)


def _arithmetic(shell: Shell, nodes: Sequence[Node]) -> int | None:
    """Evaluate expressions between commas."""
    return shell.expander.number("".join(map(shell.expander.arithmetic_of, nodes)))


def _while_statement(shell: Shell, node: Node) -> Status:
    condition, body = child_of(node, "condition"), child_of(node, "body")
    if condition is None or body is None:
        return True
    wanted = text_of(node.children[0]).strip() == "while"

    def goes_on(turn: int) -> bool:
        """Judge the condition anew; an open one ends the loop."""
        status = shell.judged(condition)
        # Trying both ways at every turn would never end: what waits for the outside is taken as over.
        if status is None and turn == 0:
            shell.record.assume(f"the loop of line {line_of(node)} does not run")
        return status == wanted

    endless = text_of(condition).strip() in ENDLESS and not _has_way_out(body)
    return _loop(shell, node, body, goes_on, ENDLESS_ROUNDS if endless else MAX_ROUNDS)


def _has_way_out(body: Node) -> bool:
    return any(way in text_of(body) for way in WAYS_OUT)


def _loop(
    shell: Shell, node: Node, body: Node, goes_on: Callable[[int], bool], most: int = MAX_ROUNDS
) -> Status:
    """Run a loop; one that takes more rounds than are read leaves open what it sets, and says so."""
    status: Status = True
    before, budget = dict(shell.variables), shell.record.budget
    least = budget[0] // 2  # one loop does not use up what the rest of the script needs
    turn = 0
    while goes_on(turn):
        if turn >= most or budget[0] < least:
            _leave_open(shell, node, before, turn)
            return None
        turn += 1
        try:
            status = shell.block(body)
        except Leave as leave:
            if leave.kind not in ("break", "continue"):
                raise
            if leave.levels > 1:
                raise Leave(leave.kind, levels=leave.levels - 1) from None
            if leave.kind == "break":
                break
    return status


def _leave_open(shell: Shell, node: Node, before: Mapping[str, str | Array], rounds: int) -> None:
    """Leave open what a loop sets that is read no further."""
    line = line_of(node)
    changed = [name for name, value in shell.variables.items() if before.get(name) != value]
    named = f"; {', '.join(changed)} left open" if changed else ""
    shell.record.assume(f"the loop of line {line} is read for {rounds:,} rounds and goes on{named}")
    for name in changed:
        shell.forget(name)
        shell.assign(name, hole(f"{name} after the loop of line {line}"))


CONTROL: dict[str, Callable[[Shell, Node], Status]] = {
    "if_statement": _if_statement,
    "case_statement": _case_statement,
    "for_statement": _for_statement,
    "c_style_for_statement": _c_style_for_statement,
    "while_statement": _while_statement,
}
"""What runs a statement, by its kind in the tree."""
