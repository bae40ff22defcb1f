"""Every colour of pages and pictures, in one place.

The hues keep apart for people with protanopia, deuteranopia and tritanopia and stand out from the page (contrast of
at least 3, WCAG 2.1 criterion 1.4.11); a test measures both. A component has one colour wherever it is drawn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutopt.optimizer.cost.components import TRAFFIC

if TYPE_CHECKING:
    from collections.abc import Mapping

Theme = dict[str, str]

LIGHT: Theme = {
    "paper": "#ffffff",
    "panel": "#f4f6f8",
    "ink": "#1a1d22",
    "muted": "#545c68",
    "grid": "#e0e4e9",
    "line": "#a4acb7",
    "good": "#0f6b4f",
    "warn": "#8a5200",
    "bad": "#a3181f",
    "blue": "#2f4fbf",
    "sky": "#3e95d7",
    "green": "#0f6b4f",
    "orange": "#d3790f",
    "plum": "#6b2477",
    "grey": "#8391a0",
    "gold": "#7d4a00",
    "red": "#64101a",
    "slate": "#454d58",
}
"""Colours on white, also of print and of pictures."""

DARK: Theme = {
    "paper": "#14171c",
    "panel": "#1d2128",
    "ink": "#e8eaed",
    "muted": "#a7afba",
    "grid": "#2b313a",
    "line": "#626b78",
    "good": "#3fb380",
    "warn": "#e89a45",
    "bad": "#ff8a80",
    "blue": "#4f74e8",
    "sky": "#a9daf5",
    "green": "#3fb380",
    "orange": "#e89a45",
    "plum": "#b98be6",
    "grey": "#737a86",
    "gold": "#f5e04a",
    "red": "#c93c38",
    "slate": "#b4bbc5",
}
"""Colours on a dark page."""

SERIES = ("blue", "orange", "green", "plum", "sky", "red", "gold", "grey")
"""Hues of unrelated lines, in the order in which they are given out."""

AXES: Mapping[str, str] = {part.key: part.record.hue for part in TRAFFIC if part.key == part.record.axis} | {
    "etp": "orange",
    "edp": "green",
}
"""Axes of the layout: the colour of the traffic that they cause."""

MEMORY: Mapping[str, str] = {
    "weights": "blue",
    "gradients": "sky",
    "optimizer state": "green",
    "activations": "orange",
    "logits": "plum",
    "buffers": "grey",
}
"""Groups of the components of memory, from the bottom of a bar to its top."""

WALL: Mapping[str, str] = {
    "training": "blue",
    "checkpoints": "gold",
    "lost work": "orange",
    "restarts": "red",
}
"""What the wall-clock time of a run is spent on."""


def variable(name: str) -> str:
    """Return the CSS variable of a colour; pages replace it by the colour of the theme in use.

    Raises ``KeyError`` for an unknown one.
    """
    if name not in LIGHT:
        raise KeyError(name)
    return f"var(--{name})"


def css_variables(theme: Theme) -> str:
    """Write a theme as CSS declarations."""
    return "".join(f"--{name}:{value};" for name, value in theme.items())
