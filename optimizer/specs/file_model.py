"""Validation of a file against a pydantic model: all problems at once, one line each, nearest keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from layoutopt.optimizer.specs.errors import InputError, Problem
from layoutopt.optimizer.specs.kinds import nearest_word
from layoutopt.optimizer.specs.units import shown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from layoutopt.optimizer.specs.document import Document, KeyPath

    Finding = tuple[KeyPath, str, str]
    """Where below the mapping, what is wrong, what is allowed."""


class FileModel(BaseModel):
    """One mapping of a file: unknown keys are errors, and ``check`` compares fields with each other."""

    # Built at first use: a command that reads no cluster file does not wait for the schema of one.
    model_config = ConfigDict(extra="forbid", defer_build=True)
    file_kind: ClassVar[str] = ""
    """What ``layoutopt schema`` calls the file, of the mapping that is a whole one."""

    @model_validator(mode="before")
    @classmethod
    def drop_nulls(cls, data: Any) -> Any:
        """Read an optional key without a value as absent."""
        return without_nulls(cls, data) if isinstance(data, dict) else data

    @classmethod
    def check(cls, given: PartialFields) -> Iterator[Finding]:
        """Yield what is wrong between fields; an absent or invalid field reads as None."""
        yield from ()


M = TypeVar("M", bound=FileModel)

MOST_LISTED = 12
"""More keys than this fill lines in which nobody finds the one that was meant."""

SYNONYMS = {
    "intermediate": "ffn", "intermediate_size": "ffn", "ffn_hidden_size": "ffn", "mlp": "ffn", "d_ff": "ffn",
    "moe_intermediate_size": "ffn", "d_model": "hidden", "dim": "hidden", "n_heads": "heads",
    "num_attention_heads": "heads", "n_kv_heads": "kv_heads", "num_key_value_heads": "kv_heads", "num_layers": "layers",
    "n_layers": "layers", "num_hidden_layers": "layers", "activation": "gated", "swiglu": "gated", "hidden_act": "gated",
    "tie_word_embeddings": "tied_embeddings", "window": "sliding_window", "seq_len": "sequence_length",
    "seq_length": "sequence_length", "context": "sequence_length", "batch": "global_batch", "batch_size": "global_batch",
    "gbs": "global_batch", "batch_tokens": "global_batch_tokens", "tokens": "total_tokens", "dtype": "precision",
    "n_routed_experts": "experts", "num_experts": "experts", "num_experts_per_tok": "top_k", "gpu_type": "gpu",
    "num_nodes": "nodes", "nnodes": "nodes", "hcas_per_node": "nics_per_node", "network": "nic_bandwidth",
    "blocking": "oversubscription", "ratio": "oversubscription",
}  # fmt: skip
"""Keys of other tools and habits, with the key that says the same here; only for hints."""


def without_nulls(model: type[FileModel], data: dict[str, Any]) -> dict[str, Any]:
    """Return a mapping without the optional keys that have no value."""
    optional = {name for name, field in model.model_fields.items() if not field.is_required()}
    return {key: value for key, value in data.items() if value is not None or key not in optional}


class PartialFields:
    """The valid fields of a mapping with defaults; everything else reads as None."""

    def __init__(self, values: dict[str, Any], stated: frozenset[str]) -> None:
        self._values = values
        self.stated = stated

    def __getattr__(self, name: str) -> Any:
        return self._values.get(name)


def validate(model: type[M], document: Document, *, path: KeyPath = ()) -> M:
    """Read the mapping at ``path`` of a document as a ``model``.

    Raises ``InputError`` with every problem of the mapping, in the order of lines.
    """
    data = document.at(path)
    result: M | None = None
    problems: list[Problem] = []
    try:
        result = model.model_validate(data)
    except ValidationError as error:
        problems = [_problem(model, document, path, item) for item in error.errors(include_url=False)]
    # A key that is wrong in itself needs no second complaint about what it means together with others.
    broken = {problem.key for problem in problems}
    findings = _check_raw(model, data, ()) if result is None else _check_valid(result, ())
    found = [document.problem((*path, *where), what, allowed) for where, what, allowed in findings]
    problems += [problem for problem in found if problem.key not in broken]
    if problems or result is None:
        raise InputError(*sorted(problems, key=lambda problem: problem.line or 0))
    return result


def _problem(model: type[FileModel], document: Document, path: KeyPath, error: Any) -> Problem:
    where: KeyPath = tuple(error["loc"])
    kind, context = error["type"], error.get("ctx", {})
    owner = _owner(model, where[:-1])
    if kind == "missing":
        field = owner.model_fields[str(where[-1])]
        return document.problem((*path, *where), "missing", field.description or "")
    if kind == "extra_forbidden":
        keys = list(owner.model_fields)
        meant = _meant(model, str(where[-1]), keys)
        return document.problem((*path, *where), f"unknown key{meant}", _valid_keys(model, keys))
    if kind == "kind":
        return document.problem((*path, *where), context["what"], context["allowed"])
    if kind == "list_type":
        return document.problem((*path, *where), f"{shown(error['input'])} is not a list", "a list")
    if kind in ("model_type", "model_attributes_type"):
        keys = list(_owner(model, where).model_fields)
        allowed = _valid_keys(model, keys)
        return document.problem((*path, *where), f"{shown(error['input'])} is not a mapping", allowed)
    return document.problem((*path, *where), error["msg"])


def _valid_keys(model: type[FileModel], keys: list[str]) -> str:
    """List the keys of a mapping, or say where they are listed where they are many."""
    if len(keys) <= MOST_LISTED or not model.file_kind:
        return ", ".join(keys)
    return f"layoutopt schema {model.file_kind} and docs/files.md list the keys"


def _meant(model: type[FileModel], key: str, keys: list[str]) -> str:
    """Name the key that was meant: what other tools call so, or the most similar; of this mapping, or else of another."""
    # Reversed, so that of equal names below the first, which is meant more often, is the one that stays.
    for places in ({name: name for name in keys}, dict(reversed([*_below(model, "")]))):
        synonym = SYNONYMS.get(key.lower(), "")
        if word := synonym if synonym in places else nearest_word(key, places):
            return f"; did you mean {places[word]}?"
    return ""


def _below(model: type[FileModel], path: str) -> Iterator[tuple[str, str]]:
    """Yield the keys below a mapping with their paths; of equal names the one that is meant more often comes first."""
    yield from ((name, path + name) for name in model.model_fields)
    for name, field in model.model_fields.items():
        nested = nested_model(field.annotation)
        if nested is not None:
            yield from _below(nested, f"{path}{name}.")


def _owner(model: type[FileModel], where: KeyPath) -> type[FileModel]:
    """Return the model of the mapping at a path."""
    for part in where:
        if isinstance(part, str):
            nested = nested_model(model.model_fields[part].annotation)
            assert nested is not None
            model = nested
    return model


def nested_model(annotation: Any) -> type[FileModel] | None:
    """Return the file model that an annotation holds, alone, optional or in a list."""
    if isinstance(annotation, type) and issubclass(annotation, FileModel):
        return annotation
    return next(filter(None, map(nested_model, get_args(annotation))), None)


def holds_list(annotation: Any) -> bool:
    """Tell whether an annotation is a list, or an optional one."""
    return get_origin(annotation) is list or any(get_origin(part) is list for part in get_args(annotation))


def _check_valid(value: FileModel, path: KeyPath) -> Iterator[Finding]:
    """Run the checks of a mapping whose fields are valid, and of every mapping below it."""
    fields = dict(value)
    yield from _found(type(value), PartialFields(fields, frozenset(value.model_fields_set)), path)
    for name, item in fields.items():
        for place, inner in _items(name, item):
            if isinstance(inner, FileModel):
                yield from _check_valid(inner, (*path, *place))


def _check_raw(model: type[FileModel], data: Any, path: KeyPath) -> Iterator[Finding]:
    """Run the checks of a mapping with invalid fields as far as possible, and of those below it."""
    if not isinstance(data, dict):
        return
    yield from _found(model, _valid_part(model, data), path)
    for name, field in model.model_fields.items():
        nested, value = nested_model(field.annotation), data.get(name)
        if nested is None or isinstance(value, list) is not holds_list(field.annotation):
            continue
        for place, inner in _items(name, value):
            yield from _check_raw(nested, inner, (*path, *place))


def _found(model: type[FileModel], given: PartialFields, path: KeyPath) -> Iterator[Finding]:
    for where, what, allowed in model.check(given):
        yield (*path, *where), what, allowed


def _items(name: str, value: Any) -> Iterator[tuple[KeyPath, Any]]:
    """Yield the entries of a list, or a single value, with their places."""
    if isinstance(value, list):
        yield from (((name, index), item) for index, item in enumerate(value))
    else:
        yield (name,), value


def _valid_part(model: type[FileModel], data: dict[str, Any]) -> PartialFields:
    """Keep the fields that are valid on their own."""
    data = without_nulls(model, data)
    optional = {name: field for name, field in model.model_fields.items() if not field.is_required()}
    values = {name: field.get_default() for name, field in optional.items()}
    for name in model.model_fields.keys() & data.keys():
        # An assignment checks one field, where building the model would stop at the first that is wrong.
        try:
            blank = model.model_construct()
            model.__pydantic_validator__.validate_assignment(blank, name, data[name])
        except ValidationError:
            values[name] = None
        else:
            values[name] = getattr(blank, name)
    return PartialFields(values, frozenset(data))
