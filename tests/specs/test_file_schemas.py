"""The JSON Schemas describe every key and agree with what loads."""

from __future__ import annotations

import json
from importlib import resources
from typing import TYPE_CHECKING, Any

import pytest

from layoutopt.optimizer.specs.document import parse_document
from layoutopt.optimizer.specs.errors import InputError
from layoutopt.optimizer.specs.loading import json_schema

if TYPE_CHECKING:
    from collections.abc import Iterator

KINDS = ("model", "cluster", "layout")


def objects(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the top level and every definition."""
    yield schema
    yield from schema.get("$defs", {}).values()


@pytest.mark.parametrize("kind", KINDS)
def test_every_key_is_described(kind: str) -> None:
    """Each key of each mapping has a description; unknown keys are excluded; the schema is JSON."""
    schema = json_schema(kind)
    json.dumps(schema, allow_nan=False)
    for item in objects(schema):
        assert item["additionalProperties"] is False
        assert item["description"]
        for name, key in item["properties"].items():
            assert key.get("description"), name


@pytest.mark.parametrize(
    ("kind", "package"), [("model", "layoutopt.models"), ("cluster", "layoutopt.topologies")]
)
def test_builtin_files_use_known_keys(kind: str, package: str) -> None:
    """Every key of the built-in files is a property of its schema, and required keys are there."""
    schema = json_schema(kind)
    for item in resources.files(package).iterdir():
        if item.name.endswith(".yaml"):
            data = parse_document(item.read_text("utf-8"), item.name).data
            assert data.keys() <= schema["properties"].keys()
            assert set(schema["required"]) <= data.keys()


def test_alternatives_are_in_the_schema() -> None:
    """Values with a short form show both forms."""
    model, cluster, layout = (json_schema(kind) for kind in KINDS)
    window = model["$defs"]["ArchitectureFile"]["properties"]["sliding_window"]
    assert {"type": "integer", "minimum": 1} in window["anyOf"]
    assert any(form.get("type") == "string" for form in cluster["properties"]["gpu"]["anyOf"])
    assert {"type": "string"} in layout["properties"]["stages"]["anyOf"]
    assert layout["properties"]["schedule"]["enum"][0] == "none"


def test_unknown_schema() -> None:
    """Another kind of schema is one line."""
    with pytest.raises(InputError, match="no schema is called 'plan' "):
        json_schema("plan")
