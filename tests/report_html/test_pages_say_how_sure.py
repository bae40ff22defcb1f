"""Every page and printed answer says how sure it is, whether it fits, and what room is left."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from layoutopt.optimizer.report.html.planned import training_page
from layoutopt.optimizer.report.html.solved import solve_page
from layoutopt.optimizer.report.html.swept import sweep_page

if TYPE_CHECKING:
    from collections.abc import Sequence

    from layoutopt.optimizer.plan.training_plan import TrainingPlan
    from layoutopt.optimizer.solve.plan import Plan
    from layoutopt.optimizer.sweep.rows import Row


def _text(page: str) -> str:
    """What a reader sees: without scripts, styles and tags."""
    visible = re.sub(r"(?s)<(script|style).*?</\1>", " ", page)
    return " ".join(re.sub(r"<[^>]+>", " ", visible).split())


def test_the_page_of_an_answer(plan: Plan) -> None:
    """Interval, verdict and headroom stand on top, the error band in its own section."""
    page = solve_page(plan)
    text = _text(page)
    assert plan.verdict is not None
    assert f"Memory: {plan.verdict.value}" in text.replace(" .", ".")
    assert "per step, 80% interval" in text and "memory left" in text
    assert "How sure" in text and "measured runs of this kind" in text


def test_the_page_of_a_training_plan(training: TrainingPlan) -> None:
    """The plan's interval, its memory and the band are there too."""
    text = _text(training_page(training))
    assert "days, 80% interval" in text
    assert "How sure" in text and "measured runs of this kind" in text
    assert text.count("GB left") == len(training.phases)


def test_the_page_of_a_sweep_lists_its_layouts_openly(rows: Sequence[Row]) -> None:
    """The table of layouts is not folded away, and has each one's memory and the band of the sweep."""
    page = sweep_page(rows, sure=("131 measured runs of this kind are 8% off",))
    assert "131 measured runs of this kind are 8% off" in _text(page)
    unfolded = re.sub(r"(?s)<details>.*?</details>", " ", page)
    tables = re.findall(r"(?s)<table.*?</table>", unfolded)
    (layouts,) = [table for table in tables if "peak GB" in table]
    assert layouts.count("<tr") == 1 + len(rows)
    for row in rows:
        if row["step_time_s"] is not None:
            assert f"dp{row['dp']} " in layouts and row["verdict"] in layouts
