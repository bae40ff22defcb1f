"""HTML and SVG text built from elements; everything that is not markup already is escaped."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_VOID = frozenset({"br", "hr", "img", "input", "link", "meta"})
Attribute = str | float | bool | None


class Markup(str):
    """Text that is HTML or SVG already and must not be escaped again."""

    __slots__ = ()


def text(value: str) -> Markup:
    """Return a text's markup: escaped, unless it is markup already."""
    return value if isinstance(value, Markup) else Markup(escape(value, quote=True))


def joined(parts: Iterable[str], separator: str = "") -> Markup:
    """Join parts, escaping those that are no markup."""
    return Markup(separator.join(text(part) for part in parts))


def element(name: str, *children: str, **attributes: Attribute) -> Markup:
    """Build an element.

    Underscores in attribute names become hyphens and a trailing one is dropped (``class_``); None and False leave
    the attribute out, True writes its name alone. Numbers are written short.
    """
    written = "".join(_attribute(key, value) for key, value in attributes.items())
    # These have no end tag in HTML; one would be read as a second element.
    if name in _VOID:
        return Markup(f"<{name}{written}>")
    return Markup(f"<{name}{written}>{joined(children)}</{name}>")


def _attribute(key: str, value: Attribute) -> str:
    name = key.rstrip("_").replace("_", "-")
    if value is None or value is False:
        return ""
    if value is True:
        return f" {name}"
    shown = f"{value:.6g}" if isinstance(value, float) else escape(str(value), quote=True)
    return f' {name}="{shown}"'


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table of texts; columns listed in ``left`` hold words, the others numbers."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: Sequence[int] = (0,)


def table(content: Table) -> Markup:
    """Build a table that scrolls sideways by itself where it is wider than the page."""
    kinds = ["words" if index in content.left else "number" for index in range(len(content.columns))]
    head = [
        element("th", name, scope="col", class_=kind)
        for name, kind in zip(content.columns, kinds, strict=True)
    ]
    rows = [
        element("tr", *(element("td", cell, class_=kind) for cell, kind in zip(row, kinds, strict=True)))
        for row in content.rows
    ]
    body = element("table", element("thead", element("tr", *head)), element("tbody", *rows))
    return element("div", body, class_="scroll", tabindex="0", role="region", aria_label="table")


def facts(pairs: Iterable[tuple[str, str]]) -> Markup:
    """Build a list of names and values."""
    rows = [joined([element("dt", name), element("dd", value)]) for name, value in pairs if value]
    return element("dl", *rows)


def bullets(lines: Iterable[str], *, numbered: bool = False) -> Markup:
    """Build a list."""
    return element("ol" if numbered else "ul", *(element("li", line) for line in lines))
