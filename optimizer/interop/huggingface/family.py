"""How each model class reads its configuration: ``families.yaml`` as data classes, and a reader on top."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from layoutopt.optimizer.interop.reading import LARGEST, Fields, parse_yaml, shorten
from layoutopt.optimizer.specs.errors import input_error

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class HfFamily:
    """One model class; the fields are documented in ``families.yaml``."""

    name: str
    gated: bool
    tied: bool
    norm: str
    attention: str = "gqa"
    attention_bias: bool | str = False
    qkv_bias: bool | str = False
    mlp_bias: bool | str = False
    qk_norm: bool | str = False
    router_bias: bool | str = False
    expert_bias: bool = False
    embedding_norm: bool = False
    layer_norms: int = 2
    qk_norm_all: bool = False
    sinks: bool = False
    activation_scalars: int = 0
    head_bias: bool | str = False
    positions: tuple[str, ...] = ()
    extra_positions: int = 0
    window: str = "none"
    moe: str = "none"
    expert_width: str = ""
    dense_width: str = "intermediate_size"
    shared: str = "none"
    shared_gate: bool = False
    mtp: bool = False
    head_dim_required: bool = False
    ffn_is_4_hidden: bool = False
    attention_gate: bool = False
    indexer: bool = False
    block_indexer: bool = False
    window_heads: bool = False
    compressed: bool = False
    linear: str = ""
    full_every: int = 0
    full_first: bool = False
    notes: tuple[str, ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)


@cache
def _table() -> dict[str, Any]:
    folder = resources.files("layoutopt.optimizer.interop.huggingface")
    return parse_yaml(folder.joinpath("families.yaml").read_text("utf-8"), "families.yaml")


def _inherited(families: dict[str, dict[str, Any]], name: str) -> dict[str, Any]:
    own = families[name]
    base = _inherited(families, own["like"]) if "like" in own else {}
    merged = {**base, **own}
    # All other facts replace those of the class that it is like; what was said of that one still holds.
    merged["notes"] = [*base.get("notes", []), *own.get("notes", [])]
    merged.pop("like", None)
    return merged


def find_family(model_type: str, file: str = "") -> HfFamily:
    """Return the family of a ``model_type``. Raises ``InputError`` for unknown and refused ones, with the reason."""
    table = _table()
    families: dict[str, dict[str, Any]] = table["families"]
    reason = table["refused"].get(model_type)
    if reason:
        what = f"architecture {model_type} is not supported: {reason}"
        raise input_error(what, key="model_type", file=file)
    name = table["aliases"].get(model_type, model_type)
    if name not in families:
        # The nearest is named and not taken: classes of similar names differ in gates, norms and what is tied.
        near = ", ".join(difflib.get_close_matches(model_type, sorted(families), n=3))
        allowed = f"nearest known: {near}" if near else "write the architecture as model YAML instead"
        what = f"architecture {shorten(model_type)!r} is not known"
        raise input_error(what, allowed, key="model_type", file=file)
    data = _inherited(families, name)
    data["notes"] = tuple(data["notes"])
    data["positions"] = tuple(data.get("positions", ()))
    return HfFamily(name=name, **data)


class ConfigReader:
    """Reads one config with its family's defaults and keeps a note for each default used.

    A key that is absent has the class default, a key that is null has none: the two differ for windows.
    """

    def __init__(self, fields: Fields, family: HfFamily) -> None:
        self.fields = fields
        self.family = family
        self.defaulted: list[str] = []

    def _default(self, *keys: str) -> Any:
        for key in keys:
            if key in self.family.defaults:
                value = self.family.defaults[key]
                self.defaulted.append(f"{key}={value}")
                return value
        return None

    def optional(self, *keys: str, least: int = 0, most: int = LARGEST) -> int | None:
        """Read a size that may be null; absent means the class default."""
        # present, even if null: the class default does not apply
        if any(key in self.fields for key in keys):
            return self.fields.integer(*keys, least=least, most=most)
        value = self._default(*keys)
        return None if value is None else int(value)

    def size(self, *keys: str, least: int = 1, most: int = LARGEST) -> int:
        """Read a size, in the file or by class default. Raises ``InputError`` where neither has it."""
        value = self.fields.integer(*keys, least=least, most=most)
        if value is None:
            value = self._default(*keys)
        if value is None:
            names = " or ".join(keys)
            raise self.fields.fail(keys[0], "missing", f"{self.family.name} has no default for {names}")
        return int(value)

    def switch(self, rule: bool | str) -> bool:
        """Read a flag that the family fixes or names a key for."""
        if isinstance(rule, bool):
            return rule
        value = self.fields.flag(rule)
        return bool(self._default(rule)) if value is None else value

    def notes(self) -> tuple[str, ...]:
        """Return the family's notes and one note naming all class defaults used."""
        used = tuple(dict.fromkeys(self.defaulted))
        taken = (f"class defaults of {self.family.name}: {', '.join(used)}",) if used else ()
        return (*self.family.notes, *taken)
