"""Charts of pages: the figures are valid, add up, and say what they show."""

from __future__ import annotations

import json
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING

import numpy as np
import pytest

from layoutopt.optimizer.cost.components import Component, Place
from layoutopt.optimizer.cost.orders import Pipeline
from layoutopt.optimizer.report.html.memory import grouped_bytes, memory_chart, memory_message
from layoutopt.optimizer.report.html.palette import LIGHT
from layoutopt.optimizer.report.html.scaling import (
    cost_chart,
    gpu_hours,
    mfu_chart,
    perfect_scaling,
    step_time_chart,
)
from layoutopt.optimizer.report.html.series import DrawnLines, lines_by_model, short
from layoutopt.optimizer.report.html.solved import ties_block, ties_chart
from layoutopt.optimizer.report.html.step import (
    MAX_OPERATIONS,
    DrawnStep,
    draw_step,
    drawn_pipeline,
    step_chart,
)
from layoutopt.optimizer.report.html.timeline import timeline_chart
from layoutopt.optimizer.report.html.topology import placed_levels, shown_axes, topology_chart
from layoutopt.optimizer.report.html.wall import goodput_chart, recipe_chart, wall_chart, wall_days
from layoutopt.optimizer.simulate.engine import StageWork, simulate
from layoutopt.optimizer.solve.inputs import question_from_plain
from layoutopt.optimizer.specs.layout import Layout
from layoutopt.optimizer.specs.loading import load_cluster
from layoutopt.optimizer.specs.vocabulary import Schedule

if TYPE_CHECKING:
    from layoutopt.optimizer.plan.training_plan import TrainingPlan
    from layoutopt.optimizer.report.html.chart import Chart, Figure
    from layoutopt.optimizer.solve.plan import Plan
    from layoutopt.optimizer.sweep.rows import Row


def figure_of(chart: Chart) -> Figure:
    """Return a chart's figure, checked by plotly itself with plain colours in place of variables."""
    from plotly.graph_objects import Figure as PlotlyFigure

    assert isinstance(chart.drawing, dict)
    written = json.dumps(chart.drawing, allow_nan=False)
    for name, colour in LIGHT.items():
        written = written.replace(f"var(--{name})", colour)
    assert "var(" not in written
    PlotlyFigure(json.loads(written))
    assert chart.title
    assert chart.message.endswith(".")
    assert chart.message in chart.description
    return chart.drawing


def test_memory_stacks_add_up(plan: Plan) -> None:
    """Every rank's stack is its total, in GB; the line is the capacity."""
    assert plan.estimate is not None
    memory = plan.estimate.memory
    figure = figure_of(memory_chart(memory))
    stacks = np.sum([trace["y"] for trace in figure["data"]], axis=0)
    totals = [stage.total_bytes / 1e9 for stage in memory.stages]
    assert stacks == pytest.approx(totals, abs=0.01)
    assert figure["layout"]["shapes"][0]["y0"] == pytest.approx(memory.capacity_bytes / 1e9)
    assert all(
        sum(grouped_bytes(stage).values()) == pytest.approx(stage.total_bytes) for stage in memory.stages
    )


def test_memory_message_names_the_fullest_rank(plan: Plan) -> None:
    """The sentence names the rank with most bytes and its share, or that all are alike."""
    assert plan.estimate is not None
    memory = plan.estimate.memory
    fullest = max(memory.stages, key=lambda stage: stage.total_bytes)
    assert f"Rank {fullest.rank} is the fullest" in memory_message(memory)
    assert f"({fullest.total_bytes / memory.capacity_bytes:.0%})" in memory_message(memory)
    assert memory_message(replace(memory, stages=(fullest, fullest))).startswith("Every rank takes")


def test_step_bars_add_up(plan: Plan) -> None:
    """Bars sum to the step time but for slivers, and the table lists every component."""
    assert plan.estimate is not None
    chart = step_chart(plan.estimate)
    figure = figure_of(chart)
    assert sum(figure["data"][0]["x"]) == pytest.approx(plan.estimate.step_time_s, rel=2e-3)
    assert len(figure["layout"]["annotations"]) == len(figure["data"][0]["x"])
    assert chart.table is not None
    assert len(chart.table.rows) == 1 + sum(value > 0 for value in plan.estimate.breakdown_s.values())


def test_ties_show_the_answer_and_every_runner_up(plan: Plan) -> None:
    """There is a point for each, at its step time and memory; without runners-up there is no chart."""
    assert plan.estimate is not None
    figure = figure_of(ties_chart(plan, plan.estimate))
    others = [other.estimate for other in plan.alternatives]
    assert figure["data"][0]["y"] == [one.step_time_s for one in (plan.estimate, *others)]
    low, high = figure["layout"]["yaxis"]["range"]
    assert low < min(figure["data"][0]["y"]) <= max(figure["data"][0]["y"]) < high
    assert ties_block(replace(plan, alternatives=())) == ""


@pytest.mark.parametrize("name", ["plan", "moe_plan"])
def test_levels_multiply_to_the_degrees(name: str, request: pytest.FixtureRequest) -> None:
    """Along the levels every axis grows from 1 to its degree; the chart names each one."""
    plan: Plan = request.getfixturevalue(name)
    assert plan.layout is not None
    assert plan.estimate is not None
    cluster = question_from_plain(plan.inputs).cluster
    levels = placed_levels(plan.layout, cluster)
    for axis in shown_axes(plan.layout):
        factors = [c.factor for level in levels for c in level.crossings if c.axis == axis]
        assert prod(factors) == pytest.approx(getattr(plan.layout, axis)), axis
    chart = topology_chart(plan.layout, plan.estimate, cluster)
    assert chart.drawing.count("chip") >= len(shown_axes(plan.layout))  # type: ignore[union-attr]
    assert chart.table is not None
    assert len(chart.table.rows) == len(shown_axes(plan.layout))


def test_axes_lie_where_the_mesh_order_puts_them() -> None:
    """Eight tensor ranks fill NVLink; pipeline ranks, outermost, meet on the last level alone."""
    layout = Layout(tp=8, pp=4, dp=32, mesh_order="tp-cp-ep-dp-pp")
    levels = {level.name: level for level in placed_levels(layout, load_cluster("h100-1024"))}
    first, *_, last = levels.values()
    assert [(c.axis, c.members) for c in first.crossings] == [("tp", 8)]
    assert [(c.axis, c.members, c.even) for c in last.crossings] == [("pp", 4, True)]
    inner = Layout(tp=8, pp=4, dp=32, mesh_order="tp-cp-pp-ep-dp")
    first, second, *_ = placed_levels(inner, load_cluster("h100-1024"))
    assert [c.axis for c in second.crossings] == ["pp", "dp"]


def test_one_gpu_has_no_levels(plan: Plan) -> None:
    """A single GPU is a box without links."""
    assert plan.estimate is not None
    chart = topology_chart(Layout(), plan.estimate, load_cluster("h100x1"))
    assert "gpu0" in str(chart.drawing)


def drawn(figure: Figure, axis: str = "x") -> dict[str, float]:
    """Return the area of the rectangles of each trace in seconds of a full row."""
    areas: dict[str, float] = {}
    for trace in figure["data"]:
        if trace["xaxis"] == axis:
            x = np.array([value for value in trace["x"] if value is not None]).reshape(-1, 5)
            y = np.array([value for value in trace["y"] if value is not None]).reshape(-1, 5)
            areas[trace["name"]] = float(((x[:, 1] - x[:, 0]) * (y[:, 2] - y[:, 1])).sum() / 0.84)
    return areas


def small_step(schedule: Schedule = Schedule.ONE_F_ONE_B, **sizes: int) -> DrawnStep:
    """Simulate a small pipeline: a forward takes a second, a backward two."""
    degrees = {"pp": 4, "vp": 1, "micro_batches": 8} | sizes
    pipeline = Pipeline(
        schedule=schedule, pp=degrees["pp"], vp=degrees["vp"], micro_batches=degrees["micro_batches"]
    )
    ones = np.ones((degrees["pp"], pipeline.chunks))
    result = simulate(pipeline, StageWork(forward_s=ones, dgrad_s=ones, wgrad_s=ones))
    count = degrees["micro_batches"]
    return DrawnStep(result=result, micro_batches=count, all_micro_batches=count)


def test_timeline_draws_every_operation() -> None:
    """Of a small step every operation is a rectangle: forwards take a third of the work, backwards two."""
    step = small_step()
    areas = drawn(figure_of(timeline_chart(step)))
    assert areas == pytest.approx({"forward": 4 * 8 * 1.0, "backward": 4 * 8 * 2.0}, rel=1e-3)


@pytest.mark.parametrize(
    ("schedule", "sizes"),
    [
        (Schedule.GPIPE, {}),
        (Schedule.INTERLEAVED, {"vp": 2}),
        (Schedule.ZB_H1, {}),
        (Schedule.ZB_V, {"vp": 2}),
        (Schedule.DUALPIPE, {}),
        (Schedule.DUALPIPE_V, {"vp": 2}),
    ],
)
def test_timeline_draws_every_schedule(schedule: Schedule, sizes: dict[str, int]) -> None:
    """Whatever the schedule, what is drawn is what ranks are busy."""
    step = small_step(schedule, **sizes)
    areas = drawn(figure_of(timeline_chart(step)))
    assert sum(areas.values()) == pytest.approx(float(step.result.busy_s.sum()), rel=1e-3)


def test_crowded_timeline_keeps_the_busy_time() -> None:
    """A step with more operations than pixels is drawn in stretches, of the same area, with a close-up below."""
    step = small_step(micro_batches=400)
    figure = figure_of(timeline_chart(step))
    assert sum(drawn(figure).values()) == pytest.approx(float(step.result.busy_s.sum()), rel=0.03)
    assert drawn(figure, "x2")
    assert len(json.dumps(figure)) < 100_000


def test_long_steps_are_shortened_and_say_so() -> None:
    """Of a million operations few enough are drawn, and short steps whole; a pipeline of one rank is not drawn."""
    long = Layout(pp=64, vp=2, micro_batches=8192, schedule=Schedule.INTERLEAVED)
    pipeline = drawn_pipeline(long)
    assert pipeline is not None
    assert 3 * 64 <= pipeline.micro_batches <= MAX_OPERATIONS // 64
    short_one = replace(long, pp=4, micro_batches=20)
    assert drawn_pipeline(short_one) == Pipeline(schedule=long.schedule, pp=4, vp=2, micro_batches=20)
    assert drawn_pipeline(Layout()) is None
    step = replace(small_step(), all_micro_batches=80)
    assert "8 of 80 micro-batches" in timeline_chart(step).note


def test_step_of_a_plan_is_simulated(plan: Plan) -> None:
    """The simulated step of a solved layout takes about what its estimate says."""
    assert plan.layout is not None
    assert plan.estimate is not None
    step = draw_step(question_from_plain(plan.inputs), plan.layout, plan.estimate)
    assert step is not None
    assert not step.shortened
    outside = sum(plan.estimate.breakdown_s[name] for name in Component if name.record.place is Place.OUTSIDE)
    assert step.result.makespan_s + outside == pytest.approx(plan.estimate.step_time_s, rel=0.1)


def test_sweep_lines_hold_every_answer(rows: list[Row]) -> None:
    """Lines differ in the network, run along the GPUs, and hold each answered row once."""
    (found,) = lines_by_model(rows)
    assert found.along == "gpus"
    assert [line.name for line in found.lines] == ["200 Gbit/s", "400 Gbit/s"]
    answered = [row for row in rows if row["step_time_s"] is not None]
    assert sum(len(line.rows) for line in found.lines) == len(answered)
    assert len(found.unanswered) == len(rows) - len(answered)
    assert len({(line.colour, line.dash) for line in found.lines}) == len(found.lines)


def test_sweep_charts_show_the_rows(rows: list[Row]) -> None:
    """Step time, MFU and GPU-hours are the rows' own, and cost is their multiple."""
    (found,) = lines_by_model(rows)
    steps, mfus = figure_of(step_time_chart(found, "a")), figure_of(mfu_chart(found, "a"))
    free, paid = figure_of(cost_chart(found, "a", None)), figure_of(cost_chart(found, "a", 2.0))
    for index, line in enumerate(found.lines):
        assert steps["data"][index]["y"] == pytest.approx([row["step_time_s"] for row in line.rows], rel=1e-5)
        assert mfus["data"][index]["y"] == pytest.approx(
            [100 * row["mfu_causal"] for row in line.rows], rel=1e-5
        )
        assert free["data"][index]["y"] == pytest.approx([gpu_hours(row) for row in line.rows], rel=1e-5)
        assert paid["data"][index]["y"] == pytest.approx([2 * gpu_hours(row) for row in line.rows], rel=1e-5)


def test_gpu_hours_of_a_trillion_tokens() -> None:
    """1,000 GPUs that train a million tokens in 3.6 s take a million GPU-hours for a trillion."""
    row = {"gpus": 1000, "step_time_s": 3.6, "global_batch": 1000, "sequence_length": 1000}
    assert gpu_hours(row) == pytest.approx(1e6)


def test_perfect_scaling_halves_with_twice_the_gpus(rows: list[Row]) -> None:
    """The dashed line keeps GPUs times seconds; sizes that don't vary have none."""
    (found,) = lines_by_model(rows)
    ends = perfect_scaling(found)
    assert ends is not None
    assert ends[0][0] * ends[0][1] == pytest.approx(ends[1][0] * ends[1][1])
    assert (
        perfect_scaling(DrawnLines(model="m", along="global_batch", lines=found.lines, unanswered=())) is None
    )


def test_many_lines_stay_distinguishable(rows: list[Row]) -> None:
    """Twenty lines differ in hue or dashes; one point of each is a line too; stopped ones are hollow."""
    answered = next(row for row in rows if row["step_time_s"] is not None)
    many = [answered | {"network_gbit_per_s": float(rate), "status": "stopped"} for rate in range(1, 21)]
    (found,) = lines_by_model([row | {"global_batch": size} for row in many for size in (8, 16)])
    assert found.along == "global_batch"
    assert len({(line.colour, line.dash) for line in found.lines}) == 20
    figure = figure_of(step_time_chart(found, "a"))
    assert all(symbol.endswith("-open") for symbol in figure["data"][0]["marker"]["symbol"])
    assert short(16_384) == "16k"
    assert short(1000) == "1,000"


def test_wall_clock_days_add_up(training: TrainingPlan) -> None:
    """Each bar's parts sum to the expected days of its mode."""
    figure = figure_of(wall_chart(training))
    bars = [trace for trace in figure["data"] if trace["type"] == "bar"]
    for index, schedule in enumerate(training.faults.schedules):
        assert sum(bar["x"][index] for bar in bars) == pytest.approx(schedule.wall_s / 86_400, abs=0.01)
        assert all(part >= 0 for part in wall_days(schedule, training.budget.days).values())


def test_goodput_marks_the_run(training: TrainingPlan) -> None:
    """One star stands at the run's own size."""
    figure = figure_of(goodput_chart(training.faults, training.gpus))
    marked = figure["data"][0]["marker"]["symbol"].index("star")
    assert figure["data"][0]["x"][marked] == training.gpus


def test_recipe_stands_beside_the_optimum(training: TrainingPlan) -> None:
    """Two bars in the ratio of the step times, or none where the recipe leads nowhere."""
    phase = training.phases[0]
    with_recipe = replace(phase, baseline=replace(phase.baseline, slower=0.25))
    chart = recipe_chart(with_recipe)
    assert chart is not None
    optimum, thumb = figure_of(chart)["data"][0]["x"]
    assert thumb / optimum == pytest.approx(1.25, rel=1e-3)
    assert recipe_chart(replace(phase, baseline=replace(phase.baseline, slower=None))) is None
