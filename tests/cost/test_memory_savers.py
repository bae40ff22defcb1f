"""Memory savers: what they take from the GPU, what they cost, and what the host has room for."""

from __future__ import annotations

import json
from dataclasses import replace
from math import fsum
from typing import TYPE_CHECKING

import pytest

from layoutopt.optimizer.cost.components import Component
from layoutopt.optimizer.cost.estimate import estimate
from layoutopt.optimizer.cost.factory import build_cost_model
from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.report.json_forms import to_plain
from layoutopt.optimizer.report.tables.answer import divisors
from layoutopt.optimizer.report.tables.layout import layout_text
from layoutopt.optimizer.simulate.layouts import simulate_workload
from layoutopt.optimizer.solve.explain.fullest import fullest_rank
from layoutopt.optimizer.specs.layout import Layout
from layoutopt.optimizer.specs.layout_file import read_layout_text
from layoutopt.optimizer.specs.loading import load_cluster, load_layout, load_workload
from layoutopt.optimizer.specs.stage_split import build_stages
from layoutopt.optimizer.specs.vocabulary import Saver, Schedule

if TYPE_CHECKING:
    from pathlib import Path

    from layoutopt.optimizer.cost.estimate import Estimate

MOMENTS, OPTIMIZER, ACTIVATIONS = Saver.BF16_MOMENTS, Saver.OFFLOAD_OPTIMIZER, Saver.OFFLOAD_ACTIVATIONS
WORKLOAD = load_workload("llama3-8b")
STAGES = build_stages(WORKLOAD.model, [16, 16], 2, Schedule.ONE_F_ONE_B, 0)
LAYOUT = Layout(
    tp=2, sp=True, pp=2, dp=4, zero=1, micro_batches=8, schedule=Schedule.ONE_F_ONE_B, stages=STAGES
)


def price(*savers: Saver, host_memory_bytes: float | None = None, layout: Layout = LAYOUT) -> Estimate:
    """Price a layout on two nodes with memory savers; hosts without stated memory hold anything."""
    cluster = replace(load_cluster("h100x16"), host_memory_bytes=host_memory_bytes)
    training = replace(WORKLOAD.training, global_batch=32, precision=layout.precision)
    cost = build_cost_model(WORKLOAD.model, training, cluster, framework=Framework.ANY)
    return estimate(cost, replace(layout, savers=tuple(sorted(savers))))


def part(result: Estimate, name: str) -> float:
    """Bytes of a component on the fullest rank."""
    return max(stage.components_bytes.get(name, 0.0) for stage in result.memory.stages)


@pytest.mark.parametrize("savers", [(), (MOMENTS,), (OPTIMIZER,), (ACTIVATIONS,), tuple(Saver)])
def test_breakdown_sums_to_the_step(savers: tuple[Saver, ...]) -> None:
    """No time that savers take is missing from the breakdown, and none shows without them."""
    result = price(*savers)
    assert fsum(result.breakdown_s.values()) == pytest.approx(result.step_time_s, rel=1e-12)
    assert (result.breakdown_s[Component.OFFLOAD] > 0) == (ACTIVATIONS in savers)


def test_short_moments_take_four_bytes_less() -> None:
    """Two moments of 2 bytes instead of 4 per parameter: 8 bytes of optimizer state instead of 12."""
    assert part(price(MOMENTS), "optimizer") == pytest.approx(part(price(), "optimizer") * 8 / 12)
    assert price(MOMENTS).step_time_s < price().step_time_s


def test_offloaded_optimizer_leaves_the_gpu() -> None:
    """Its state is gone, its step takes longer: transfers at the host link's rate at least."""
    plain, saved = price(), price(OPTIMIZER)
    assert part(saved, "optimizer") == 0
    assert saved.memory.peak_bytes < plain.memory.peak_bytes
    owned = part(plain, "optimizer") / 12
    transfer_s = 6 * owned / load_cluster("h100x16").gpu.host_link_bytes_per_s
    assert saved.breakdown_s[Component.OPTIMIZER] > plain.breakdown_s[Component.OPTIMIZER] + transfer_s


def test_offloaded_activations_leave_the_gpu() -> None:
    """Blocks in flight hold nothing but what is on its way, and the exposed moves cost time."""
    plain, saved = price(), price(ACTIVATIONS)
    assert part(saved, "activations") == 0
    assert 0 < part(saved, "left") < part(plain, "activations")
    assert saved.step_time_s > plain.step_time_s


@pytest.mark.parametrize("saver", [OPTIMIZER, ACTIVATIONS])
def test_what_the_host_cannot_hold_stays_on_the_gpu(saver: Saver) -> None:
    """Less memory in the host never means less on the GPU, and without any of it the saver saves nothing."""
    peaks = [price(saver, host_memory_bytes=size).memory.peak_bytes for size in (0.0, 5e10, 2e11, 1e13)]
    assert peaks == sorted(peaks, reverse=True)
    assert peaks[0] > peaks[-1]
    assert peaks[-1] == price(saver).memory.peak_bytes
    assert peaks[0] >= price().memory.peak_bytes * 0.99


def test_a_slower_link_costs_more() -> None:
    """Time falls with the bandwidth to the host, and a link fast enough hides activations altogether."""
    cluster = load_cluster("h100x16")
    training = replace(WORKLOAD.training, global_batch=32, precision=LAYOUT.precision)
    layout = replace(LAYOUT, savers=(ACTIVATIONS,))
    exposed = []
    for link in (16e9, 64e9, 450e9, 1e14):
        machine = replace(cluster, gpu=replace(cluster.gpu, host_link_bytes_per_s=link))
        cost = build_cost_model(WORKLOAD.model, training, machine, framework=Framework.ANY)
        exposed.append(estimate(cost, layout).breakdown_s[Component.OFFLOAD])
    assert exposed == sorted(exposed, reverse=True)
    assert exposed[0] > 0
    assert exposed[-1] == 0


def test_savers_survive_files(tmp_path: Path) -> None:
    """JSON and the layout's line name them when there are any, and both are read again."""
    layout = replace(LAYOUT, savers=(MOMENTS, OPTIMIZER))
    plain = to_plain(layout)
    assert plain["savers"] == ["bf16-moments", "offload-optimizer"]
    assert "savers" not in to_plain(LAYOUT)
    assert "savers" not in layout_text(LAYOUT)
    path = tmp_path / "layout.json"
    path.write_text(json.dumps(plain))
    assert load_layout(path).savers == layout.savers
    assert read_layout_text(layout_text(layout)).savers == layout.savers


@pytest.mark.parametrize("savers", [(OPTIMIZER,), (ACTIVATIONS,)])
def test_simulation_agrees(savers: tuple[Saver, ...]) -> None:
    """Times of the host are in the simulated step too, and offloaded activations not in its memory."""
    workload = replace(WORKLOAD, training=replace(WORKLOAD.training, global_batch=32))
    cluster = load_cluster("h100x16")
    layout = replace(LAYOUT, savers=savers, precision=workload.training.precision)
    saved = simulate_workload(workload, cluster, layout, framework=Framework.ANY)
    plain = simulate_workload(workload, cluster, replace(layout, savers=()), framework=Framework.ANY)
    assert saved.simulated_step_s > plain.simulated_step_s
    assert saved.simulated_step_s == pytest.approx(saved.analytic_step_s, rel=0.06)


def test_reports_name_the_saved_bytes() -> None:
    """Bytes per parameter in the tables are those with the savers, and divide the optimizer's state as it is."""
    cluster = load_cluster("h100x16")
    training = replace(WORKLOAD.training, global_batch=32, precision=LAYOUT.precision)
    cost = build_cost_model(WORKLOAD.model, training, cluster, framework=Framework.ANY)
    layout = replace(LAYOUT, savers=(MOMENTS,))
    assert divisors(layout, cost.preset, moe=False)["optimizer"][0] == "8"
    assert divisors(LAYOUT, cost.preset, moe=False)["optimizer"][0] == "12"
    rank = fullest_rank(cost, layout, estimate(cost, layout).memory)
    assert any("8 B" in text for text in map(str, rank.parts) if "optimizer" in text)
