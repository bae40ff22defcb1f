"""Schedulers, node topologies, graphs, step logs and out-of-memory messages."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from layoutopt.optimizer.evidence.run import COLUMNS
from layoutopt.optimizer.interop.machines.nvidia_topo import import_topo
from layoutopt.optimizer.interop.machines.slurm import expand_hostlist, import_topology_yaml
from layoutopt.optimizer.interop.measured.logs import import_nanotron_log, import_torchtitan_log
from layoutopt.optimizer.interop.measured.megatron_log import import_megatron_log
from layoutopt.optimizer.interop.sources import FileKind, import_path, import_text
from layoutopt.optimizer.specs.errors import InputError

if TYPE_CHECKING:
    from layoutopt.optimizer.interop.records import ImportedJob, LoggedRun, NodeSet, OutOfMemory

SAMPLES = Path(__file__).parent / "samples"


def nodes(name: str) -> NodeSet:
    """Import a sample that lists nodes."""
    value: NodeSet = import_path(SAMPLES / name).value
    return value


def test_hostlist_keeps_padding_and_order() -> None:
    """Ranges, several brackets and commas outside of them."""
    assert expand_hostlist("gpu[008-010,2],login") == ("gpu008", "gpu009", "gpu010", "gpu2", "login")
    assert expand_hostlist("r[1-2]n[01-02]") == ("r1n01", "r1n02", "r2n01", "r2n02")


@given(st.integers(0, 500), st.integers(0, 40), st.integers(1, 4))
def test_hostlist_expands_every_number(first: int, more: int, width: int) -> None:
    """A range of n numbers gives n names, all different, padded to the width of its start."""
    start = str(first).zfill(width)
    names = expand_hostlist(f"n[{start}-{first + more}]")
    assert len(set(names)) == more + 1
    assert names[0] == f"n{start}"


def test_slurm_environment() -> None:
    """Exported and quoted variables; GPUs behind the type's name."""
    got = nodes("slurm_env.txt")
    assert (len(got.nodes), got.gpus_per_node, got.nodes[0]) == (7, 4, "rack1n08")


def test_slurm_tree_with_two_islands() -> None:
    """Leaf switches are blocks, keys are case-insensitive, islands are noted."""
    got = nodes("topology.conf")
    assert [(block.name, len(block.nodes), block.parent) for block in got.blocks] == [
        ("s1", 4, "Top"),
        ("s2", 4, "Top"),
        ("s3", 2, ""),
    ]
    assert any("separate islands" in note for note in got.notes)


def test_slurm_yaml_takes_the_default_topology() -> None:
    """The cluster's default wins, another is chosen by name, an unknown name lists those there are."""
    got = nodes("topology.yaml")
    assert (got.kind, got.block_size, len(got.nodes)) == ("block", 2, 6)
    text = (SAMPLES / "topology.yaml").read_text()
    assert import_topology_yaml(text, name="small").kind == "ring"
    with pytest.raises(InputError, match="no topology 'huge' \\(small, big\\)"):
        import_topology_yaml(text, name="huge")


def test_pbs_node_file() -> None:
    """Repeated names are slots, taken as GPUs."""
    got = nodes("pbs_nodefile")
    assert (got.nodes, got.gpus_per_node) == (("node-a.cluster", "node-b.cluster"), 2)


def test_topo_pasted_with_blanks() -> None:
    """NVLink island of three, two GPU-direct NICs by their real names, one behind the CPU."""
    got = import_topo((SAMPLES / "topo_spaces.txt").read_text())
    assert (got.gpus, got.nvlink_domain, got.nvlinks, got.nics) == (4, 3, 4, 2)
    assert got.gpu_nics == (("mlx5_7",), ("mlx5_8",), ("mlx5_8",), ())
    assert got.other_nics == ("eth0",)
    assert any("GPU3" in note for note in got.notes)


def test_topo_without_nvlink_or_direct_nics() -> None:
    """Both absences are said: domain 1, no links, a note about the CPU."""
    got = import_topo("\tGPU0\tGPU1\tNIC0\nGPU0\tX\tSYS\tPHB\nGPU1\tSYS\tX\tSYS\nNIC0\tPHB\tSYS\tX\n")
    assert (got.nvlink_domain, got.nvlinks, got.nics) == (1, 0, 0)
    assert any("crosses the CPU" in note for note in got.notes)


def test_graphs_become_one_plain_form() -> None:
    """GraphML types are kept; networkx's links are edges."""
    xml = import_path(SAMPLES / "fabric.graphml").value
    assert xml["edges"] == [{"source": "gpu0", "target": "leaf0", "bandwidth": 5e10, "optical": True}]
    assert xml["nodes"][1] == {"id": "leaf0", "kind": "leaf"}
    link = import_path(SAMPLES / "fabric.json").value
    assert [edge["target"] for edge in link["edges"]] == [1]
    assert link["directed"] is False


def test_graph_of_networkx_is_read() -> None:
    """What networkx writes, in either of its forms, comes back with the same nodes and edges."""
    networkx = pytest.importorskip("networkx")
    graph = networkx.path_graph(4)
    networkx.set_edge_attributes(graph, 1e9, "bandwidth")
    text = "\n".join(networkx.generate_graphml(graph))
    got = import_text(text, "", FileKind.GRAPHML).value
    assert len(got["nodes"]) == 4 and {edge["bandwidth"] for edge in got["edges"]} == {1e9}


def test_out_of_memory_messages_of_both_generations() -> None:
    """Units, GPU, and reserved memory, which the newer message gives as a difference."""
    old, new = (message for message in import_path(SAMPLES / "oom.txt").value)
    assert isinstance(old.tried_bytes, float)
    gib = 2**30
    assert (old.gpu, old.tried_bytes / gib, old.capacity_bytes / gib, old.reserved_bytes / gib) == (
        3,
        0.5,
        31.74,
        30.5,
    )
    message: OutOfMemory = new
    assert (message.gpu, message.tried_bytes / gib) == (7, 2.5)
    assert message.free_bytes == 1.25 * gib and message.allocated_bytes == 88 * gib
    assert message.reserved_bytes == 90 * gib and message.in_use_bytes == 93 * gib


def titan_job() -> ImportedJob:
    """The job that the torchtitan sample log belongs to."""
    value: ImportedJob = import_path(SAMPLES / "torchtitan_era_a.toml").value
    return value


def test_torchtitan_log_alone_and_with_its_job() -> None:
    """Colours and the first step do not count; with the job the step time follows from tokens/s."""
    text = (SAMPLES / "torchtitan.log").read_text()
    alone = import_torchtitan_log(text)
    assert alone.columns["tokens_s_gpu"] == 7050.0
    assert alone.columns["mem_gb"] == pytest.approx(32 * 2**30 / 1e9)
    assert alone.columns["mfu_pct"] == 40.44
    assert "measured_step_s" not in alone.columns and any("configuration" in note for note in alone.notes)
    run = import_torchtitan_log(text, job=titan_job())
    assert run.columns["measured_step_s"] == pytest.approx(64 * 8192 / (7050 * 32))
    assert (run.columns["tp"], run.columns["zero"], run.columns["vp"]) == (2, 2, 1)


def test_nanotron_log() -> None:
    """Suffixes are powers of 1000, the warm-up step is left out, the batch is in tokens on main."""
    run = import_nanotron_log((SAMPLES / "nanotron.log").read_text(), job=None)
    assert run.columns["measured_step_s"] == pytest.approx(2.55)
    assert run.columns["n_gpus"] == 16
    assert any("524000 is in tokens" in note for note in run.notes)


def test_megatron_log() -> None:
    """Milliseconds per iteration, MiB of memory, median without the first iteration."""
    run: LoggedRun = import_megatron_log((SAMPLES / "megatron_dump.txt").read_text())
    assert run.columns["measured_step_s"] == pytest.approx(0.605)
    assert run.columns["mem_gb"] == pytest.approx(20000 * 2**20 / 1e9)
    assert run.columns["tflops_gpu"] == 252.0


def test_run_columns_are_those_of_the_measured_run_table() -> None:
    """A run with its job has the table's column names and no others."""
    job: ImportedJob = import_path(SAMPLES / "megatron_moe.sh").value
    run = import_megatron_log((SAMPLES / "megatron_dump.txt").read_text(), job=job)
    assert set(run.columns) <= set(COLUMNS)
    assert run.columns["mla"] == "q_lora=384;kv_lora=128;qk_nope=64;qk_rope=32;v=64"
    assert run.columns["moe_dense_layers"] == 1
