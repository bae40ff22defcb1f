"""The cost model's constants as parameters of a fit: present value and what physics allows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from layoutopt.optimizer.cost.constants import constant_table
from layoutopt.optimizer.frameworks.preset import MEASURED, load_preset
from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.specs.errors import InputError, Problem, input_error
from layoutopt.optimizer.specs.gpu_catalog import generations
from layoutopt.optimizer.specs.kinds import nearest
from layoutopt.optimizer.topology.links import link_table

if TYPE_CHECKING:
    from collections.abc import Mapping

TIME_BOUNDS = {
    "host_layer_s": (1e-5, 0.02),
    "host_step_s": (0.0, 0.2),
    "hopper_gemm_speed": (0.5, 1.1),
    "attention_speed": (0.4, 1.6),
}
"""What a calibration may find: host time of one layer's launches and of one step, seconds, from full graphs to one slow
Python loop; and the framework's multiplications and attention kernels over the best ones' and over their kind's."""

MEMORY_BOUNDS = {"allocator_reserve": (0.0, 0.5), "overhead_bytes": (5e8, 1.6e10)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A constant that a fit may move: its present value and its bounds, and the ends of what a file may state."""

    name: str
    value: float
    bounds: tuple[float, float]
    possible: tuple[float, float]

    def clipped(self, value: float) -> float:
        """Return the allowed value next to ``value``."""
        return min(max(value, self.bounds[0]), self.bounds[1])


@cache
def known_parameters() -> Mapping[str, Parameter]:
    """Return every constant that a calibration may name: cost, topology, measured preset fields, scale."""
    table = {
        name: Parameter(name=name, value=entry.value, bounds=entry.bounds, possible=entry.possible)
        for name, entry in constant_table().items()
    }
    # Bounds hold a fit near its sources; what a user states is refused only where no machine has it.
    table |= {
        name: Parameter(name=name, value=entry.value, bounds=entry.limits, possible=entry.possible)
        for name, entry in link_table().items()
    }
    for framework in Framework:
        preset = load_preset(framework)
        for field in MEASURED:
            name = f"{field}.{framework.value}"
            bounds = (TIME_BOUNDS | MEMORY_BOUNDS)[field]
            value = float(getattr(preset, field))
            table[name] = Parameter(name=name, value=value, bounds=bounds, possible=bounds)
    return table


def check_values(values: Mapping[str, float], *, file: str = "") -> dict[str, float]:
    """Return values of constants after checking name, finiteness, sign and bounds.

    Raises
    ------
    InputError
        With one problem per value.
    """
    problems = [problem for name, value in values.items() if (problem := _problem(name, value, file))]
    if problems:
        raise InputError(*problems)
    return {name: float(value) for name, value in values.items()}


def check_calibration(calibration: Mapping[str, float], *, file: str = "") -> None:
    """Refuse names that no constant has, each with the nearest, and values that no machine has.

    What stands before a dot sets all under it. Constants of GPU families may be named for a family that has none yet.

    Raises
    ------
    InputError
        With one problem per name or value.
    """
    problems = [
        problem for name, value in calibration.items() if (problem := _stated_problem(name, value, file))
    ]
    if problems:
        raise InputError(*problems)


def _stated_problem(name: str, value: float, file: str) -> Problem | None:
    possible = _possible(name)
    if possible is None:
        what = f"unknown constant {name[:60]!r}{nearest(name, known_parameters())}"
        allowed = "names of docs/fidelity.md, or that calibrate writes"
        return Problem(what=what, allowed=allowed, key="calibration", file=file)
    low, high = possible
    if low <= value <= high:
        return None
    allowed = f"{low:g} to {high:g}" if low > 0 else f"above 0, at most {high:g}"
    return Problem(what=f"{name} = {value:g} is impossible", allowed=allowed, key="calibration", file=file)


def _possible(name: str) -> tuple[float, float] | None:
    """Return the least and the most that may be stated of a constant, or of all below a name; None of no constant."""
    known = known_parameters()
    if name in known:
        return known[name].possible
    grouped = name in {link.partition(".")[0] for link in link_table()}
    if not grouped and not _of_other_family(name):
        return None
    stem = f"{name.partition('.')[0]}."
    # A family of which the package knows nothing has the widest range of those that it knows.
    alike = [one.possible for other, one in known.items() if other.startswith(stem) or other == name]
    return min(low for low, _ in alike), max(high for _, high in alike)


def _of_other_family(name: str) -> bool:
    """Whether a name is a constant of GPU families, of one for which the package has no value."""
    families = {*generations(), *(generation.name for generation in generations().values())}
    stem, _, family = name.partition(".")
    return family in families and any(f"{stem}.{other}" in known_parameters() for other in families)


def _problem(name: str, value: float, file: str) -> Problem | None:
    known = known_parameters()
    if name not in known:
        return Problem(what=f"unknown constant {name!r}", key="calibration", file=file)
    low, high = known[name].bounds
    if not math.isfinite(value) or not low <= value <= high:
        what = f"{name} = {value:g}"
        return Problem(what=what, allowed=f"{low:g} to {high:g}", key="calibration", file=file)
    return None


def parameter(name: str) -> Parameter:
    """Return a constant by name. Raises ``InputError`` for an unknown one."""
    known = known_parameters()
    if name not in known:
        raise input_error(f"unknown constant {name!r}", f"one of {len(known)} names", key="calibration")
    return known[name]
