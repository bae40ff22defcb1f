"""Types of command-line values: words with a nearest match, quantities with units, shares."""

from __future__ import annotations

import re
from math import isfinite
from typing import TYPE_CHECKING, Any

import click

from layoutopt.optimizer.cost.objectives import NAMES as OBJECTIVES
from layoutopt.optimizer.cost.objectives import parse_objective
from layoutopt.optimizer.cost.quantities import GOALS
from layoutopt.optimizer.frameworks.registry import FRAMEWORK_ALIASES, Framework
from layoutopt.optimizer.specs.errors import InputError, Problem
from layoutopt.optimizer.specs.vocabulary import Precision, Saver, collective_spelt
from layoutopt.optimizer.specs.workload import MAX_COUNT

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    Value = click.ParamType[Any]
else:
    Value = click.ParamType  # generic for type checkers only: click 8.2 can't subscript it


def near_hint(text: str, known: Iterable[str]) -> str:
    """Write "did you mean ...?" for the nearest known words, or list them all where none is near."""
    from difflib import get_close_matches

    words = list(known)
    near = get_close_matches(text.lower(), words, n=2)
    return f"did you mean {' or '.join(near)}?" if near else f"one of {', '.join(words)}"


def option_problem(param: click.Parameter | None, what: str, allowed: str) -> InputError:
    """Build the error of one option's value."""
    return InputError(Problem(what=what, allowed=allowed, key=param_key(param) if param else ""))


def param_key(param: click.Parameter) -> str:
    """Return what messages call an option or argument: the long of an option's names, an argument without its brackets."""
    option = isinstance(param, click.Option)
    return max(param.opts, key=len) if option else param.human_readable_name.strip("[].")


class Word(Value):
    """One of several words, in any case; aliases map to the word that they stand for."""

    name = "word"

    def __init__(
        self, words: Iterable[str], aliases: Mapping[str, str] | None = None, metavar: str = ""
    ) -> None:
        self.words = tuple(str(word) for word in words)
        self.aliases = {alias: str(word) for alias, word in (aliases or {}).items()}
        self.metavar = metavar

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        """Show the words, or a name for them where there are many."""
        return self.metavar or f"[{'|'.join(self.words)}]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the word; raises ``InputError`` with the nearest one."""
        text = str(value).lower()
        word = self.aliases.get(text, text)
        if word not in self.words:
            hint = near_hint(text, (*self.words, *self.aliases))
            raise option_problem(param, f"{str(value)[:60]!r} is unknown", hint)
        return word

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
        """Offer the words that start with what is typed."""
        from click.shell_completion import CompletionItem

        return [CompletionItem(word) for word in self.words if word.startswith(incomplete.lower())]


FRAMEWORK = Word(Framework, FRAMEWORK_ALIASES, metavar="NAME")


class Spelled(Word):
    """A collective as NCCL, its tests and torch spell it: ``all_reduce``, ``AllReduce``, ``all_gather_into_tensor``."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the word; raises ``InputError`` with the nearest one."""
        return super().convert(collective_spelt(str(value), self.words) or value, param, ctx)


class Words(Word):
    """Several of the words, joined by commas."""

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        """Show the words and that more may follow."""
        return f"{super().get_metavar(param, ctx)}[,...]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the words in the order given, each once."""
        # Click converts defaults too, which are no text.
        if isinstance(value, tuple):
            return value
        convert = super().convert
        return tuple(dict.fromkeys(convert(one.strip(), param, ctx) for one in str(value).split(",")))


PRECISIONS = Words(Precision)
OFFLOAD = "offload"
SAVER = Word((*Saver, OFFLOAD), metavar="SAVER")
GOAL = Word(GOALS)
GOALS_OF = Words(GOALS)


class ObjectiveName(Word):
    """An objective: a goal, or a statistic over sets of constants."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the name; raises ``InputError`` with the nearest one."""
        name = str(value).lower()
        parse_objective(name, key=param.opts[0] if param is not None else "minimize")
        return name


OBJECTIVE = ObjectiveName(OBJECTIVES, metavar="OBJECTIVE")
COST_KINDS = Word(("full", "simple"))


class Setting(Value):
    """``NAME=VALUE``: a variable of a script."""

    name = "setting"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return name and value; raises ``InputError`` for a name that no variable can have."""
        if isinstance(value, tuple):
            return value
        name, equals, text = str(value).partition("=")
        if not equals or not name.isidentifier() or not name.isascii():
            raise option_problem(param, f"{str(value)[:60]!r} is no setting", "NAME=VALUE, e.g. TP=8")
        return name, text


class Argument(Value):
    """``N=VALUE``: an argument of a script by its position from 1."""

    name = "argument"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return position and value; raises ``InputError`` for what is no position."""
        if isinstance(value, tuple):
            return value
        place, equals, text = str(value).partition("=")
        if not equals or not re.fullmatch(r"[1-9][0-9]?", place):
            raise option_problem(
                param, f"{str(value)[:60]!r} is no argument", "N=VALUE with N from 1 to 99, e.g. 1=8"
            )
        return int(place), text


class Whole(Value):
    """A whole number within limits."""

    name = "integer"

    def __init__(self, least: int, most: int, *, of_tokens: bool = False, tokens_option: str = "") -> None:
        self.least = least
        self.most = most
        self.of_tokens = of_tokens
        self.tokens_option = tokens_option

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        """Show that it counts."""
        return "N"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number (``8192``, ``8,192``, ``8Ki``, ``2k``); raises ``InputError`` with the limits."""
        from layoutopt.optimizer.specs import units

        tokens = units.whole_number(value, units.TOKENS)
        number = tokens if self.of_tokens else units.whole_number(value)
        # 16M behind --batch is meant in tokens: so many sequences are in no batch.
        if number is None and tokens is not None and self.tokens_option:
            hint = f"{self.tokens_option} {units.format_count(tokens)}"
            raise option_problem(param, f"{str(value)[:60]!r} counts tokens", hint)
        if number is None or not self.least <= number <= self.most:
            allowed = f"whole numbers from {self.least} to {self.most:,}"
            raise option_problem(param, f"{str(value)[:60]!r} is not valid", allowed)
        return number


COUNT = Whole(1, MAX_COUNT)
TOKEN_COUNT = Whole(1, MAX_COUNT, of_tokens=True)
SEQUENCES = Whole(1, MAX_COUNT, tokens_option="--batch-tokens")


class Number(Value):
    """A finite number: ``least`` or more, or above it with ``positive``; ``most`` is the largest."""

    name = "number"

    def __init__(
        self, metavar: str, *, positive: bool = False, least: float = 0.0, most: float = float("inf")
    ) -> None:
        self.metavar = metavar
        self.positive = positive
        self.least = least
        self.most = most

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        """Show what is counted."""
        return self.metavar

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number; raises ``InputError`` with the limits."""
        try:
            number = float(str(value))
        except ValueError:
            number = float("nan")
        # What is no number falls through to the one message that names the limits.
        below = number <= self.least if self.positive else number < self.least
        if not isfinite(number) or below or number > self.most:
            allowed = (
                f"a number above {self.least:g}" if self.positive else f"a number, {self.least:g} or more"
            )
            allowed += f", up to {self.most:,.10g}" if isfinite(self.most) else ""
            raise option_problem(param, f"{str(value)[:60]!r} is not valid", allowed)
        return number


_RELEASE = r"\d{1,6}(\.\d{1,6})+|\bera\s*[abc]\b|\b(19|20)\d\d\b"


class Release(Value):
    """A release of a trainer; what cannot be compared with others is refused instead of taken for the newest."""

    name = "release"

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        """Show what it is."""
        return "RELEASE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the text; raises ``InputError`` if it holds no numbers, no date and no era (``A`` is ``era A``)."""
        text = str(value)
        if re.fullmatch(r"\s*[abc]\s*", text, re.IGNORECASE):
            return f"era {text.strip().upper()}"
        if len(text) > 60 or not re.search(_RELEASE, text.lower()):
            examples = '"0.15", "core 0.9", "NeMo 25.02", "v0.2.2", "era C", or a date: "2022", "2022-05"'
            raise option_problem(param, f"{text[:60]!r} is no release", examples)
        return text


class QuantityText(Value):
    """A number with an optional unit, read as SI; ``dimension`` names a constant of ``specs.units``."""

    name = "quantity"

    def __init__(self, dimension: str, metavar: str) -> None:
        self.dimension = dimension
        self.metavar = metavar

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        """Show what is counted."""
        return self.metavar

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the SI number; raises ``InputError`` unless it is above 0."""
        from layoutopt.optimizer.specs import units

        dimension = getattr(units, self.dimension)
        key = max(param.opts, key=len) if param else ""
        number = units.parse_quantity(units.without_commas(str(value)), dimension, key=key)
        if not number > 0:
            raise option_problem(param, f"{value} is out of range", "above 0")
        return number


class Share(Value):
    """A share: ``0.01`` or ``1%``. With ``percent`` a bare number is in percent; with ``whole`` it may be all."""

    name = "share"

    def __init__(self, metavar: str, *, percent: bool = False, whole: bool = False) -> None:
        self.metavar = metavar
        self.percent = percent
        self.whole = whole

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        """Show how it is written."""
        return self.metavar

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the share; raises ``InputError`` unless it is from 0 to below 1, or 1 where all is allowed."""
        text = str(value).strip()
        # A default is a share already; only what is typed is in percent.
        in_percent = (self.percent and not isinstance(value, float)) or text.endswith("%")
        try:
            number = float(text.removesuffix("%")) / (100 if in_percent else 1)
        except ValueError:
            number = float("nan")
        if not (0 <= number < 1 or (self.whole and number == 1)):
            allowed = "0% to 100%" if self.whole else "0% up to below 100%"
            raise option_problem(param, f"{text[:60]!r} is no share", allowed)
        return number
