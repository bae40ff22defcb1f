"""What an answer can be the best in: quantities of a run, and statistics of its step over what constants may be."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches

from layoutopt.optimizer.cost.quantities import GOALS, Quantity
from layoutopt.optimizer.specs.errors import input_error

TIME = "time"
EXPECTED, QUANTILE, REGRET = "expected", "quantile", "regret"
MEAN = "mean"
NAMES = (*GOALS, EXPECTED, f"{QUANTILE}:0.9", REGRET, f"{REGRET}:{MEAN}")
"""Every objective as it is written; a quantile takes any share between 0 and 1."""

WORDS = {
    EXPECTED: "mean step",
    QUANTILE: "quantile of the step",
    REGRET: "how much slower than each set's own best layout",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Criterion:
    """One objective: ``quantity`` of a run, or a ``statistic`` of the step; ``share`` of a quantile, ``mean`` of regrets."""

    name: str
    quantity: Quantity | None = None
    statistic: str = ""
    share: float = 0.0
    mean: bool = False

    @property
    def is_time(self) -> bool:
        """Whether it is the step time itself."""
        return self.name == TIME

    @property
    def unit(self) -> str:
        """Unit of its values; none where they are shares."""
        if self.quantity is not None:
            return self.quantity.unit
        return "" if self.statistic == REGRET else "s"

    @property
    def words(self) -> str:
        """What is minimised, in words."""
        return self.quantity.meaning if self.quantity is not None else WORDS[self.statistic]


def parse_objective(text: str, *, key: str = "minimize") -> Criterion:
    """Read an objective: a goal's name, ``expected``, ``quantile:0.9``, ``regret`` or ``regret:mean``.

    Raises InputError with what would be valid.
    """
    if text in GOALS:
        return Criterion(name=text, quantity=GOALS[text])
    word, colon, rest = text.partition(":")
    if word == QUANTILE and colon:
        return Criterion(name=text, statistic=QUANTILE, share=_share(rest, key))
    if text in (EXPECTED, REGRET, f"{REGRET}:{MEAN}"):
        return Criterion(name=text, statistic=word, mean=rest == MEAN)
    near = get_close_matches(text, NAMES, n=1)
    hint = f"did you mean {near[0]}?" if near else f"one of {', '.join(NAMES)}"
    raise input_error(f"no objective {text[:40]!r}", hint, key=key)


def _share(text: str, key: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0 < share < 1:
        raise input_error(f"{text[:20]!r} is no share of the sets of constants", "quantile:0.9", key=key)
    return share
