"""Pictures as PNG: by a browser without a window where there is one, else by kaleido, which may bring its own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from base64 import b64encode
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from layoutopt.optimizer.specs.errors import input_error

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "msedge")
"""Programs that take Chromium's flags."""

KALEIDO = "kaleido"

FLAGS = (
    "--headless",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)

SCALE = 2
"""Pixels per CSS pixel, so that text is sharp on paper and on dense screens."""

TIMEOUT_S = 60.0
PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"


def find_renderer() -> str | None:
    """Return what can draw a PNG here: a browser's path, ``kaleido``, or None."""
    browser = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    # Kaleido is called through plotly.
    installed = find_spec("plotly") is not None and find_spec("kaleido") is not None
    return browser or (KALEIDO if installed else None)


def require_renderer() -> None:
    """Check before any work that PNG can be written; raises ``InputError`` when nothing here can draw it."""
    if find_renderer() is None:
        raise input_error(
            "PNG needs chromium or kaleido, and neither was found", "a name ending in .svg", key="--plot"
        )


def to_png(svg: str) -> bytes:
    """Draw a picture; raises ``InputError`` when nothing here can, or what can fails."""
    require_renderer()
    renderer = find_renderer()
    assert renderer is not None
    return _by_kaleido(svg) if renderer == KALEIDO else _by_browser(svg, renderer)


def size_px(svg: str) -> tuple[int, int]:
    """Return width and height of a picture, rounded up."""
    match = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg)
    assert match is not None
    width, height = (float(side) for side in match.groups())
    return int(-(-width // 1)), int(-(-height // 1))


def _by_kaleido(svg: str) -> bytes:
    """Draw a figure that holds nothing but the picture."""
    from plotly.io import to_image

    width, height = size_px(svg)
    source = f"data:image/svg+xml;base64,{b64encode(svg.encode()).decode()}"
    image = {"source": source, "xref": "paper", "yref": "paper", "x": 0, "y": 1, "sizex": 1, "sizey": 1}
    figure: dict[str, Any] = {
        "data": [],
        "layout": {
            "images": [image],
            "margin": {"l": 0, "r": 0, "t": 0, "b": 0},
            "xaxis": {"visible": False},
            "yaxis": {"visible": False},
        },
    }
    try:
        drawn: bytes = to_image(figure, format="png", width=width, height=height, scale=SCALE)
    except Exception as error:  # whatever its browser or its protocol does; the answer is printed already
        raise _failed(KALEIDO, str(error).strip().splitlines()[0]) from None
    return drawn


def _by_browser(svg: str, browser: str) -> bytes:
    """Take a picture of a page that holds nothing but the picture."""
    width, height = size_px(svg)
    with tempfile.TemporaryDirectory(prefix="layoutopt-", ignore_cleanup_errors=True) as folder:
        source, target = Path(folder, "picture.html"), Path(folder, "picture.png")
        body = f"<!DOCTYPE html><meta charset=utf-8><style>body{{margin:0}}svg{{display:block}}</style>{svg}"
        source.write_text(body, encoding="utf-8")
        # Chromium's sandbox refuses to run as root; the page is ours and asks for nothing.
        root = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
        # A profile of its own: the user's browser may be running, and would take the call as a new tab.
        places = [
            f"--user-data-dir={folder}/profile",
            f"--screenshot={target}",
            f"--window-size={width},{height}",
        ]
        command = [browser, *FLAGS, *root, *places, f"--force-device-scale-factor={SCALE}", source.as_uri()]
        try:
            subprocess.run(command, capture_output=True, timeout=TIMEOUT_S, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise _failed(browser, str(error).splitlines()[0]) from None
        drawn = target.read_bytes() if target.is_file() else b""
    if not drawn.startswith(PNG_SIGNATURE):
        raise _failed(browser, "it wrote no picture")
    return drawn


def _failed(browser: str, why: str) -> Exception:
    return input_error(
        f"{Path(browser).name} could not draw the PNG: {why}", "a name ending in .svg", key="--plot"
    )
