"""Colours: readable on their ground, apart for colour-blind people, one for every component."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from layoutopt.optimizer.cost.components import Component
from layoutopt.optimizer.report.html.memory import BUFFERS, GROUPS
from layoutopt.optimizer.report.html.palette import (
    AXES,
    DARK,
    LIGHT,
    MEMORY,
    SERIES,
    WALL,
    css_variables,
    variable,
)
from layoutopt.optimizer.report.html.timeline import COLOURS

THEMES = {"light": LIGHT, "dark": DARK}
GRAPHICS_CONTRAST = 3.0
"""WCAG 2.1, criterion 1.4.11."""

TEXT_CONTRAST = 4.5
"""WCAG 2.1, criterion 1.4.3."""

APART = 18.0
"""Distance in CIE Lab from which neighbouring areas are told apart without effort; 2.3 is just noticeable."""

# Machado, Oliveira, Fernandes 2009, "A Physiologically-based Model for Simulation of Color Vision Deficiency", table 1,
# severity 1.0: linear RGB to linear RGB.
VISION = {
    "normal": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}
RGB_TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
WHITE = np.array([0.95047, 1.0, 1.08883])


def linear(colour: str) -> np.ndarray:
    """Return linear RGB of a hexadecimal colour."""
    channels = np.array([int(colour[start : start + 2], 16) for start in (1, 3, 5)]) / 255
    return np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)


def contrast(one: str, other: str) -> float:
    """Return WCAG's contrast ratio."""
    light, dark = sorted((float(RGB_TO_XYZ[1] @ linear(colour)) for colour in (one, other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def lab(rgb: np.ndarray) -> np.ndarray:
    """Return CIE Lab of linear RGB."""
    scaled = RGB_TO_XYZ @ np.clip(rgb, 0, 1) / WHITE
    root = np.where(scaled > 0.008856, np.cbrt(scaled), 7.787 * scaled + 16 / 116)
    return np.array([116 * root[1] - 16, 500 * (root[0] - root[1]), 200 * (root[1] - root[2])])


@pytest.mark.parametrize("theme", THEMES.values(), ids=THEMES)
def test_marks_stand_out_from_the_page(theme: dict[str, str]) -> None:
    """Everything that is drawn has a contrast of 3 against the page."""
    hues = {
        *SERIES,
        *(part.record.hue for part in Component),
        *MEMORY.values(),
        *AXES.values(),
        *WALL.values(),
        *COLOURS.values(),
    }
    for name in hues:
        assert contrast(theme[name], theme["paper"]) >= GRAPHICS_CONTRAST, name


@pytest.mark.parametrize("theme", THEMES.values(), ids=THEMES)
@pytest.mark.parametrize("ground", ["paper", "panel"])
def test_text_is_readable(theme: dict[str, str], ground: str) -> None:
    """Text has a contrast of 4.5 on the page and on panels."""
    for name in ("ink", "muted", "good", "warn", "bad"):
        assert contrast(theme[name], theme[ground]) >= TEXT_CONTRAST, name


@pytest.mark.parametrize("theme", THEMES.values(), ids=THEMES)
@pytest.mark.parametrize("vision", VISION)
def test_hues_keep_apart(theme: dict[str, str], vision: str) -> None:
    """Lines and stacked components are told apart with every kind of colour vision."""
    matrix = VISION[vision]
    for names in (SERIES, tuple(MEMORY.values()), tuple(WALL.values()), tuple(COLOURS.values())):
        for one, other in combinations(names, 2):
            distance = np.linalg.norm(lab(matrix @ linear(theme[one])) - lab(matrix @ linear(theme[other])))
            assert distance >= APART - 0.5, (one, other, distance)


def test_every_component_has_a_colour() -> None:
    """What the cost model reports can be drawn: components of the step, groups of memory."""
    assert {part.record.hue for part in Component} <= set(LIGHT)
    assert set(MEMORY) == {*GROUPS, BUFFERS}


def test_themes_hold_the_same_names() -> None:
    """A colour of one theme exists in the other, and unknown names are refused."""
    assert set(LIGHT) == set(DARK)
    assert css_variables({"ink": "#000000"}) == "--ink:#000000;"
    with pytest.raises(KeyError):
        variable("mauve")
