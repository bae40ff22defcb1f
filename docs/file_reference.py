"""Write docs/files.md from the schemas of the input files: ``python docs/file_reference.py > docs/files.md``.

The example of a key is its line in docs/examples, where whole files show it among others; a key that none of them holds
shows its default or its first valid word.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from layoutopt.optimizer.specs.loading import json_schema

if TYPE_CHECKING:
    from collections.abc import Iterator

EXAMPLES = Path(__file__).parent / "examples"
HEAD = """# Files

Written by `python docs/file_reference.py > docs/files.md` from the schemas that check the files; a test keeps it current.
Editors complete and check keys with `layoutopt schema model` (or `cluster`, `layout`). Whole files to start from are in
`docs/examples/`; `layoutopt cluster show h100x1024 --yaml` writes any built-in cluster as a file.

Quantities take units: `400 Gbit/s`, `450 GB/s`, `80 GB`, `80 GiB`, `1.4T`, `16Mi`, `10 us`, `700 W`; bare numbers are SI.
Counts do too: `100k`, `8Ki`, `128,256`.
Unknown keys are errors that name the nearest valid key.
"""
KINDS = {
    "model": (
        "A model with its training run",
        ("model-dense", "model-experts", "model-hybrid", "model-linear", "model-adapter", "model-frozen"),
    ),
    "cluster": ("A cluster", ("cluster", "cluster-from-base")),
    "layout": ("A layout", ("layout",)),
}


def reference() -> str:
    """Return the whole page."""
    parts = [HEAD]
    for kind, (title, names) in KINDS.items():
        schema = json_schema(kind)
        files = [yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text("utf-8")) for name in names]
        shown = ", ".join(f"[{name}.yaml](examples/{name}.yaml)" for name in names)
        parts.append(
            f"## {title}\n\nWhole files: {shown}.\n\n| key | meaning | default | example |\n|---|---|---|---|"
        )
        parts += [_row(path, entry, files) for path, entry in keys(schema, schema.get("$defs", {}))]
        parts.append("")
    return "\n".join(parts)


def keys(
    schema: dict[str, Any], known: dict[str, Any], path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    """Yield every key of a mapping with its path, those of mappings inside it right after it."""
    for name, entry in schema.get("properties", {}).items():
        yield (*path, name), entry | {"required": name in schema.get("required", ())}
        for inner in _mappings(entry, known):
            yield from keys(inner, known, (*path, name))


def _mappings(entry: dict[str, Any], known: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the mappings that a key may hold, alone or in a list."""
    for part in (entry, *entry.get("anyOf", ()), *entry.get("allOf", ())):
        for place in (part, part.get("items", {})):
            if "$ref" in place:
                yield known[place["$ref"].rpartition("/")[2]]
                return


def example(path: tuple[str, ...], entry: dict[str, Any], files: list[Any]) -> str:
    """Return the key's value in the first example file that has it, else its default or a valid word."""
    found = [value for file in files for value in _values(file, path)]
    value = found[0] if found else entry.get("default", (entry.get("enum") or [None])[0])
    if isinstance(value, bool) or value is None:
        return "" if value is None else str(value).lower()
    if isinstance(value, dict | list):
        text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=10_000).strip()
        return text if len(text) <= 60 else f"{text[:57]}..."
    return str(value)


def _values(value: Any, path: tuple[str, ...]) -> Iterator[Any]:
    if not path:
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _values(item, path)
    elif isinstance(value, dict) and path[0] in value:
        yield from _values(value[path[0]], path[1:])


def _row(path: tuple[str, ...], entry: dict[str, Any], files: list[Any]) -> str:
    words = entry.get("enum")
    meaning = entry.get("description", "") + (f": {', '.join(map(str, words))}" if words else "")
    default = "required" if entry["required"] else _default(entry.get("default"))
    shown = example(path, entry, files)
    cells = (f"`{'.'.join(path)}`", meaning, default, f"`{path[-1]}: {shown}`" if shown else "")
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _default(value: Any) -> str:
    return "" if value in (None, [], {}) else f"`{json.dumps(value)}`"


if __name__ == "__main__":
    print(reference(), end="")
