"""Which constants a fit moves, how far, and which runs depend on each."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from layoutopt.optimizer.evidence.parameters import HOST_BOUNDS, Parameter, known_parameters
from layoutopt.optimizer.specs.errors import InputError, Problem
from layoutopt.optimizer.specs.vocabulary import Framework

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from layoutopt.optimizer.evidence.case import Case

MOST_GLOBAL = 30
MOST_PER_FRAMEWORK = 4
"""Limits on fitted constants: more would describe the rows instead of the hardware."""

_FRAMEWORKS = frozenset(framework.value for framework in Framework)


@dataclass(frozen=True, slots=True, kw_only=True)
class FitPlan:
    """The constants to fit.

    ``parameters`` give start, bounds and prior centre of each; ``sigma`` is the prior's standard deviation
    in log units. Constants are fitted in log space, those that may be 0 above a floor of 1e-6 of their upper
    bound.
    """

    parameters: tuple[Parameter, ...]
    sigma: float = 0.5

    @property
    def names(self) -> tuple[str, ...]:
        """Names in fit order."""
        return tuple(item.name for item in self.parameters)

    def values(self, logs: Sequence[float]) -> dict[str, float]:
        """Turn log values in fit order into constants."""
        return {item.name: math.exp(log) for item, log in zip(self.parameters, logs, strict=True)}

    def start(self) -> list[float]:
        """Return the log of the present values, inside the bounds."""
        return [math.log(min(max(item.value, low), high)) for item, low, high in self._ranges()]

    def bounds(self) -> tuple[list[float], list[float]]:
        """Return log bounds in fit order."""
        ranges = self._ranges()
        return [math.log(low) for _, low, _ in ranges], [math.log(high) for _, _, high in ranges]

    def _ranges(self) -> list[tuple[Parameter, float, float]]:
        return [
            (item, max(item.bounds[0], 1e-6 * item.bounds[1]), item.bounds[1]) for item in self.parameters
        ]


def parse_plan(data: Mapping[str, Any], cases: Sequence[Case], file: str = "") -> FitPlan:
    """Build the plan of a plan file: ``global`` names, ``per_framework`` fields, ``sigma``.

    Constants that no case depends on are left out.

    Raises
    ------
    InputError
        For unknown constants, and for more than 30 global ones or 4 per framework.
    """
    shared, fields = list(data.get("global", [])), list(data.get("per_framework", []))
    frameworks = sorted({case.framework.value for case in cases})
    known = known_parameters()
    unknown = [name for name in shared if name not in known]
    unknown += [field for field in fields if field not in HOST_BOUNDS]
    problems = [Problem(what=f"unknown constant {name!r}", key="global", file=file) for name in unknown]
    if len(shared) > MOST_GLOBAL or len(fields) > MOST_PER_FRAMEWORK:
        what = f"{len(shared)} global constants and {len(fields)} per framework"
        problems.append(Problem(what=what, allowed=f"{MOST_GLOBAL} and {MOST_PER_FRAMEWORK}", file=file))
    if problems:
        raise InputError(*problems)
    names = shared + [f"{field}.{framework}" for field in fields for framework in frameworks]
    used = [name for name in names if any(concerns(name, case) for case in cases)]
    return FitPlan(parameters=tuple(known[name] for name in used), sigma=float(data.get("sigma", 0.5)))


def concerns(name: str, case: Case) -> bool:
    """Whether a case's price may depend on a constant: its part after the dot names a GPU or a framework."""
    family = name.partition(".")[2]
    if not family:
        return True
    if family in _FRAMEWORKS:
        return family == case.framework.value
    architecture = case.cluster.gpu.architecture
    if any(other == family or other.partition("-")[0] == family for other in _architectures()):
        return family in (architecture, architecture.partition("-")[0])
    return True


def _architectures() -> set[str]:
    prefixes = ("gemm_cap.", "attention_cap.")
    return {name.partition(".")[2] for name in known_parameters() if name.startswith(prefixes)}
