"""The cost model's constants: values with their meaning and source, from ``constants.yaml``."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import TYPE_CHECKING

from layoutopt.optimizer.specs.errors import input_error
from layoutopt.optimizer.specs.ranges import possible_range

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """One documented constant: value, unit, range of its source, meaning and source; ``exact``: a definition.

    ``stated``: the least and the most that a cluster file may state, where that is not what its unit says.
    """

    value: float
    unit: str
    bounds: tuple[float, float]
    meaning: str
    source: str
    exact: bool = False
    stated: tuple[float, float] | None = None

    @property
    def possible(self) -> tuple[float, float]:
        """The least and the most that a cluster file may state."""
        return self.stated or possible_range(self.unit, self.bounds)


@dataclass(frozen=True, slots=True)
class Constants:
    """Values by name. A name with a dot belongs to one GPU architecture or precision family."""

    values: Mapping[str, float]

    def __getitem__(self, name: str) -> float:
        return self.values[name]

    def of(self, name: str, *families: str) -> float:
        """Return ``name.family`` of the first family that has one. Raises ``InputError``, naming it, where none has."""
        for family in families:
            if f"{name}.{family}" in self.values:
                return self.values[f"{name}.{family}"]
        known = sorted(key for key in self.values if key.startswith(f"{name}."))
        raise input_error(
            f"no constant {name}.{families[-1]}",
            f"state it under calibration of the cluster; known: {', '.join(known)}",
            key="gpu",
        )

    def has(self, name: str, family: str) -> bool:
        """Tell whether a family has an own value."""
        return f"{name}.{family}" in self.values

    def with_values(self, changes: Mapping[str, float]) -> Constants:
        """Return a copy with some values replaced. Raises ``InputError`` for an unknown name."""
        unknown = sorted(set(changes) - set(self.values))
        if unknown:
            raise input_error(
                f"unknown constant {unknown[0]!r}",
                f"known: {', '.join(sorted(self.values))}",
                key="calibration",
            )
        return replace(self, values=MappingProxyType({**self.values, **changes}))


@cache
def constant_table() -> Mapping[str, Constant]:
    """Read every documented constant of the package."""
    # Imported here: nothing else of the cost room needs it, and a start of the program is felt.
    import yaml

    text = resources.files("layoutopt.optimizer.cost").joinpath("constants.yaml").read_text(encoding="utf-8")
    # Not every build of PyYAML has the C loader, which is much the faster one.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    table = yaml.load(text, Loader=loader)
    return MappingProxyType(
        {
            name: Constant(
                value=float(entry["value"]),
                unit=entry["unit"],
                bounds=_ends(entry["bounds"]),
                meaning=entry["meaning"],
                source=entry["source"],
                exact=entry.get("exact", False),
                stated=_ends(entry["stated"]) if "stated" in entry else None,
            )
            for name, entry in table.items()
        }
    )


def _ends(pair: Sequence[float]) -> tuple[float, float]:
    return float(pair[0]), float(pair[1])


def load_constants(calibration: Mapping[str, float] | None = None) -> Constants:
    """Return the package's constants with a cluster's own calibrated values on top.

    A family that the package has no value for (``fp8_gain.volta``) may be among them. Names that belong to the network
    (see the topology room) are ignored here.
    """
    values = {name: entry.value for name, entry in constant_table().items()}
    families = {name.partition(".")[0] for name in values if "." in name}
    own = {
        name: value
        for name, value in (calibration or {}).items()
        if name in values or name.partition(".")[0] in families
    }
    return Constants(MappingProxyType(values | own))
