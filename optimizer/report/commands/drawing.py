"""Write pages and pictures of an answer where they are asked for."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from layoutopt.optimizer.report.terminal import note
from layoutopt.optimizer.specs.errors import input_error
from layoutopt.optimizer.specs.writing import require_writable, write_file

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from layoutopt.optimizer.report.commands.options import DrawingOptions, OutputOptions
    from layoutopt.optimizer.solve.plan import Plan

REPORT, PLOT = "--report", "--plot"
PAGES = (".html", ".htm")
PICTURES = (".svg", ".png")


def require_drawing(drawing: DrawingOptions) -> None:
    """Check before any work that what is asked for can be drawn and written; raises ``InputError``."""
    if drawing.report is not None:
        _require_ending(drawing.report, PAGES, REPORT)
        require_writable(drawing.report, key=REPORT)
        from layoutopt.optimizer.report.html.page import require_plotly

        # The library is looked for now: a search of minutes must not end in a missing package.
        require_plotly()
    if drawing.plot is not None:
        _require_ending(drawing.plot, PICTURES, PLOT)
        require_writable(drawing.plot, key=PLOT)
        if drawing.plot.suffix.lower() == ".png":
            from layoutopt.optimizer.report.html.raster import require_renderer

            require_renderer()


def _require_ending(path: Path, endings: tuple[str, ...], key: str) -> None:
    if path.suffix.lower() not in endings:
        raise input_error(
            f"{path.name!r} has no known ending", f"a name ending in {' or '.join(endings)}", key=key
        )


def write_drawing(
    drawing: DrawingOptions, output: OutputOptions, *, page: Callable[[], str], picture: Callable[[], str]
) -> None:
    """Write the files that are asked for; ``page`` returns HTML, ``picture`` SVG. Raises ``InputError``."""
    if drawing.report is not None:
        write_file(drawing.report, page().encode(), key=REPORT)
        note(f"wrote {drawing.report}", output)
    if drawing.plot is not None:
        write_file(drawing.plot, _picture(drawing.plot, picture()), key=PLOT)
        note(f"wrote {drawing.plot}", output)


def draw_solve(plan: Plan, drawing: DrawingOptions, output: OutputOptions) -> None:
    """Write page and picture of a solved plan; without a layout there is only a page to write."""
    if not drawing.wanted:
        return
    from layoutopt.optimizer.report.html.picture import solve_picture
    from layoutopt.optimizer.report.html.solved import solve_page

    if plan.layout is None and drawing.plot is not None:
        note(f"there is no layout to draw: {drawing.plot} was not written", output)
        drawing = replace(drawing, plot=None)
    write_drawing(drawing, output, page=lambda: solve_page(plan), picture=lambda: solve_picture(plan))


def _picture(path: Path, svg: str) -> bytes:
    """Return a picture in the format of the file's ending."""
    if path.suffix.lower() == ".svg":
        return svg.encode()
    from layoutopt.optimizer.report.html.raster import to_png

    return to_png(svg)
