"""Launch switches are written by the exporters and read by the importers of the trainers that have them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from layoutopt.optimizer.ask.job import load_job
from layoutopt.optimizer.ask.records import JobRequest
from layoutopt.optimizer.frameworks.preset import load_preset, preset_value
from layoutopt.optimizer.frameworks.switches import BY_NAME
from layoutopt.optimizer.interop.launch.export import export
from layoutopt.optimizer.specs.layout import Layout, Switches
from layoutopt.optimizer.specs.loading import load_cluster, load_workload, parse_layout
from layoutopt.optimizer.specs.vocabulary import CudaGraph, Dispatcher

if TYPE_CHECKING:
    from pathlib import Path

CASES = {
    "merged": Switches(ep_overlap=True, delay_wgrad=True, dispatcher=Dispatcher.DEEPEP),
    "hybrid": Switches(ep_overlap=True, dispatcher=Dispatcher.HYBRIDEP),
    "gathered": Switches(dispatcher=Dispatcher.ALLGATHER),
    "graphs": Switches(cuda_graph=CudaGraph.PARTIAL),
    "whole": Switches(dispatcher=Dispatcher.HYBRIDEP, cuda_graph=CudaGraph.FULL),
    "buffers": Switches(tp_overlap=True),
}


@pytest.mark.parametrize("to", ["megatron", "megatron-bridge"])
@pytest.mark.parametrize("name", CASES)
def test_switches_come_back(name: str, to: str, tmp_path: Path) -> None:
    """What a launch file says of the switches is what the layout said."""
    workload, cluster = load_workload("qwen3-30b-a3b"), load_cluster("h100x16")
    layout = parse_layout("tp=2,pp=2,vp=2,ep=4,zero=1,micro_batch=1").complete(workload, cluster)
    given = Layout(
        **{n: getattr(layout, n) for n in Layout.__slots__ if n != "switches"}, switches=CASES[name]
    )
    job = export(given, workload, cluster, to)
    files = []
    for file, text in job.files.items():
        (tmp_path / file).write_text(text, encoding="utf-8")
        files.append(str(tmp_path / file))
    back = load_job(JobRequest(cluster="h100x16", files=(files[0],), model="qwen3-30b-a3b"))
    assert isinstance(back.layout, Layout)
    wanted = CASES[name].stated()
    preset = load_preset(back.framework).switched(back.layout.switches)
    assert {key: preset_value(preset, BY_NAME[key]) for key in wanted} == wanted
