"""Read shell scripts without running them: quotes, continuations, assignments, arrays and ``${VAR}``.

What only a shell could know (command substitution, positional parameters, variables from outside) stays in
the text as ``$...``; whoever needs that value reports it by name.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field

from layoutopt.optimizer.specs.errors import InputError, input_error

Value = str | list[str]

MAX_VALUE = 200_000
MAX_WORDS = 50_000
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\+?)=")
_PARAMETER = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\[[@*]\])?(?::?[-=](.*))?", re.DOTALL)
_HEREDOC = re.compile(r"<<-?\s*(['\"]?)([A-Za-z_]\w*)\1([^\n]*)\n")
_OPENING = ("if", "for", "while", "until", "case")
_CLOSING = ("fi", "done", "esac")
_DECLARING = ("export", "declare", "local", "readonly", "typeset", "set")


@dataclass(slots=True)
class Script:
    """Commands as word lists, the variables at the end, heredoc bodies by the file they are written to."""

    commands: list[list[str]] = field(default_factory=list)
    variables: dict[str, Value] = field(default_factory=dict)
    heredocs: dict[str, str] = field(default_factory=dict)
    uncertain: set[str] = field(default_factory=set)


def parse_script(text: str, file: str = "") -> Script:
    """Split a script into commands with every variable that it sets itself expanded."""
    script = Script()
    reader = _Reader(_without_heredocs(text.replace("\r\n", "\n"), script), script, file)
    reader.run()
    return script


def _without_heredocs(text: str, script: Script) -> str:
    while match := _HEREDOC.search(text):
        end = re.compile(rf"^\s*{re.escape(match[2])}\s*$", re.MULTILINE).search(text, match.end())
        body = text[match.end() : end.start() if end else len(text)]
        line_start = text.rfind("\n", 0, match.start()) + 1
        target = re.search(r">\s*([^\s<>|&;]+)", text[line_start : match.start()] + match[3])
        if target:
            script.heredocs[target[1].strip("'\"")] = body
        text = text[: match.start()] + match[3] + "\n" + (text[end.end() :] if end else "")
    return text


class _Reader:
    """One pass over the characters; words are expanded as they are read, so order of assignment holds."""

    def __init__(self, text: str, script: Script, file: str) -> None:
        self.text = text
        self.script = script
        self.file = file
        self.at = 0
        self.depth = 0
        self.words: list[str] = []
        self.word: list[str] | None = None
        self.total = 0

    def run(self) -> None:
        """Read the whole text."""
        while self.at < len(self.text):
            self.step()
        self.end_statement()

    def step(self) -> None:
        """Read the next piece of the text, or what ends a word or a statement."""
        char = self.text[self.at]
        if char == "#" and self.word is None:
            self.skip_line()
        elif char == "\\":
            self.escape()
        elif char in " \t":
            self.end_word()
            self.at += 1
        elif char == "(" and self.word and _ASSIGNMENT.fullmatch("".join(self.word)):
            self.array()
        elif char in "\n;&|()" and not self.text.startswith(">&", self.at - 1):
            self.end_statement()
            self.at += 1
        else:
            self.piece(char)

    def piece(self, char: str) -> None:
        """Read a quoted string, an expansion or a plain character."""
        if char == "'":
            end = self.closing("'", self.at + 1)
            self.add(self.text[self.at + 1 : end])
            self.at = end + 1
        elif char == '"':
            self.double_quoted()
        elif char in "$`":
            self.expansion(quoted=False)
        else:
            self.add(char)
            self.at += 1

    def closing(self, mark: str, start: int) -> int:
        """Return where a quote ends; one that never does raises ``InputError``."""
        end = self.text.find(mark, start)
        if end < 0:
            line = self.text.count("\n", 0, self.at) + 1
            raise input_error(f"quote {mark} is never closed", file=self.file, line=line)
        return end

    def skip_line(self) -> None:
        """Pass over the rest of the line."""
        end = self.text.find("\n", self.at)
        self.at = len(self.text) if end < 0 else end

    def escape(self) -> None:
        """Take the character after a backslash as it is; a line break joins lines."""
        following = self.text[self.at + 1 : self.at + 2]
        if following == "\n":
            self.end_word()
        elif following:
            self.add(following)
        self.at += 2

    def add(self, text: str) -> None:
        """Append text to the word."""
        # an empty string in quotes is a word too, so None and empty differ
        if self.word is None:
            self.word = []
        self.word.append(text)

    def double_quoted(self) -> None:
        """Read a string in which variables are expanded."""
        self.add("")
        self.at += 1
        while self.at < len(self.text):
            char = self.text[self.at]
            if char == '"':
                self.at += 1
                return
            if char == "\\" and self.text[self.at + 1 : self.at + 2] in ('"', "\\", "$", "`", "\n"):
                self.add(self.text[self.at + 1].replace("\n", ""))
                self.at += 2
            elif char in "$`":
                self.expansion(quoted=True)
            else:
                self.add(char)
                self.at += 1
        raise input_error('quote " is never closed', file=self.file)

    def expansion(self, *, quoted: bool) -> None:
        """Read a variable or substitution."""
        value, end = _expand(self.text, self.at, self.script)
        self.at = end
        if isinstance(value, list):
            self.add_many(value, join=False)
        elif quoted:
            self.add(value)
        else:
            # an unquoted expansion is split into words, as the shell does
            self.add_many(value.split(), join=True)

    def add_many(self, parts: list[str], *, join: bool) -> None:
        """Add an expansion that makes several words; with ``join`` the first continues the current word."""
        for index, part in enumerate(parts):
            if index or (not join and self.word and "".join(self.word)):
                self.end_word()
            self.add(part)

    def array(self) -> None:
        """Read the elements of an array assignment."""
        name = "".join(self.word or [])
        inner = _Reader(self.text, self.script, self.file)
        inner.at = self.at + 1
        while inner.at < len(self.text) and self.text[inner.at] != ")":
            if self.text[inner.at] in "\n;&|(":
                inner.end_word()
                inner.at += 1
            else:
                inner.step()
        inner.end_word()
        self.at = inner.at + 1
        self.word = None
        match = _ASSIGNMENT.match(name)
        if match:
            self.assign(match[1], inner.words, append=match[2] == "+")

    def end_word(self) -> None:
        """Close the word, if there is one."""
        if self.word is not None:
            self.total += 1
            word = "".join(self.word)
            if len(word) > MAX_VALUE or self.total > MAX_WORDS:
                raise input_error("script is too long", file=self.file)
            self.words.append(word)
        self.word = None

    def end_statement(self) -> None:
        """Close the statement, without the reserved words in front."""
        self.end_word()
        words, self.words = self.words, []
        # reserved words stand in front of the command that they introduce
        while words and words[0] in ("then", "else", "do", "{", "}", "!", "time", "elif"):
            words = words[1:]
        if not words:
            return
        if words[0] in _OPENING or words[0] in _CLOSING:
            self.depth = max(0, self.depth + (1 if words[0] in _OPENING else -1))
            return
        self.statement(words)

    def statement(self, words: list[str]) -> None:
        """Take assignments, and keep the command behind them."""
        if words[0] in _DECLARING:
            words = [word for word in words[1:] if not word.startswith("-")]
        rest = 0
        while rest < len(words) and (match := _ASSIGNMENT.match(words[rest])):
            self.assign(match[1], words[rest][match.end() :], append=match[2] == "+")
            rest += 1
        if words[rest:]:
            self.script.commands.append(words[rest:])

    def assign(self, name: str, value: Value, *, append: bool) -> None:
        """Set or extend a variable."""
        before = self.script.variables.get(name)
        if append and before is not None:
            joined = isinstance(value, list) or isinstance(before, list)
            value = [*_as_list(before), *_as_list(value)] if joined else f"{before}{value}"
        # which branch runs is only known when it runs: a value that may change there is not used
        if self.depth and before is not None and before != value and not append:
            self.script.uncertain.add(name)
        if sum(map(len, _as_list(value))) > MAX_VALUE:
            raise input_error(f"variable {name} grows too long", file=self.file)
        self.script.variables[name] = value


def _as_list(value: Value) -> list[str]:
    return value if isinstance(value, list) else [value]


def _expand(text: str, at: int, script: Script) -> tuple[Value, int]:
    """Expand what starts at ``text[at]`` ($ or backquote); return the value and the position behind it."""
    if text[at] == "`":
        end = text.find("`", at + 1)
        return "$(...)", len(text) if end < 0 else end + 1
    if text.startswith("$((", at):
        end = text.find("))", at)
        end = len(text) if end < 0 else end
        return _arithmetic(text[at + 3 : end], script), end + 2
    if text.startswith("$(", at):
        return "$(...)", _balanced(text, at + 1, "(", ")")
    if text.startswith("${", at):
        end = _balanced(text, at + 1, "{", "}")
        return _parameter(text[at + 2 : end - 1], script), end
    match = _NAME.match(text, at + 1)
    if not match:
        return text[at : at + 2], at + 2
    return _lookup(match[0], None, script), match.end()


def _balanced(text: str, at: int, opening: str, closing: str) -> int:
    depth = 0
    for index in range(at, len(text)):
        depth += (text[index] == opening) - (text[index] == closing)
        if depth == 0:
            return index + 1
    return len(text)


def _parameter(inner: str, script: Script) -> Value:
    match = _PARAMETER.fullmatch(inner)
    if not match:
        return "${" + inner + "}"
    value = _lookup(match[1], match[3], script)
    # "${ARGS[@]}" keeps its words apart even inside quotes
    return _as_list(value) if match[2] and not (isinstance(value, str) and value.startswith("$")) else value


def _lookup(name: str, default: str | None, script: Script) -> Value:
    value = script.variables.get(name)
    if value is None or name in script.uncertain:
        return _plain(default, script) if default is not None and value is None else f"${name}"
    return value


def _plain(text: str, script: Script) -> str:
    # a default may name another variable; one level is all that launch scripts use
    return re.sub(
        r"\$\{?([A-Za-z_]\w*)\}?", lambda match: str(script.variables.get(match[1], match[0])), text
    ).strip("'\"")


def _arithmetic(text: str, script: Script) -> str:
    plain = re.sub(
        r"\$?\{?([A-Za-z_]\w*)\}?", lambda match: str(script.variables.get(match[1], match[0])), text
    )
    try:
        return str(evaluate_integers(plain))
    except InputError:
        return f"$(({text.strip()}))"


def evaluate_integers(text: str) -> int:
    """Evaluate whole-number arithmetic (+ - * / %), the only kind launch files need; never calls anything."""
    try:
        return _fold(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        raise input_error(f"cannot evaluate {text.strip()[:40]!r}", "numbers with + - * / %") from None


def _fold(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int and abs(node.value) < 10**18:
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_fold(node.operand)
    if not isinstance(node, ast.BinOp):
        raise ValueError("not arithmetic")
    left, right = _fold(node.left), _fold(node.right)
    if isinstance(node.op, ast.Add):
        return left + right
    if isinstance(node.op, ast.Sub):
        return left - right
    if isinstance(node.op, ast.Mult):
        return left * right
    if isinstance(node.op, ast.Div | ast.FloorDiv):
        return left // right
    if isinstance(node.op, ast.Mod):
        return left % right
    raise ValueError("operator not supported")
