"""Changes of plans: what somebody would write who wants a false plan to be accepted.

A change works on the parsed JSON of a plan. Numbers are moved consistently unless the name says alone. Afterwards the
certificate's own digest is made anew, as a forger would who has read how it is made, unless ``sealed`` is False.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from layoutopt.optimizer.solve.certificate import inputs_digest

if TYPE_CHECKING:
    from collections.abc import Iterator

Json = dict[str, Any]
Change = Callable[[Json], object]


class Right(StrEnum):
    """What verification has to say: a false plan is rejected, one that can't be read is bad input."""

    ACCEPTED = "accepted"
    REJECTED = "rejected"
    UNREADABLE = "unreadable"


@dataclass(frozen=True)
class Forgery:
    """One change, what is right, and whether the certificate's digest is made anew.

    ``named``: how the line begins that says that it was not checked.
    """

    change: Change
    right: Right = Right.REJECTED
    sealed: bool = True
    named: str = ""

    def made_of(self, plan: Json) -> Json:
        """Return a changed copy."""
        forged = copy.deepcopy(plan)
        self.change(forged)
        record = forged.get("certificate")
        if self.sealed and isinstance(record, dict):
            seal(record)
        return forged


@dataclass
class Others:
    """Further plans that forgeries of the dense plan borrow from, as parsed JSON."""

    roomy: Json = field(default_factory=dict)
    restricted: Json = field(default_factory=dict)


def seal(record: Json) -> None:
    """Write the digest that follows from the record's fields."""
    record["record_sha256"] = inputs_digest({k: v for k, v in record.items() if k != "record_sha256"})


def rehash(plan: Json) -> None:
    """Write the digest that follows from the inputs."""
    plan["certificate"]["inputs_sha256"] = inputs_digest(plan["inputs"])


def put(path: str, value: object) -> Change:
    """Set one value; a callable makes the new value from the old one."""

    def change(plan: Json) -> None:
        *parents, last = path.split("/")
        target: Any = plan
        for part in parents:
            target = target[int(part) if isinstance(target, list) else part]
        key = int(last) if isinstance(target, list) else last
        target[key] = value(target[key]) if callable(value) else value

    return change


def both(*changes: Change) -> Change:
    """Make several changes in turn."""

    def change(plan: Json) -> None:
        for each in changes:
            each(plan)

    return change


def times(factor: float) -> Callable[[Any], Any]:
    """Multiply a number, or every number of an object or a list."""

    def scaled(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: scaled(item) for key, item in value.items()}
        return [scaled(item) for item in value] if isinstance(value, list) else value * factor

    return scaled


def plus(number: float) -> Callable[[Any], Any]:
    """Add to a number."""
    return lambda value: value + number


def steps(factor: float, *, all_times: bool = False) -> Change:
    """Scale the step time wherever it stands, and all that follows from it."""

    def change(plan: Json) -> None:
        for part, name in (("objective", "step_time_s"), ("objective", "value"), ("estimate", "step_time_s")):
            plan[part][name] *= factor
        if all_times:
            bound(factor)(plan)
            for name in ("breakdown_s", "rank_time_s"):
                plan["estimate"][name] = times(factor)(plan["estimate"][name])
            for name in ("tokens_per_s_per_gpu", "tflops_per_gpu", "mfu_causal", "mfu_full", "hfu"):
                plan["estimate"][name] /= factor

    return change


def bound(factor: float, *, target: float | None = None) -> Change:
    """Scale the bound, with the gap that follows, and the gap target that would allow it."""

    def change(plan: Json) -> None:
        bound_s = plan["objective"]["bound_s"] * factor
        gap = max(0.0, 1 - bound_s / plan["objective"]["step_time_s"])
        for part in ("objective", "certificate"):
            plan[part] |= {"bound_s": bound_s, "gap": gap}
        if target is not None:
            plan["certificate"]["gap_target"] = target

    return change


def slower_answer(plan: Json, *, honest_bound: bool) -> None:
    """Present the first runner-up as the answer, with the true bound or with its own step time as bound."""
    other, *rest = plan["alternatives"]
    step_s = other["step_time_s"]
    plan["layout"], plan["estimate"], plan["alternatives"] = other["layout"], other["estimate"], rest
    plan["objective"] |= {"step_time_s": step_s, "value": step_s}
    if honest_bound:
        bound(1.0, target=0.27)(plan)
    else:
        for part in ("objective", "certificate"):
            plan[part] |= {"bound_s": step_s, "gap": 0.0}


def moved(source: str, target: str, number: int | None = None) -> Change:
    """Move tuples from one count of the certificate to another; all of them without a number."""

    def change(plan: Json) -> None:
        record = plan["certificate"]
        count = record[source] if number is None else number
        record[source] -= count
        record[target] += count

    return change


def fewer_tuples(plan: Json) -> None:
    """One tuple less, everywhere."""
    for name in ("tuples", "declared_tuples", "removed_by_bound"):
        plan["certificate"][name] -= 1


def another_rule(plan: Json) -> None:
    """A rule that removed five."""
    plan["certificate"]["removed_by_rule"]["of my own"] = 5
    plan["certificate"]["declared_tuples"] += 5


def between_rules(plan: Json) -> None:
    """Move one candidate from the first rule to the second."""
    rules = plan["certificate"]["removed_by_rule"]
    first, second, *_ = rules
    rules[first] -= 1
    rules[second] += 1


def inputs(path: str, value: object, *, hashed: bool = True) -> Change:
    """Change the inputs, and their digest."""
    change = put(f"inputs/{path}", value)
    return both(change, rehash) if hashed else change


def swapped_parts(plan: Json) -> None:
    """Exchange two parts of the step time, so that the sum stays."""
    parts = plan["estimate"]["breakdown_s"]
    parts["forward"], parts["backward"] = parts["backward"], parts["forward"]


def stage_layers(plan: Json) -> None:
    """Move one layer from the last stage that has two to the first stage."""
    stages = plan["layout"]["stages"]
    name = next(iter(stages[0]["kinds"]))
    fuller = next(stage for stage in reversed(stages) if stage["kinds"].get(name, 0) > 0)
    for stage, more in ((stages[0], 1), (fuller, -1)):
        stage["layers"] += more
        stage["kinds"][name] += more


def false_words(plan: Json) -> None:
    """What binds, warnings and reasons of one's own."""
    plan |= {"warnings": ["none needed"], "binds": ["nothing"], "reasons": ["it is the best"]}


def extra_keys(plan: Json) -> None:
    """Keys that a plan doesn't have."""
    for part in (plan, plan["objective"], plan["estimate"], plan["layout"], plan["certificate"]):
        part["note"] = "approved"
    plan["layout"]["stages"][0]["note"] = "approved"


def borrowed(plan: Json, other: Json, *names: str) -> None:
    """Take parts of another plan."""
    for name in names:
        plan[name] = copy.deepcopy(other[name])


def impossible(others: Others) -> Change:
    """The faster layout of a larger memory, said to fit."""

    def change(plan: Json) -> None:
        capacity = plan["estimate"]["memory"]["capacity_bytes"]
        borrowed(plan, others.roomy, "layout", "estimate", "objective")
        plan["certificate"] |= {name: plan["objective"][name] for name in ("bound_s", "gap")}
        plan["estimate"]["memory"]["capacity_bytes"] = capacity
        plan["alternatives"] = []

    return change


def hidden_restriction(others: Others) -> Change:
    """The plan of a restricted space, said to answer for the whole one."""

    def change(plan: Json) -> None:
        whole = plan["inputs"]
        plan.clear()
        plan.update(copy.deepcopy(others.restricted))
        plan["inputs"] = whole
        rehash(plan)

    return change


def exchanged(one: str, other: str) -> Change:
    """Exchange two values."""

    def change(plan: Json) -> None:
        values = [plan, plan]
        for place, path in enumerate((one, other)):
            for part in path.split("/"):
                values[place] = values[place][int(part) if isinstance(values[place], list) else part]  # type: ignore[index]
        both(put(one, values[1]), put(other, values[0]))(plan)

    return change


def without(path: str) -> Change:
    """Leave a value out."""
    *parents, last = path.split("/")

    def change(plan: Json) -> None:
        target: Any = plan
        for part in parents:
            target = target[int(part) if isinstance(target, list) else part]
        target.pop(last)

    return change


def invented(path: str, value: object, named: str = "") -> Forgery:
    """State under a key that no plan has: no rebuilt figure says otherwise, so that it is named as not checked."""
    key = named or "".join(f"[{part}]" if part.isdigit() else f".{part}" for part in path.split("/"))
    return Forgery(put(path, value), Right.ACCEPTED, named=f"{key.lstrip('.')} ")


def twice(plan: Json) -> None:
    """State the answer as its own runner-up."""
    one = copy.deepcopy(plan["alternatives"][0])
    one |= {name: plan[name] for name in ("layout", "estimate")} | {"slower": 0.0}
    one["step_time_s"] = plan["objective"]["step_time_s"]
    plan["alternatives"] = [one, *plan["alternatives"]]


def every_figure(plan: Json) -> Iterator[tuple[str, Forgery]]:
    """Yield a forgery for every statement of a plan by itself, of lists for their first entries; inputs left out."""
    seen = set()
    for path, value in _leaves(plan, ()):
        shape = tuple("*" if isinstance(key, int) else key for key in path)
        if path[0] == "inputs" or shape in seen:
            continue
        seen.add(shape)
        name = "/".join(map(str, path))
        yield name, Forgery(put(name, _another(value)), sealed=path[-1] != "record_sha256")


def _leaves(value: object, path: tuple[str | int, ...]) -> Iterator[tuple[tuple[str | int, ...], object]]:
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _leaves(inner, (*path, key))
    else:
        yield path, value


def _another(value: object) -> object:
    """Another value of the same kind."""
    match value:
        case bool():
            return not value
        case int():
            return value + 1
        case float():
            return value * 1.01 + 1e-9
        case str():
            return value + "x"
    return 1
