"""Which constants a fit moves, how far, and which runs depend on each."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from layoutopt.optimizer.cost.hardware import EIGHT_BIT, HOPPER
from layoutopt.optimizer.evidence.parameters import TIME_BOUNDS, Parameter, known_parameters
from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.specs.errors import InputError, Problem
from layoutopt.optimizer.specs.gpu_catalog import generations
from layoutopt.optimizer.specs.vocabulary import Precision

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from layoutopt.optimizer.evidence.case import Case

MOST = 40
"""Limit on fitted constants: more would describe the rows instead of the hardware."""

RANGE_SIGMAS = 4.0
"""Standard deviations from one end of a source's range to the other."""

_FRAMEWORKS = frozenset(framework.value for framework in Framework)


@dataclass(frozen=True, slots=True, kw_only=True)
class FitPlan:
    """The constants to fit.

    ``parameters`` give start and range of each. Priors are normal in the logarithm: centred on the middle of the range, or
    on ``priors`` where one is given, with a quarter of the range's width as standard deviation, or ``sigma``; then a fit
    ends at the same values wherever it starts. ``ties`` names constants that take the same value as a fitted one.
    Constants are fitted in log space, those that may be 0 above a floor of 1e-6 of their upper bound.
    """

    parameters: tuple[Parameter, ...]
    sigma: float | None = None
    priors: Mapping[str, float] = field(default_factory=dict)
    ties: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """Names in fit order."""
        return tuple(item.name for item in self.parameters)

    def values(self, logs: Sequence[float]) -> dict[str, float]:
        """Turn log values in fit order into constants, tied ones included."""
        fitted = {item.name: math.exp(log) for item, log in zip(self.parameters, logs, strict=True)}
        return fitted | {other: fitted[name] for name, others in self.ties.items() for other in others}

    def start(self) -> list[float]:
        """Return the log of the present values, inside the bounds."""
        return [math.log(min(max(item.value, low), high)) for item, low, high in self._ranges()]

    def centre(self) -> list[float]:
        """Return the log of the priors' centres, inside the bounds."""
        return [
            min(
                max(math.log(self.priors.get(item.name, math.sqrt(low * high))), math.log(low)),
                math.log(high),
            )
            for item, low, high in self._ranges()
        ]

    def sigmas(self) -> list[float]:
        """Return the priors' standard deviations in log units."""
        return [self.sigma or math.log(high / low) / RANGE_SIGMAS for _, low, high in self._ranges()]

    def concerns(self, name: str, case: Case) -> bool:
        """Whether a case's price may depend on a fitted constant or one tied to it."""
        return any(concerns(one, case) for one in (name, *self.ties.get(name, ())))

    def bounds(self) -> tuple[list[float], list[float]]:
        """Return log bounds in fit order."""
        ranges = self._ranges()
        return [math.log(low) for _, low, _ in ranges], [math.log(high) for _, _, high in ranges]

    def _ranges(self) -> list[tuple[Parameter, float, float]]:
        return [
            (item, max(item.bounds[0], 1e-6 * item.bounds[1]), item.bounds[1]) for item in self.parameters
        ]


def parse_plan(data: Mapping[str, Any], cases: Sequence[Case], file: str = "") -> FitPlan:
    """Build the plan of a plan file: ``global`` and ``per_framework``.

    Global constants move in the range that their table states, ``same`` names constants that take the same value too;
    fields of presets in the ``range`` stated here. Constants that no case depends on are
    left out.

    Raises
    ------
    InputError
        For unknown constants, and for more than 40.
    """
    shared: dict[str, Any] = dict(data.get("global", {}))
    fields: dict[str, Any] = dict(data.get("per_framework", {}))
    known = known_parameters()
    ties = {name: tuple(entry["same"]) for name, entry in (shared | fields).items() if "same" in entry}
    wanted = [*shared, *(other for others in ties.values() for other in others)]
    unknown = [name for name in wanted if name not in known]
    unknown += [name for name in fields if name.partition(".")[0] not in TIME_BOUNDS or name not in known]
    problems = [Problem(what=f"unknown constant {name!r}", key="global", file=file) for name in unknown]
    own = (
        {}
        if unknown
        else {name: replace(known[name], bounds=tuple(entry["range"])) for name, entry in fields.items()}
    )
    if len(shared) + len(own) > MOST:
        what = f"{len(shared) + len(own)} constants"
        problems.append(Problem(what=what, allowed=f"{MOST}", file=file))
    if problems:
        raise InputError(*problems)
    chosen = {name: known[name] for name in shared} | own
    plan = FitPlan(parameters=(), ties=ties)
    used = [name for name in chosen if any(plan.concerns(name, case) for case in cases)]
    return replace(plan, parameters=tuple(chosen[name] for name in used))


def concerns(name: str, case: Case) -> bool:
    """Whether a case's price may depend on a constant, by what it is for and by the part after its dot.

    That part names a framework, a GPU architecture, its generation, or kernels of a generation (``hopper-fa2``).
    """
    field, _, family = name.partition(".")
    if not _PURPOSE.get(field, _any)(case):
        return False
    if family in _FRAMEWORKS:
        return family == case.framework.value
    gpu, known = case.cluster.gpu, generations()
    names = {generation.name for generation in known.values()}
    if family in known and family not in names:
        return family == gpu.architecture
    named = next((name for name in names if family == name or family.startswith(f"{name}-")), None)
    return named is None or named == gpu.generation.name


def _any(case: Case) -> bool:
    return True


def _moe(case: Case) -> bool:
    return case.model.is_moe


def _leaves_domain(case: Case) -> bool:
    return case.cluster.gpu_count > case.cluster.nvlink_domain


def _sharded_tensors(case: Case) -> bool:
    return case.layout.tp > 1


def _hopper(case: Case) -> bool:
    return case.cluster.gpu.generation.name == HOPPER


def _eight_bit(case: Case) -> bool:
    return case.layout.precision in EIGHT_BIT


_PURPOSE: dict[str, Callable[[Case], bool]] = {
    **dict.fromkeys(("host_moe", "permute_passes", "grouped_gemm_half", "ep_hidden", "router_small_s"), _moe),
    **dict.fromkeys(("host_moe_padded", "fused_expert_traffic"), _moe),
    **dict.fromkeys(("network_fraction", "network_gather"), _leaves_domain),
    **dict.fromkeys(("tp_exposed_overlapped", "host_tp"), _sharded_tensors),
    **dict.fromkeys(("fp8_gain", "fp8_rowwise", "fp8_attention"), _eight_bit),
    "nvfp4_gain": lambda case: case.layout.precision is Precision.NVFP4,
    "attention_cap": lambda case: case.training.flash,
    "heads_misaligned": lambda case: not case.training.flash,
    "pp_exposed": lambda case: case.layout.pp > 1,
    "hopper_gemm_speed": _hopper,
}
"""Cases that a constant may concern, by its name before the dot."""
