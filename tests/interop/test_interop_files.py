"""What was imported, written as model and layout files: they load again as the same."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from layoutopt.optimizer.interop.files import layout_file, model_file
from layoutopt.optimizer.interop.machines.fabric import cluster_from
from layoutopt.optimizer.interop.sources import import_path, import_text
from layoutopt.optimizer.specs.errors import InputError
from layoutopt.optimizer.specs.layer_runs import runs_of
from layoutopt.optimizer.specs.loading import load_layout, load_workload, model_names
from layoutopt.optimizer.specs.model import LayerShape, Mixer, Mlp
from layoutopt.optimizer.topology.explicit import resolve_graph

if TYPE_CHECKING:
    from layoutopt.optimizer.specs.model import ModelSpec

SAMPLES = Path(__file__).parent / "samples"
RUN = {"sequence_length": 2048, "global_batch": 64, "precision": "bf16"}
JOBS = (
    "accelerate.yaml", "bridge_recipe.sh", "bridge_run_config.yaml", "megatron_deepspeed.sh", "megatron_dump.txt",
    "megatron_moe.sh", "megatron_train.sh", "nanotron.yaml", "torchtitan_era_a.toml", "torchtitan_era_b.py.txt",
    "torchtitan_era_c.py.txt",
)  # fmt: skip


def reloaded(model: ModelSpec, folder: Path) -> ModelSpec:
    """Write a model file and load it."""
    path = folder / "model.yaml"
    path.write_text(yaml.safe_dump(model_file(model, RUN), sort_keys=False), encoding="utf-8")
    return load_workload(path).model


@pytest.mark.parametrize("name", model_names())
def test_built_in_models_survive_writing(name: str, tmp_path: Path) -> None:
    """Every built-in model is the same after writing and loading."""
    model = load_workload(name).model
    assert reloaded(model, tmp_path) == model


@pytest.mark.parametrize("name", ["hf_llama.json", "hf_vlm_wrapper.json"])
def test_imported_models_survive_writing(name: str, tmp_path: Path) -> None:
    """So is what a config.json says."""
    model = import_path(SAMPLES / name).value.model
    assert reloaded(model, tmp_path) == model


def test_mixed_stacks_survive_writing(tmp_path: Path) -> None:
    """Windows, widths, mixers and encoder layers in any order come back, blocks and all."""
    dense, moe = LayerShape(ffn=1024), LayerShape(mlp=Mlp.MOE)
    windowed = LayerShape(ffn=2048, window=512)
    others = [LayerShape(mixer=Mixer.ATTENTION, mlp=Mlp.NONE), LayerShape(ffn=512, bidirectional=True)]
    shapes = [dense, *[windowed, windowed, moe] * 4, *others, moe, dense]
    mixed = replace(load_workload("qwen3-30b-a3b").model, runs=runs_of(shapes))
    assert reloaded(mixed, tmp_path) == mixed


@pytest.mark.parametrize("name", JOBS)
def test_layouts_of_jobs_survive_writing(name: str, tmp_path: Path) -> None:
    """The layout of a launch file is the same after writing and loading."""
    layout = import_path(SAMPLES / name).value.layout
    path = tmp_path / "layout.yaml"
    path.write_text(yaml.safe_dump(layout_file(layout), sort_keys=False), encoding="utf-8")
    found = load_layout(path)
    items = [(item.layers, item.mtp) for item in found.split or ()]
    assert items == [(item.layers, item.mtp) for item in layout.split or ()]
    assert replace(found, split=None) == replace(layout, split=None)


def test_torchtitan_states_its_prediction_layers() -> None:
    """``num_mtp_layers=0`` takes them away from the named model; the TOML era has none."""
    text = (
        "from torchtitan.config import ParallelismConfig\n"
        "def mine():\n"
        "    cfg = deepseek_v3_671b()\n"
        '    cfg.model_spec = model_registry("671B", num_mtp_layers=0)\n'
        "    cfg.parallelism = ParallelismConfig(data_parallel_shard_degree=8, tensor_parallel_degree=1)\n"
        "    return cfg\n"
    )
    job = import_text(text, "mine.py", "torchtitan-python").value
    assert (job.model_name, job.mtp_layers) == ("deepseek-v3", 0)
    assert import_path(SAMPLES / "torchtitan_era_a.toml").value.mtp_layers == 0


def test_cluster_of_a_node_list() -> None:
    """Seven nodes of four GPUs; equal switches become leaves, and what holds no GPU count takes the catalog's."""
    found = cluster_from("h100", import_path(SAMPLES / "slurm_env.txt").value, "mine")
    assert (found.gpu_count, found.gpus_per_node, found.nvlink_domain, found.name) == (28, 4, 4, "mine")
    text = "SwitchName=a Nodes=n[0-3]\nSwitchName=b Nodes=n[4-7]\nSwitchName=top Switches=a,b\n"
    tree = cluster_from("h100", import_text(text, "topology.conf").value, "tree")
    assert [(level.name, level.gpus) for level in tree.levels] == [("leaf", 32), ("spine", 64)]


def graph(nodes: int) -> dict[str, Any]:
    """Nodes of eight GPUs on an NVSwitch with a host and a NIC each, under one switch."""
    ids: list[dict[str, Any]] = [{"id": "top", "kind": "switch"}]
    edges: list[dict[str, Any]] = []
    for node in range(nodes):
        ids += [{"id": f"{kind}{node}", "kind": kind} for kind in ("nvswitch", "host")]
        for gpu in range(8):
            here = 8 * node + gpu
            ids += [{"id": f"g{here}", "kind": "gpu"}, {"id": f"n{here}", "kind": "nic"}]
            edges += [
                {"source": f"g{here}", "target": f"nvswitch{node}", "bandwidth": "450 GB/s"},
                {"source": f"g{here}", "target": f"host{node}", "bandwidth": "64 GB/s"},
                {"source": f"host{node}", "target": f"n{here}", "bandwidth": "64 GB/s"},
                {"source": f"n{here}", "target": "top", "bandwidth": "400 Gbit/s"},
            ]
    return {"directed": False, "nodes": ids, "edges": edges}


def test_cluster_of_a_graph() -> None:
    """A graph with its GPU's name is a whole cluster; a graph without GPUs and other files are refused."""
    found = resolve_graph(cluster_from("h100", graph(2), "graph"))
    assert (found.gpu_count, found.gpus_per_node, found.nic_bytes_per_s) == (16, 8, 50e9)
    with pytest.raises(InputError, match="no node of kind gpu"):
        cluster_from("h100", {"nodes": [{"id": 1, "kind": "switch"}], "edges": []}, "graph")
    with pytest.raises(InputError, match="does not describe a cluster"):
        cluster_from("h100", import_path(SAMPLES / "hf_llama.json").value, "model")
