"""Write fitted values into the text of the package's YAML tables, leaving every other line as it is."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from layoutopt.optimizer.specs.errors import input_error

if TYPE_CHECKING:
    from collections.abc import Mapping


def with_constants(text: str, values: Mapping[str, float], fit: str) -> str:
    """Return a constants table with new values; each changed entry gets a ``fit`` line that says from what.

    Entries are top-level keys with one ``key: value`` line per field. Raises ``InputError`` for a name that
    the table does not have in this form.
    """
    for name, value in values.items():
        match = re.search(rf"^{re.escape(name)}:\n(?P<body>(?:  .*\n?)+)", text, re.MULTILINE)
        if match is None:
            raise input_error(f"constant {name!r} is no entry of the table", key=name)
        body = re.sub(
            r"^  value:.*$", f"  value: {rounded(value)}", match["body"], count=1, flags=re.MULTILINE
        )
        body = re.sub(r"^  fit:.*\n", "", body, flags=re.MULTILINE)
        body = body.rstrip("\n") + f'\n  fit: "{fit}"\n'
        text = text[: match.start("body")] + body + text[match.end("body") :]
    return text


def with_preset(text: str, values: Mapping[str, float]) -> str:
    """Return a framework's preset with new values of its fields, added in front where it had none of its own."""
    for field, value in values.items():
        line = f"{field}: {rounded(value)}"
        text, found = re.subn(rf"^{re.escape(field)}:.*$", line, text, count=1, flags=re.MULTILINE)
        if not found:
            text = f"{line}\n{text}"
    return text


def rounded(value: float) -> str:
    """Write a value with three significant digits, as YAML reads it back as a number."""
    text = f"{value:.3g}"
    return text.replace("e", ".0e", 1) if "e" in text and "." not in text else text


def split_names(values: Mapping[str, float], fields: tuple[str, ...]) -> dict[str, dict[str, float]]:
    """Separate preset fields by framework from constants, which come under the empty name."""
    parts: dict[str, dict[str, float]] = {"": {}}
    for name, value in values.items():
        field, _, framework = name.partition(".")
        if field in fields:
            parts.setdefault(framework, {})[field] = value
        else:
            parts[""][name] = value
    return parts
