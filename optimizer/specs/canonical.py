"""Specs as plain data and back: what JSON holds, what digests are taken of. Exact inverses of each other."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from enum import StrEnum
from functools import cache
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, TypeVar, Union, get_args, get_origin, get_type_hints

from layoutopt.optimizer.specs.cluster import ClusterSpec
from layoutopt.optimizer.specs.document import dotted
from layoutopt.optimizer.specs.errors import InputError, Problem
from layoutopt.optimizer.specs.layer_runs import MAX_LAYERS
from layoutopt.optimizer.specs.layout import Layout, Switches
from layoutopt.optimizer.specs.model import ModelSpec, MoeSpec, TrainingSpec, groups_of_node_limit
from layoutopt.optimizer.specs.reference_fabric import MAX_GPUS
from layoutopt.optimizer.specs.units import shown
from layoutopt.optimizer.specs.vocabulary import Fp8Recipe, Precision
from layoutopt.optimizer.specs.workload import Workload

if TYPE_CHECKING:
    from collections.abc import Iterable

    from layoutopt.optimizer.specs.document import KeyPath

T = TypeVar("T")
_NAMES = {
    "Mapping": Mapping, "Any": Any, "Precision": Precision, "Fp8Recipe": Fp8Recipe, "ModelSpec": ModelSpec,
    "TrainingSpec": TrainingSpec,
}  # fmt: skip
"""Names that the spec modules import for type checkers only."""
# Most came later than the first plans and stores: without a value they leave texts and digests what they were.
_OMITTED_IF_EMPTY = (
    *("recomputed_kinds", "savers", "switches", "group", "order"),
    *("rope_base", "norm_epsilon", "router_scaling", "router_groups", "router_group_limit", "left_out"),
    *("v_head_dim", "window_kv_heads", "window_sinks", "block", "builtin_tokens", "observations"),
)
_SIGNED = frozenset({"slopes"})
"""Fields whose numbers may be below zero."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """How JSON differs from a record's fields.

    ``without`` are fields left out, ``endless`` fields whose infinity is null, ``renamed`` maps fields to keys. ``added``
    maps further keys to a path of attributes (``"estimate.step_time_s"``, null where any of them is None) or to a function
    of the record.
    """

    without: tuple[str, ...] = ()
    endless: tuple[str, ...] = ()
    renamed: Mapping[str, str] = field(default_factory=dict)
    added: Mapping[str, str | Callable[[Any], Any]] = field(default_factory=dict)


def to_plain(spec: Any) -> dict[str, Any]:
    """Return a spec as JSON-able data: mappings, lists, numbers, texts, true, false and null.

    Numbers of fields that hold fractions come out as floats, so equal specs give equal data.
    """
    plain = _Encoder(typed=True).encode(spec, type(spec))
    assert isinstance(plain, dict)
    return plain


def encode(value: Any, forms: Mapping[str, Form] | None = None) -> Any:
    """Return any record as JSON-able data: its fields by name, but for what ``forms`` says of its class.

    Forms are named by module and class (``form_name``), so that no class has to be imported for its form. Arrays become
    lists. Infinity and NaN stay what they are: JSON refuses them where no form says that a field may be endless.
    """
    return _Encoder(forms=forms or {}).encode(value)


def form_name(kind: type) -> str:
    """Name a class as tables of forms do: module below ``optimizer``, a colon, the class."""
    return f"{kind.__module__.removeprefix('layoutopt.optimizer.')}:{kind.__name__}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Encoder:
    """Turns records into plain data; ``typed`` heeds the types of fields and leaves numbers as they are."""

    forms: Mapping[str, Form] = field(default_factory=dict)
    typed: bool = False

    def encode(self, value: Any, hint: Any = Any) -> Any:
        """Return a value as plain data; ``hint`` is the type that its field states."""
        if is_dataclass(value) and not isinstance(value, type):
            return self._record(value)
        if isinstance(value, StrEnum):
            return str(value)
        # What is inside has the type that the field states: a mapping of fractions may hold whole numbers.
        if isinstance(value, Mapping):
            inner = (get_args(hint) or (Any, Any))[1]
            return {str(key): self.encode(item, inner) for key, item in value.items()}
        if isinstance(value, list | tuple):
            inner = (get_args(hint) or (Any,))[0]
            return [self.encode(item, inner) for item in value]
        if hasattr(value, "tolist"):  # an array, or a single number of one
            return self.encode(value.tolist())
        return self._number(value, hint) if isinstance(value, int | float) else value

    def _number(self, value: float, hint: Any) -> float:
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        # 400 and 400.0 are equal to Python and two texts in JSON, of which a digest is taken.
        return float(value) if self.typed and is_whole and float in (hint, *get_args(hint)) else value

    def _record(self, record: Any) -> dict[str, Any]:
        if isinstance(record, Switches):
            return {name: self.encode(value) for name, value in record.stated().items()}
        kind: type = type(record)
        form, hints = self.forms.get(form_name(kind), Form()), _hints(kind) if self.typed else {}
        kept = [item.name for item in fields(record) if item.name not in form.without]
        items = {
            form.renamed.get(name, name): self.encode(getattr(record, name), hints.get(name, Any))
            for name in kept
        }
        items |= {name: None for name in form.endless if items[name] == math.inf}
        for key, source in form.added.items():
            items[key] = self.encode(_follow(record, source) if isinstance(source, str) else source(record))
        return {name: item for name, item in items.items() if item or name not in _OMITTED_IF_EMPTY}


def _follow(record: Any, path: str) -> Any:
    for name in path.split("."):
        record = None if record is None else getattr(record, name)
    return record


def digest(obj: Any) -> str:
    """Return the SHA-256 of a spec, or of plain data, as 64 hexadecimal digits.

    It depends on content alone: the order of keys does not matter. Raises ``ValueError`` for NaN and
    infinity.
    """
    plain = _Encoder(typed=True).encode(obj, type(obj))
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def workload_from_plain(data: Any, *, file: str = "", path: KeyPath = ()) -> Workload:
    """Rebuild a ``Workload`` from ``to_plain``'s data.

    ``file`` and ``path`` say where the data stands, for messages. Raises ``InputError`` with every unknown,
    missing or wrong value.
    """
    workload = _rebuild(Workload, data, file, path)
    if not workload.model.runs or not all(run.block for run in workload.model.runs):
        runs = dotted((*path, "model", "runs"))
        raise InputError(Problem(what="no layers", allowed="at least one in every run", file=file, key=runs))
    return workload


def cluster_from_plain(data: Any, *, file: str = "", path: KeyPath = ()) -> ClusterSpec:
    """Rebuild a ``ClusterSpec`` from ``to_plain``'s data.

    Raises InputError where a field is unknown, missing or out of range, and for an NVLink domain without a rate.
    """
    cluster = _rebuild(ClusterSpec, data, file, path)
    # A domain of several GPUs is joined by links, whose rate divides what they carry.
    if cluster.nvlink_domain > 1 and not cluster.gpu.nvlink_bytes_per_s:
        where = dotted((*path, "gpu", "nvlink_bytes_per_s"))
        what = f"0.0 joins no NVLink domain of {cluster.nvlink_domain} GPUs"
        raise InputError(Problem(what=what, allowed="a number above 0", file=file, key=where))
    return cluster


def layout_from_plain(
    data: Any, *, file: str = "", path: KeyPath = (), unknown_allowed: bool = False
) -> Layout:
    """Rebuild a ``Layout`` from the ``layout`` of a plan; errors as in ``workload_from_plain``.

    With ``unknown_allowed`` keys that a layout doesn't have are passed over.
    """
    return _rebuild(Layout, data, file, path, unknown_allowed=unknown_allowed)


def _rebuild(kind: type[T], data: Any, file: str, path: KeyPath, *, unknown_allowed: bool = False) -> T:
    reader = _Reader(file, unknown_allowed=unknown_allowed)
    result = reader.read(kind, data, path)
    if reader.problems:
        raise InputError(*reader.problems)
    assert isinstance(result, kind)
    return result


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind, localns=_NAMES)


_ZERO_ALLOWED = {
    *("zero", "rank", "chunk", "layers", "recomputed", "mtp", "kinds", "recomputed_kinds"),
    *("ffn", "shared_ffn", "conv", "q_lora_rank", "learned_positions", "mtp_layers", "activation_scalars"),
    *("compression", "grad_bytes", "moment_bytes", "master_bytes", "latency_s", "reserve_bytes"),
    *("restart_s", "hot_restart_s", "repair_s", "spare_nodes"),
    "nvlink_bytes_per_s",  # GPUs that PCIe alone joins
}
"""Fields that may be 0; every other number in a spec counts or measures something that is there."""


class _Reader:
    """Builds values by type, collecting problems instead of stopping at the first."""

    def __init__(self, file: str, *, unknown_allowed: bool = False) -> None:
        self.file, self.unknown_allowed = file, unknown_allowed
        self.problems: list[Problem] = []

    def read(self, hint: Any, value: Any, path: KeyPath) -> Any:
        """Return ``value`` as the type that a hint names, or None after noting a problem."""
        origin = get_origin(hint)
        if hint is Any:
            return value
        if origin in (Union, UnionType):
            (inner,) = (arg for arg in get_args(hint) if arg is not NoneType)
            return None if value is None else self.read(inner, value, path)
        if is_dataclass(hint):
            return self._dataclass(hint, value, path)
        if origin is tuple:
            return self._tuple(get_args(hint)[0], value, path)
        if origin in (dict, Mapping):
            return self._mapping(get_args(hint), value, path)
        if isinstance(hint, type) and issubclass(hint, StrEnum):
            return self._word(hint, value, path)
        return self._scalar(hint, value, path)

    def _dataclass(self, kind: Any, value: Any, path: KeyPath) -> Any:
        if not isinstance(value, dict):
            return self._note(path, value, "an object")
        value = _today(value) if kind is MoeSpec else value
        known = {field.name: field for field in fields(kind)}
        for name in () if self.unknown_allowed else sorted(map(str, value.keys() - known.keys())):
            self._problem((*path, name), "unknown key", ", ".join(known))
        needed = [
            name
            for name, field in known.items()
            if field.default is MISSING and field.default_factory is MISSING
        ]
        missing = [name for name in needed if name not in value]
        for name in missing:
            self._problem((*path, name), "missing", "")
        before = len(self.problems)
        # In the order of the record, not of the file: problems of two plans come in one order.
        hints = _hints(kind)
        items = {name: self.read(hints[name], value[name], (*path, name)) for name in known if name in value}
        # Built only from values without fault: what a record checks itself would else speak of a None.
        return kind(**items) if not missing and len(self.problems) == before else None

    def _tuple(self, inner: Any, value: Any, path: KeyPath) -> Any:
        if not isinstance(value, list):
            return self._note(path, value, "a list")
        return tuple(self.read(inner, item, (*path, index)) for index, item in enumerate(value))

    def _mapping(self, inner: tuple[Any, ...], value: Any, path: KeyPath) -> Any:
        if not isinstance(value, dict):
            return self._note(path, value, "an object")
        key_hint, item_hint = inner
        return {
            self.read(key_hint, str(key), (*path, str(key))): self.read(item_hint, item, (*path, str(key)))
            for key, item in value.items()
        }

    def _word(self, kind: type[StrEnum], value: Any, path: KeyPath) -> Any:
        try:
            return kind(value)
        except ValueError:
            return self._note(path, value, ", ".join(kind))

    def _scalar(self, hint: Any, value: Any, path: KeyPath) -> Any:
        if hint in (bool, str):
            return value if isinstance(value, hint) else self._note(path, value, _SCALARS[hint])
        wanted = int | float if hint is float else int
        # To Python true is 1, to a reader of the file it is a slip.
        if isinstance(value, bool) or not isinstance(value, wanted) or not _is_number(value):
            return self._note(path, value, _SCALARS[hint])
        zero_allowed = _names(path) & _ZERO_ALLOWED
        if not _names(path) & _SIGNED and (value < 0 or (value == 0 and not zero_allowed)):
            return self._note(path, value, f"{_SCALARS[hint]}, {'0 or more' if zero_allowed else 'above 0'}")
        most = _MOST.get(str(path[-1]) if path else "", MOST_WHOLE)
        if hint is int and value > most:
            return self._note(path, value, f"a whole number up to {most:,}")
        return hint(value)

    def _note(self, path: KeyPath, value: Any, allowed: str) -> None:
        # 1.0 is not written as what it should be
        text = repr(value) if isinstance(value, float) else shown(value)
        self._problem(path, f"{text} is not valid", allowed)

    def _problem(self, path: KeyPath, what: str, allowed: str) -> None:
        self.problems.append(Problem(what=what, allowed=allowed, file=self.file, key=dotted(path)))


def _today(moe: dict[str, Any]) -> dict[str, Any]:
    """Return experts of a plan whose ``node_limit`` stood for, or beside, the router's groups with these alone."""
    experts, limit = moe.get("experts"), moe.get("node_limit")
    kept = {name: value for name, value in moe.items() if name != "node_limit"}
    # Whatever else is wrong with these two is said by the reader, which sees the mapping next.
    if "router_groups" in moe or not isinstance(experts, int) or not isinstance(limit, int):
        return kept
    return kept | groups_of_node_limit(experts, limit)


MOST_WHOLE = 10**12
"""Whole numbers above this count nothing that there is, and products of a few of them leave 64 bits."""

_MOST = {
    **dict.fromkeys(("count", "mtp_layers"), MAX_LAYERS),
    "streams": 64,
    "gpu_count": MAX_GPUS,
    **dict.fromkeys(("grad_bytes", "moment_bytes", "master_bytes"), 64),
}
"""Fields that tables are made of, with their largest value."""

_SCALARS = {bool: "true or false", str: "text", int: "a whole number", float: "a number"}


def _is_number(value: float) -> bool:
    # Products of three such numbers are still finite; Python's JSON reads ``NaN`` and ``Infinity`` too.
    return abs(value) < 1e30 and math.isfinite(value)


def _names(path: Iterable[str | int]) -> set[str]:
    """Return the field names at the end of a path: the last one, and the mapping it may stand in."""
    words = [part for part in path if isinstance(part, str)]
    return set(words[-2:])
