"""Say in words what a plan's claim is restricted to: the space, the search and the constants that its inputs state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from layoutopt.optimizer.cost.factory import CostKind
from layoutopt.optimizer.solve.inputs import Question
from layoutopt.optimizer.solve.plan import SolveOptions

if TYPE_CHECKING:
    from collections.abc import Iterator

_LIMITS = {"fix": "{} = {}", "forbid": "{} other than {}", "max": "{} at most {}", "min": "{} at least {}"}


def restrictions(question: Question) -> tuple[str, ...]:
    """Name the trainer and everything that differs from what is asked by default."""
    whole = Question(workload=question.workload, cluster=question.cluster, options=SolveOptions())
    asked, default = question.to_plain(), whole.to_plain()
    return (
        f"what {question.options.framework.value} can launch",
        *_of_space(asked["space"], default["space"]),
        *_of_prices(question),
        *_of_goals(question),
    )


def _of_space(asked: dict[str, Any], default: dict[str, Any]) -> Iterator[str]:
    for name, value in asked.items():
        if value == default.get(name):
            continue
        if isinstance(value, dict):
            words = _LIMITS.get(name, "{} = {}")
            yield from (words.format(key, _listed(item)) for key, item in value.items())
        elif name == "require":
            yield from (f"what meets {text}" for text in value)
        else:
            yield f"{name.replace('_', ' ')}: {_listed(value)}"


def _of_prices(question: Question) -> Iterator[str]:
    options = question.options
    if options.gap:
        yield f"a gap of at most {options.gap:.3%}: that near the best was asked for"
    if options.cost is not CostKind.FULL:
        yield f"prices of the {options.cost.value} cost model"
    for name, value in question.cluster.calibration.items():
        yield f"the cluster's own constant {name} = {value:.6g}"


def _of_goals(question: Question) -> Iterator[str]:
    options = question.options
    if options.then is not None:
        among = f"at most {options.within:.3%} slower than" if options.within else "as fast as"
        yield f"the best in {options.then} of what is {among} the fastest"
    if options.constrain is not None:
        yield f"what the Python function {question.to_plain()['constrain']} allows"


def _listed(value: object) -> str:
    """Write a value, or the values of a list; each on one line and short."""
    parts = value if isinstance(value, list) else [value]
    return " or ".join("+".join(map(str, part)) if isinstance(part, list) else str(part) for part in parts)
