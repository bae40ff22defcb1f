"""A whole page in one file: style, words, figures and the plotting library; it asks no other file for anything."""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutopt.optimizer.report.html.chart import FONT
from layoutopt.optimizer.report.html.markup import Markup, element, joined
from layoutopt.optimizer.report.html.palette import DARK, LIGHT, css_variables
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
    # It is nearly all of a page's megabytes.
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


_RULES = """
* { box-sizing: border-box; }
html { background: var(--paper); color: var(--ink); -webkit-text-size-adjust: 100%; }
body { margin: 0 auto; max-width: 60rem; padding: 1rem; font: 1rem/1.45 FONT; }
h1 { font-size: 1.5rem; line-height: 1.2; margin: 0.5rem 0; overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; margin: 2.2rem 0 0.6rem; padding-bottom: 0.2rem; border-bottom: 1px solid var(--grid); }
h3 { font-size: 1rem; margin: 0; }
p { margin: 0.4rem 0; }
header p, .note { color: var(--muted); }
.note { font-size: 0.85rem; }
.good { color: var(--good); } .warn { color: var(--warn); } .bad { color: var(--bad); }
.tiles { display: grid; gap: 0.6rem; grid-template-columns: repeat(auto-fit, minmax(8.5rem, 1fr)); margin: 1rem 0; }
.tile { background: var(--panel); border-radius: 0.4rem; padding: 0.6rem 0.8rem; }
.tile b { display: block; font-size: 1.3rem; line-height: 1.25; font-variant-numeric: tabular-nums; }
.tile span { color: var(--muted); font-size: 0.85rem; }
code { font-family: ui-monospace, Menlo, Consolas, monospace; font-size: 0.85em; overflow-wrap: anywhere; }
.layout { background: var(--panel); border-radius: 0.4rem; padding: 0.6rem 0.8rem; }
figure { margin: 1.4rem 0 2rem; break-inside: avoid; }
.plot { width: 100%; position: relative; }
.plot .main-svg { max-width: 100%; }
ul.legend { display: flex; flex-wrap: wrap; gap: 0.2rem 1rem; list-style: none; margin: 0.4rem 0; padding: 0;
  font-size: 0.85rem; }
ul.legend i { display: inline-block; width: 0.75rem; height: 0.75rem; margin-right: 0.35rem; border-radius: 2px;
  print-color-adjust: exact; -webkit-print-color-adjust: exact; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: 0.85rem; margin: 0.4rem 0; }
th, td { padding: 0.2rem 0.6rem 0.2rem 0; text-align: right; vertical-align: top; white-space: nowrap;
  font-variant-numeric: tabular-nums; border-bottom: 1px solid var(--grid); }
th { color: var(--muted); font-weight: 600; }
.words { text-align: left; white-space: normal; min-width: 4.5rem; }
details { margin: 0.4rem 0; }
summary { cursor: pointer; color: var(--muted); font-size: 0.85rem; padding: 0.3rem 0; }
dl { display: grid; grid-template-columns: minmax(6rem, max-content) 1fr; gap: 0.15rem 1rem; margin: 0.4rem 0; }
dt { color: var(--muted); } dd { margin: 0; overflow-wrap: anywhere; }
ul, ol { padding-left: 1.3rem; margin: 0.4rem 0; }
.box { border: 1.5px solid var(--line); border-radius: 0.4rem; padding: 0.45rem 0.55rem; background: var(--paper); }
.box.many { box-shadow: 3px 3px 0 -1px var(--paper), 3px 3px 0 0 var(--line), 6px 6px 0 -1px var(--paper),
  6px 6px 0 0 var(--line); margin: 0 6px 6px 0; }
.box > .box { margin-top: 0.5rem; }
.box .head { display: flex; flex-wrap: wrap; justify-content: space-between; gap: 0 1rem; font-size: 0.85rem; }
.box .head b { font-size: 0.95rem; }
.chips { display: flex; flex-wrap: wrap; gap: 0.3rem; margin-top: 0.35rem; }
.chip { border-left: 0.45rem solid; background: var(--panel); border-radius: 0.2rem; padding: 0.1rem 0.5rem;
  font-size: 0.9rem; print-color-adjust: exact; -webkit-print-color-adjust: exact; }
.chip b { font-variant-numeric: tabular-nums; }
.gpus { display: flex; flex-wrap: wrap; gap: 0.25rem; margin-top: 0.45rem; }
.gpu { border: 1px solid var(--line); border-radius: 0.2rem; padding: 0.1rem 0.3rem; font-size: 0.75rem;
  min-width: 3.4rem; text-align: center; font-variant-numeric: tabular-nums; }
footer { margin-top: 2.5rem; border-top: 1px solid var(--grid); color: var(--muted); font-size: 0.85rem; }
@media print {
  body { max-width: none; padding: 0; font-size: 10pt; }
  .modebar, summary, details:not([open]) { display: none !important; }
  h2 { break-after: avoid; }
  .tile, .layout { border: 1px solid var(--grid); }
  .scroll { overflow: visible; }
}
"""

STYLE = (
    f":root{{color-scheme:light dark;{css_variables(LIGHT)}}}"
    f"@media screen and (prefers-color-scheme:dark){{:root:not([data-theme=light]){{{css_variables(DARK)}}}}}"
    + _RULES.replace("FONT", FONT)
)
"""Paper is always light: the dark theme is for screens alone."""

# Drawn anew when the theme changes and before printing, because a plotly figure holds plain colours and pixels.
SCRIPT = """
(function () {
  "use strict";
  var PRINT_WIDTH = 680;
  var root = document.documentElement;
  var dark = window.matchMedia("(prefers-color-scheme: dark)");
  var mouse = window.matchMedia("(pointer: fine)");
  var plots = Array.prototype.slice.call(document.querySelectorAll("[data-figure]"));
  function themed(value, style) {
    if (typeof value === "string") {
      var match = /^var\\((--[a-z]+)\\)$/.exec(value);
      return match ? style.getPropertyValue(match[1]).trim() : value;
    }
    if (Array.isArray(value)) { return value.map(function (item) { return themed(item, style); }); }
    if (value && typeof value === "object") {
      var copy = {};
      Object.keys(value).forEach(function (key) { copy[key] = themed(value[key], style); });
      return copy;
    }
    return value;
  }
  function draw(width) {
    var style = window.getComputedStyle(root);
    plots.forEach(function (place) {
      var figure = themed(JSON.parse(document.getElementById(place.dataset.figure).textContent), style);
      if (width) { figure.layout.width = width; } else { figure.layout.autosize = true; }
      var zoom = mouse.matches && figure.layout.meta && figure.layout.meta.zoom;
      if (zoom) { figure.layout.dragmode = "zoom"; }
      Plotly.react(place, figure.data, figure.layout, {
        responsive: true, displaylogo: false, displayModeBar: zoom ? "hover" : false,
        modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"]
      });
    });
  }
  draw();
  dark.addEventListener("change", function () { draw(); });
  window.addEventListener("beforeprint", function () { root.dataset.theme = "light"; draw(PRINT_WIDTH); });
  window.addEventListener("afterprint", function () { delete root.dataset.theme; draw(); });
  root.dataset.drawn = String(plots.length);
})();
"""
"""Draws every figure in the colours of the theme."""
