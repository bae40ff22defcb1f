"""A whole page in one file: style, words, figures and the plotting library; it asks no other file for anything."""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutopt.optimizer.report.html.markup import Markup, element, joined
from layoutopt.optimizer.report.html.style import SCRIPT, STYLE
from layoutopt.optimizer.specs.errors import input_error
from layoutopt.optimizer.specs.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from layoutopt.optimizer.report.html.chart import Section

POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
"""Forbids the browser every request, so that a page stays what it was when it was written."""

MISSING_PLOTLY = "needs plotly, which is not installed"
INSTALL = "pip install plotly"


def require_plotly() -> None:
    """Check that pages can be written; raises ``InputError`` naming the extra that is missing."""
    plotting_library()


def plotting_library() -> str:
    """Return the plotting library's JavaScript; raises ``InputError`` naming the extra that is missing."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise input_error(MISSING_PLOTLY, INSTALL, key="--report") from None
    script: str = get_plotlyjs()
    return script


def page(title: str, subtitle: str, lead: Sequence[Markup], sections: Iterable[Section]) -> str:
    """Write a page: heading, what comes first, sections; the plotting library only if something is plotted.

    Raises ``InputError`` when the plotting library is not installed.
    """
    drawn = [_section(section) for section in sections]
    library = Markup(plotting_library() if any("data-figure" in section for section in drawn) else "")
    head = [
        element("meta", charset="utf-8"),
        element("meta", name_="viewport", content="width=device-width, initial-scale=1"),
        element("meta", http_equiv="Content-Security-Policy", content=POLICY),
        element("meta", name_="generator", content=f"layoutopt {VERSION}"),
        element("link", rel="icon", href="data:,"),  # or browsers ask the server for one
        element("title", title),
        element("style", Markup(STYLE)),
    ]
    body = [
        element("header", element("h1", title), element("p", subtitle)),
        *lead,
        *drawn,
        element("noscript", element("p", "Charts need JavaScript; tables below them hold the same numbers.")),
        element("footer", element("p", f"Made by layoutopt {VERSION}.")),
        element("script", library),
        element("script", Markup(SCRIPT)),
    ]
    document = element("html", element("head", *head), element("body", *body), lang="en")
    return f"<!DOCTYPE html>\n{document}\n"


def _section(section: Section) -> Markup:
    return element("section", element("h2", section.title), *section.blocks)


def tiles(pairs: Iterable[tuple[str, str]]) -> Markup:
    """Show a few key numbers, each with its name; those without a value are left out."""
    shown = [
        element("div", element("b", value), element("span", name), class_="tile")
        for name, value in pairs
        if value
    ]
    return element("div", *shown, class_="tiles")


def warning(words: Iterable[str]) -> Markup:
    """Show lines that must not be overlooked."""
    return joined(element("p", line, class_="warn") for line in words)
