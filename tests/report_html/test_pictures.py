"""Pictures in SVG: well formed, complete, true to the numbers, and drawn as PNG."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from layoutopt.optimizer.cost.components import Component
from layoutopt.optimizer.report.html import raster
from layoutopt.optimizer.report.html.front import front_page, front_picture
from layoutopt.optimizer.report.html.main_charts import sweep_picture, training_picture
from layoutopt.optimizer.report.html.palette import LIGHT, MEMORY, WALL
from layoutopt.optimizer.report.html.picture import solve_picture
from layoutopt.optimizer.report.html.raster import find_renderer, require_renderer, size_px, to_png
from layoutopt.optimizer.report.html.series import nice_values, spaced
from layoutopt.optimizer.report.html.svg import Scale, spread_apart, ticks, width_px
from layoutopt.optimizer.solve.pareto import Front, FrontPoint
from layoutopt.optimizer.specs.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

    from layoutopt.optimizer.plan.training_plan import TrainingPlan
    from layoutopt.optimizer.solve.plan import Plan
    from layoutopt.optimizer.sweep.rows import Row

SVG = "{http://www.w3.org/2000/svg}"
MEMORY_PANEL_X = 540.0
positive = st.floats(min_value=1e-6, max_value=1e9)


def parsed(svg: str) -> ElementTree.Element:
    """Parse a picture and check what holds for each: size, words for screen readers, nothing from elsewhere."""
    root = ElementTree.fromstring(svg)
    assert root.get("role") == "img"
    assert root.findtext(f"{SVG}title")
    assert root.findtext(f"{SVG}desc")
    assert not re.search(r"href|url\(|@import|script", svg)
    width, _ = size_px(svg)
    for words in root.iter(f"{SVG}text"):
        start = float(words.get("x", "0"))
        size = float(words.get("font-size", "12"))
        reach = {"start": 1.0, "middle": 0.5, "end": 0.0}[words.get("text-anchor", "start")]
        assert start + reach * width_px(words.text or "", size) <= width, words.text
        assert start - (1 - reach) * width_px(words.text or "", size) >= -2, words.text
    return root


def heights(root: ElementTree.Element, colour: str) -> list[float]:
    """Return the heights of all bars of a colour."""
    return [float(r.get("height", "0")) for r in root.iter(f"{SVG}rect") if r.get("fill") == LIGHT[colour]]


def test_memory_bars_are_true_to_scale(plan: Plan) -> None:
    """Heights of bars right of the panel's axis are proportional to the bytes, rank by rank."""
    assert plan.estimate is not None
    root = parsed(solve_picture(plan))
    rects = [r for r in root.iter(f"{SVG}rect") if float(r.get("x", "0")) > MEMORY_PANEL_X]
    bars = [float(r.get("height", "0")) for r in rects if r.get("fill") == LIGHT[MEMORY["weights"]]]
    wanted = [stage.components_bytes["weights"] for stage in plan.estimate.memory.stages]
    assert len(bars) == len(wanted)
    for height, size in zip(bars, wanted, strict=True):
        assert height / bars[0] == pytest.approx(size / wanted[0], rel=1e-3)


def test_step_bars_are_true_to_scale(plan: Plan) -> None:
    """The longest components' widths have the ratio of their seconds."""
    assert plan.estimate is not None
    root = parsed(solve_picture(plan))
    width = {
        name: max(
            float(r.get("width", "0"))
            for r in root.iter(f"{SVG}rect")
            if r.get("fill") == LIGHT[name.record.hue]
        )
        for name in (Component.FORWARD, Component.BACKWARD)
    }
    parts = plan.estimate.breakdown_s
    assert width[Component.FORWARD] / width[Component.BACKWARD] == pytest.approx(
        parts[Component.FORWARD] / parts[Component.BACKWARD], rel=1e-3
    )


def test_sweep_picture_draws_every_answer(rows: list[Row]) -> None:
    """Two panels have a dot for every row with a layout, each line its name."""
    root = parsed(sweep_picture(rows))
    answered = [row for row in rows if row["step_time_s"] is not None]
    assert len(list(root.iter(f"{SVG}circle"))) == 2 * len(answered)
    texts = [words.text for words in root.iter(f"{SVG}text")]
    assert "200 Gbit/s" in texts
    assert "400 Gbit/s" in texts


def test_training_picture_draws_every_cause(training: TrainingPlan) -> None:
    """Each cause of lost time has a bar in each mode, and one in the legend."""
    root = parsed(training_picture(training))
    for colour in WALL.values():
        assert len(heights(root, colour)) == 1 + len(training.faults.schedules)


def test_nothing_to_draw_is_said(infeasible: Plan, rows: list[Row]) -> None:
    """Without any layout there is no picture."""
    with pytest.raises(InputError, match="no layout to draw"):
        solve_picture(infeasible)
    with pytest.raises(InputError, match="no point"):
        sweep_picture([row for row in rows if row["step_time_s"] is None])


@pytest.mark.skipif(find_renderer() is None, reason="neither Chromium nor kaleido is installed")
def test_png_has_the_pictures_size_and_colours(plan: Plan) -> None:
    """A PNG is twice the picture's size in each direction."""
    svg = solve_picture(plan)
    drawn = to_png(svg)
    assert drawn.startswith(raster.PNG_SIGNATURE)
    width, height = (int.from_bytes(drawn[start : start + 4]) for start in (16, 20))
    assert (width, height) == tuple(raster.SCALE * side for side in size_px(svg))
    assert len(drawn) > 20_000  # an empty page of this size takes a few thousand bytes


def test_png_without_any_renderer_is_one_line(monkeypatch: pytest.MonkeyPatch, plan: Plan) -> None:
    """Where nothing can draw a PNG the error says so and that SVG works."""
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(raster, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"neither was found \(a name ending in \.svg\)"):
        require_renderer()


@pytest.mark.parametrize("program", ["/bin/true", "/nonexistent/chromium"])
def test_a_browser_that_fails_is_one_line(monkeypatch: pytest.MonkeyPatch, plan: Plan, program: str) -> None:
    """A browser that writes nothing or cannot start is an error of one line."""
    monkeypatch.setattr(raster, "find_renderer", lambda: program)
    with pytest.raises(InputError, match=r"could not draw the PNG: .*\.svg"):
        to_png(solve_picture(plan))


@given(positive, st.floats(min_value=1e-3, max_value=1e6))
def test_ticks_are_round_and_inside(low: float, span: float) -> None:
    """Ticks stay in the range, ascend evenly, and are neither too many nor too few."""
    found = ticks(low, low + span)
    assert all(low - 1e-9 * (low + span) <= value <= low + span + 1e-9 * (low + span) for value in found)
    assert found == sorted(set(found))
    assert 2 <= len(found) <= 8


@given(positive, st.floats(min_value=1.0, max_value=1e6))
def test_nice_values_enclose_the_range(low: float, factor: float) -> None:
    """1-2-5 values start at or below the range and end at or above it."""
    found = nice_values(low, low * factor)
    assert found[0] <= low
    assert found[-1] >= low * factor
    assert all(f"{value:e}"[0] in "125" for value in found)


@given(st.lists(st.floats(min_value=0, max_value=1000), min_size=1, max_size=12))
def test_labels_keep_apart(wanted: list[float]) -> None:
    """Labels keep their gap and their order."""
    placed = spread_apart(wanted, 15.0)
    order = sorted(range(len(wanted)), key=wanted.__getitem__)
    for before, after in pairwise(order):
        assert placed[after] - placed[before] >= 15.0 - 1e-6


@given(st.sets(st.integers(min_value=1, max_value=10**6), min_size=1, max_size=40))
def test_ticks_of_a_logarithmic_axis_keep_apart(values: set[int]) -> None:
    """The ends stay, and what is between keeps its distance to its neighbours."""
    ordered = sorted(values)
    kept = spaced(ordered, 6)
    assert kept[0] == ordered[0]
    assert kept[-1] == ordered[-1]
    assert len(kept) <= 7


def test_scales_map_ends_to_ends() -> None:
    """Both kinds of scale reach both ends, and the middle lies where it should."""
    linear = Scale(low=0.0, high=10.0, start=100.0, end=0.0)
    assert (linear(0.0), linear(5.0), linear(10.0)) == (100.0, 50.0, 0.0)
    powers = Scale(low=1.0, high=100.0, start=0.0, end=10.0, logarithmic=True)
    assert powers(10.0) == pytest.approx(5.0)


def test_picture_size_is_read_from_the_picture(tmp_path: Path) -> None:
    """Fractions of a pixel are rounded up."""
    assert size_px('<svg viewBox="0 0 960 450.5">') == (960, 451)


def front_of(plan: Plan, *, complete: bool) -> Front:
    """Two points of a front: the plan's answer, and the same one three times slower in a third of the memory."""
    assert plan.layout is not None and plan.estimate is not None
    step_s, peak_gb = plan.estimate.step_time_s, plan.estimate.memory.peak_bytes / 1e9
    points = [
        FrontPoint(
            layout=plan.layout,
            estimate=plan.estimate,
            values=(step_s * slower, peak_gb / slower),
            proven=proven,
        )
        for slower, proven in ((1.0, True), (3.0, complete))
    ]
    return Front(goals=("time", "memory"), units=("s", "GB"), points=tuple(points), complete=complete)


@pytest.mark.parametrize("complete", [True, False])
def test_a_front_is_drawn_where_its_values_are(plan: Plan, complete: bool) -> None:
    """One dot per point, the slower one right of and below the other; open fronts are dashed, what is unproven hollow."""
    front = front_of(plan, complete=complete)
    root = parsed(front_picture(front, "a <model> on a cluster"))
    dots = list(root.iter(f"{SVG}circle"))
    assert len(dots) == 2
    (x, y), (right, lower) = ((float(one.get("cx", "0")), float(one.get("cy", "0"))) for one in dots)
    assert x < right and y < lower
    assert [one.get("fill") == LIGHT["paper"] for one in dots] == [False, not complete]
    dashed = [one for one in root.iter(f"{SVG}polyline") if one.get("stroke-dasharray")]
    assert bool(dashed) is not complete
    page = front_page(front, "a <model> on a cluster", [None] * 2)
    assert "a &lt;model&gt;" in page and "a <model>" not in page
    assert page.count("<circle") == 2 and f"{front.points[1].values[0]:,.6g} s" in page


def test_a_front_of_one_point_is_drawn(plan: Plan) -> None:
    """A single point, and one of cost nothing, has a place in the middle."""
    front = front_of(plan, complete=True)
    one = replace(front, points=(replace(front.points[0], values=(2.0, 0.0)),))
    assert len(list(parsed(front_picture(one, "one")).iter(f"{SVG}circle"))) == 1
