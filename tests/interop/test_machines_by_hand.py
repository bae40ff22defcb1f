"""Node lists, topologies, graphs and collective benchmarks in a few lines each, with what they say of the machine."""

from __future__ import annotations

from typing import Any

import pytest

from layoutopt.optimizer.interop.machines.fabric import cluster_from, gpu_count
from layoutopt.optimizer.interop.machines.nccl_calibration import suggest_calibration
from layoutopt.optimizer.interop.machines.nccl_fit import (
    CollectiveFit,
    compare_collectives,
    find_anomalies,
    fit_collective,
    link_bytes_per_s,
)
from layoutopt.optimizer.interop.machines.nccl_log import NcclRow, NcclTable, bus_factor, import_nccl_tests
from layoutopt.optimizer.interop.records import GpuTopology, NodeBlock, NodeSet
from layoutopt.optimizer.interop.sources import import_text
from layoutopt.optimizer.specs.errors import InputError
from layoutopt.optimizer.specs.loading import load_cluster


def imported(kind: str, text: str) -> Any:
    """What is in a file."""
    return import_text(text, "f", kind).value


def refused(kind: str, text: str) -> str:
    """The line that a refusal says."""
    with pytest.raises(InputError) as raised:
        import_text(text, "f", kind)
    return str(raised.value)


@pytest.mark.parametrize(
    ("text", "nodes", "gpus", "note"),
    [
        ("# slots\na\na\n\nb\nb\n", ("a", "b"), 2, "2 slots per node, taken as GPUs"),
        ("a\nb\n", ("a", "b"), None, "slots per node do not tell the GPUs"),
        ("a\na\nb\n", ("a", "b"), None, "slots per node do not tell the GPUs"),
    ],
)
def test_slots_of_a_node_file(text: str, nodes: tuple[str, ...], gpus: int | None, note: str) -> None:
    """As many GPUs as a host has lines, where all have as many and more than one."""
    found = imported("pbs-nodefile", text)
    assert (found.nodes, found.gpus_per_node, found.notes) == (nodes, gpus, (note,))


@pytest.mark.parametrize(
    ("lines", "nodes", "gpus", "kind", "block"),
    [
        ("SLURM_NODELIST=a[1-2]\nSLURM_GPUS_ON_NODE=8", 2, 8, "flat", None),
        ("export SLURM_JOB_NODELIST='a[1-2]'\nSLURM_GPUS_PER_NODE=h100:4\nSLURM_JOB_NUM_NODES=2", 2, 4, "flat", None),
        ("SLURM_JOB_NODELIST=a\nSLURM_GPUS_ON_NODE=0\nSLURM_NTASKS_PER_NODE=2", 1, 2, "flat", None),
        ("SLURM_JOB_NODELIST=a\nSLURM_GPUS_ON_NODE=100000", 1, None, "flat", None),
        (
            "SLURM_JOB_NODELIST=a\nSLURM_TOPOLOGY_ADDR=top.s1.a\nSLURM_TOPOLOGY_ADDR_PATTERN=switch.switch.node",
            1, None, "tree", ("s1", ("a",), "top"),
        ),
        (
            "SLURM_JOB_NODELIST=a\nSLURM_TOPOLOGY_ADDR=b1.a\nSLURM_TOPOLOGY_ADDR_PATTERN=block.node",
            1, None, "block", ("b1", ("a",), ""),
        ),
        ("SLURM_JOB_NODELIST=a\nSLURM_TOPOLOGY_ADDR=a\nSLURM_TOPOLOGY_ADDR_PATTERN=node", 1, None, "flat", None),
        ("SLURM_JOB_NODELIST=a\nSLURM_TOPOLOGY_ADDR=s.a\nSLURM_TOPOLOGY_ADDR_PATTERN=s.s.node", 1, None, "flat", None),
    ],
)  # fmt: skip
def test_environments_of_slurm(lines: str, nodes: int, gpus: int | None, kind: str, block: Any) -> None:
    """The nodes, a node's GPUs by the first variable that counts them, and where this node sits."""
    found = imported("slurm-env", lines)
    assert (len(found.nodes), found.gpus_per_node, found.kind) == (nodes, gpus, kind)
    assert [(one.name, one.nodes, one.parent) for one in found.blocks] == ([block] if block else [])


SWITCHES = "SwitchName=s1 Nodes=a[1-2]\nSwitchName=s2 Nodes=a[3-4] # leaf\nSwitchName=top Switches=s[1-2]\n"
BLOCKS = "BlockName=b1 Nodes=a[1-4]\nBlockName=b2 Nodes=a[5-8]\n"


@pytest.mark.parametrize(
    ("text", "kind", "blocks", "size", "notes"),
    [
        (SWITCHES, "tree", [("s1", 2, "top"), ("s2", 2, "top")], None, 0),
        (
            SWITCHES + "switchname=s3 nodes=b[1-2] LinkSpeed=9\n",
            "tree", [("s1", 2, "top"), ("s2", 2, "top"), ("s3", 2, "")], None, 1,
        ),
        (BLOCKS + "BlockSizes=2,4,8\n", "block", [("b1", 4, ""), ("b2", 4, "")], 2, 0),
        (BLOCKS, "block", [("b1", 4, ""), ("b2", 4, "")], None, 0),
        ("RingName=r Nodes=a[1-3]\n", "ring", [("r", 3, "")], None, 0),
        ("BlockName=b1 Nodes=a[1-2]\nBlockName=b2 Nodes=a[2-3]\n", "block", [("b1", 2, ""), ("b2", 2, "")], None, 1),
    ],
)  # fmt: skip
def test_topologies_of_slurm(text: str, kind: str, blocks: list[Any], size: int | None, notes: int) -> None:
    """Leaves with their parents, blocks with the base size; islands and nodes that are in two are said."""
    found = imported("slurm-conf", text)
    assert found.kind == kind and found.block_size == size and len(found.notes) == notes
    assert [(one.name, len(one.nodes), one.parent) for one in found.blocks] == blocks
    assert len(found.nodes) == len(set(found.nodes))


@pytest.mark.parametrize(
    ("kind", "text", "said"),
    [
        ("pbs-nodefile", "a\n# c\nb c\n", "f:3: 'b c' is not a host name (one host per line)"),
        ("pbs-nodefile", "# c\n", "f: no hosts (one host per line)"),
        ("slurm-env", "SLURM_JOB_ID=1", "f: no SLURM_JOB_NODELIST (the environment of a Slurm job)"),
        (
            "slurm-env", "SLURM_JOB_NODELIST=a[1-2]\nSLURM_NNODES=3",
            "f: SLURM_NNODES: 3 nodes stated, 2 listed (the number of names in SLURM_JOB_NODELIST)",
        ),
        ("slurm-env", "SLURM_JOB_NODELIST=a[1-2", "f: SLURM_JOB_NODELIST: hostlist 'a[1-2' has unbalanced brackets"),
        ("slurm-env", "SLURM_JOB_NODELIST=a]1[", "f: SLURM_JOB_NODELIST: hostlist 'a]1[' has unbalanced brackets"),
        ("slurm-env", "SLURM_JOB_NODELIST=a[2-1]", "f: SLURM_JOB_NODELIST: 'a[2-1]' is not a hostlist"),
        ("slurm-env", "SLURM_JOB_NODELIST=a[1-x]", "f: SLURM_JOB_NODELIST: 'a[1-x]' is not a hostlist"),
        ("slurm-env", "SLURM_JOB_NODELIST=,", "f: SLURM_JOB_NODELIST: hostlist ',' is empty (like gpu[001-016])"),
        ("slurm-env", "SLURM_JOB_NODELIST=a b", "f: SLURM_JOB_NODELIST: 'a b' is not a host name"),
        (
            "slurm-env", "SLURM_JOB_NODELIST=a[1-300000]",
            "f: SLURM_JOB_NODELIST: 'a[1-300000]' is not a hostlist (like gpu[001-016,018])",
        ),
        (
            "slurm-env", "SLURM_JOB_NODELIST=a[1-500]b[1-500]",
            "f: SLURM_JOB_NODELIST: hostlist is too long (at most 200000 hosts)",
        ),
        ("slurm-conf", "a=b", "f: no SwitchName, BlockName or RingName line (one topology kind)"),
        ("slurm-conf", SWITCHES + BLOCKS, "f: mixes block and switch (one topology kind)"),
        ("slurm-conf", "\nSwitchName=s1\n", "f:2: s1: neither Nodes nor Switches (one of them)"),
        ("slurm-conf", "SwitchName=s1 Nodes=a[\n", "f:1: s1: hostlist 'a[' has unbalanced brackets"),
        ("slurm-conf", "SwitchName=s1 Switches=s2", "f: Switches: switch s2 is not defined (a SwitchName line)"),
        ("slurm-conf", "SwitchName=s1 Switches=s1", "f: no nodes (leaf switches or blocks with Nodes)"),
        ("slurm-conf", BLOCKS + "BlockSizes=5", "f: BlockSizes: block b1 has fewer nodes than the base size 5"),
        ("slurm-conf", BLOCKS + "BlockSizes=0", "f: BlockSizes: '0' is not a list of sizes (like 16,32)"),
        ("slurm-conf", BLOCKS + "BlockSizes=2,x", "f: BlockSizes: '2,x' is not a list of sizes (like 16,32)"),
        ("slurm-conf", BLOCKS + "BlockSizes=2,6", "f: BlockSizes: 6 is not 2 times a power of two"),
        ("slurm-conf", BLOCKS + "BlockSizes=2,3", "f: BlockSizes: 3 is not 2 times a power of two"),
        ("slurm-conf", BLOCKS + "BlockSizes=4,2", "f: BlockSizes: 2 is not 4 times a power of two"),
        ("slurm-yaml", "a: 1", "f: not a list of topologies (entries with topology: NAME)"),
        ("slurm-yaml", "- topology: t", "f: topology has 0 kinds (exactly one of tree, block, ring, torus3d, flat)"),
        ("slurm-yaml", "- {topology: t, flat: true}", "f: t: a flat topology lists no nodes by block"),
        ("slurm-yaml", "- {topology: t, ring: {rings: [1]}}", "f: ring.ring: '1' is not a mapping"),
        ("slurm-yaml", "- {topology: t, ring: {rings: [{ring: r}]}}", "f: ring.ring: needs a name and nodes or children"),
        ("graphml", "<a/>", "f: no graph element (a GraphML document)"),
        ("graphml", "<!DOCTYPE x><graphml/>", "f: document type declarations are not accepted (plain GraphML)"),
        ("graphml", "<graphml>\n<graph></graphml>", "f:2: not valid XML"),
        ("graphml", "<graphml><graph/></graphml>", "f: graph has 0 nodes and 0 edges (at least one node)"),
        ("graphml", "<graphml><graph><node/></graph></graphml>", "f: nodes: a node has no id (an id per node)"),
        (
            "graphml", '<graphml><graph><node id="a"><data key="k"/></node></graph></graphml>',
            "f: key 'k' is not declared (a key element)",
        ),
        (
            "graphml",
            '<graphml><key id="k" attr.name="n" attr.type="int"/><graph><node id="a"><data key="k">x</data></node></graph>'
            "</graphml>",
            "f: n: 'x' is not a int",
        ),
        ("node-link", "nodes: [1]", "f: no node-link graph (lists nodes and edges (or links))"),
        ("node-link", "nodes: [1]\nedges: []", "f: nodes and edges must be mappings"),
        ("node-link", "nodes: [{id: 1}, {id: 1}]\nedges: []", "f: nodes: two nodes have the same id"),
        ("node-link", "nodes: [{id: 1}]\nlinks: [{source: 1, target: 2}]", "f: target: edge ends at unknown node '2'"),
        ("nvidia-topo", "ROCm System Management", "f: is rocm-smi's, which is not read"),
        ("nvidia-topo", "| NVIDIA-SMI 5", "f: lists GPUs, not how they are joined"),
        ("nvidia-topo", "nothing", "f: no topology matrix"),
        ("nvidia-topo", " GPU0 GPU1\nGPU0 X\n", "f:2: row GPU0 does not match the header (one cell per device)"),
        ("nvidia-topo", " GPU0 GPU1\nGPU0 X SYS\n", "f: no row for GPU1 (one row per GPU)"),
        ("nvidia-topo", " NIC0 NIC1\nNIC0 X SYS\n", "f: no GPU in the header (one row per GPU)"),
        ("nccl-tests", "# a\n", "f: no nccl-tests table"),
        ("nccl-tests", '{"results": []}', "f: results: no results"),
    ],
)  # fmt: skip
def test_files_that_describe_no_machine(kind: str, text: str, said: str) -> None:
    """The place, what is wrong, and what would be valid."""
    assert refused(kind, text).startswith(said)


def test_yaml_topologies_are_chosen_and_the_others_named() -> None:
    """The cluster's default, else the first."""
    text = "- {topology: t, ring: {rings: [{ring: r, nodes: 'a[1-2]'}]}}\n"
    text += "- {topology: u, %sblock: {block_sizes: [2, 4], blocks: [{block: b, nodes: 'b[1-2]'}]}}"
    first, second = (
        imported("slurm-yaml", text % ""),
        imported("slurm-yaml", text % "cluster_default: true, "),
    )
    assert (first.kind, first.notes) == ("ring", ("topology t was read, the first of 2; others: u",))
    assert (second.kind, second.block_size) == ("block", 2)
    assert second.notes == ("topology u was read, the cluster's default of 2; others: t",)
    tree = "- {topology: t, tree: {switches: [{switch: s, nodes: a}, {switch: top, children: s}]}}"
    assert [one.parent for one in imported("slurm-yaml", tree).blocks] == ["top"]


def test_graphs_keep_types_and_direction() -> None:
    """Numbers, truths and texts by their key; edges point where the graph says so."""
    keys = "".join(
        f'<key id="k{i}" attr.name="n{i}" attr.type="{kind}"/>'
        for i, kind in enumerate(("int", "double", "boolean", "string"))
    )
    data = "".join(f'<data key="k{i}">{value}</data>' for i, value in enumerate(("3", "0.5", "TRUE", " x ")))
    text = (
        f'<graphml>{keys}<graph edgedefault="directed"><node id="a">{data}</node><node id="b"/>'
        '<edge source="a" target="b"/></graph></graphml>'
    )
    assert imported("graphml", text) == {
        "directed": True,
        "nodes": [{"id": "a", "n0": 3, "n1": 0.5, "n2": True, "n3": "x"}, {"id": "b"}],
        "edges": [{"source": "a", "target": "b"}],
    }
    assert imported("graphml", text.replace("directed", "undirected"))["directed"] is False
    assert imported("node-link", "directed: true\nnodes: [{id: 1}]\nedges: []")["directed"] is True


TOPO = """\
        GPU0 GPU1 GPU2 GPU3 NIC0 NIC1
GPU0    X    NV4  NV2  SYS  PIX  SYS
GPU1    NV4  X    SYS  SYS  PXB  SYS
GPU2    NV2  SYS  X    SYS  SYS  NODE
GPU3    SYS  SYS  SYS  X    SYS  PHB
NIC0    PIX  PXB  SYS  SYS  X    SYS
NIC1    SYS  SYS  NODE PHB  SYS  X
  NIC0: mlx5_0
"""


def test_a_node_as_nvidia_smi_shows_it() -> None:
    """Three GPUs on NVLink through one another, one apart; NICs below the host bridge serve two."""
    found = imported("nvidia-topo", TOPO)
    assert (found.gpus, found.nvlink_domain, found.nvlinks, found.nics) == (4, 3, 2, 1)
    assert found.gpu_nics == (("mlx5_0",), ("mlx5_0",), (), ()) and found.other_nics == ("NIC1",)
    assert found.notes == (
        "NVLink is not all-to-all: some pairs reach each other only through others",
        "1 of 4 GPUs have no NVLink, unlike the others: GPU3",
        "2 of 4 GPUs have no NIC of their own: GPU2, GPU3",
    )
    plain = imported("nvidia-topo", "  GPU0 GPU1\nGPU0 X NV18\nGPU1 NV18 X\n")
    assert (plain.nvlink_domain, plain.nvlinks, plain.nics, plain.notes) == (2, 18, 0, ())
    alone = imported("nvidia-topo", "   GPU0 CPU Affinity\nGPU0 X 0-7\n")
    assert (alone.gpus, alone.nvlink_domain, alone.nvlinks) == (1, 1, 0)


def test_clusters_of_node_lists() -> None:
    """Equal blocks that hold some nodes each become leaves; GPUs per node are the list's, else the GPU's."""
    nodes = tuple(f"n{i}" for i in range(8))
    blocks = tuple(NodeBlock(name=str(i), nodes=nodes[2 * i : 2 * i + 2]) for i in range(4))
    found = cluster_from("h100", NodeSet(nodes=nodes, gpus_per_node=4, blocks=blocks), "x")
    assert (found.name, found.gpu_count, found.gpus_per_node, found.nics_per_node) == ("x", 32, 4, 4)
    assert found.nvlink_domain == 4
    assert [(level.name, level.gpus) for level in found.levels] == [("leaf", 8), ("spine", 32)]
    plain = cluster_from("h100", NodeSet(nodes=nodes), "x")
    assert (plain.gpu_count, plain.nvlink_domain) == (64, 8)
    for uneven in (
        blocks[:3],
        (NodeBlock(name="a", nodes=nodes),),
        (blocks[0], NodeBlock(name="b", nodes=nodes[2:])),
    ):
        other = cluster_from("h100", NodeSet(nodes=nodes, blocks=uneven), "x")
        assert other.levels == plain.levels
    singles = tuple(NodeBlock(name=name, nodes=(name,)) for name in nodes)
    assert cluster_from("h100", NodeSet(nodes=nodes, blocks=singles), "x").levels == plain.levels
    assert cluster_from("gb200", NodeSet(nodes=nodes, gpus_per_node=4), "x").nvlink_domain == 72
    assert (gpu_count(NodeSet(nodes=nodes), 8), gpu_count(NodeSet(nodes=nodes, gpus_per_node=4), 8)) == (
        64,
        32,
    )


def test_clusters_of_nodes_and_graphs() -> None:
    """One node's GPUs, links and NICs; of a graph its GPUs, and hosts where they divide them."""
    topology = GpuTopology(gpus=4, nvlink_domain=2, nvlinks=4, nics=1, gpu_nics=())
    found = cluster_from("h100", topology, "x")
    assert (found.gpu_count, found.gpus_per_node, found.nvlink_domain, found.nics_per_node) == (4, 4, 2, 1)
    no_nics = GpuTopology(gpus=4, nvlink_domain=2, nvlinks=4, nics=0, gpu_nics=())
    assert cluster_from("h100", no_nics, "x").nics_per_node == 4
    for hosts, per_node in ((2, 4), (3, 8), (0, 8)):
        nodes = [{"id": f"g{i}", "kind": "gpu"} for i in range(8)] + [
            {"id": i, "kind": "host"} for i in range(hosts)
        ]
        graph = cluster_from("h100", {"nodes": nodes, "edges": []}, "x")
        assert (graph.gpu_count, graph.gpus_per_node, graph.nvlink_domain) == (8, per_node, per_node)
    for other, said in (
        ({"nodes": [{"id": 1}]}, "no node of kind gpu"),
        ((), "x: does not describe a cluster"),
    ):
        with pytest.raises(InputError, match=said):
            cluster_from("h100", other, "x")


def table(
    collective: str, bus: float, ranks: int, nodes: int | None, latency_s: float = 1e-5, **more: Any
) -> NcclTable:
    """A table of sizes from 1 MiB to 1 GiB at one bus bandwidth, in bytes/s."""
    factor = bus_factor(collective, ranks)
    rows = []
    for power in range(20, 31):
        time_s = latency_s + 2**power * factor / bus
        rows.append(
            NcclRow(
                size_bytes=2**power, time_s=time_s, algbw_bytes_per_s=2**power / time_s,
                busbw_bytes_per_s=2**power * factor / time_s,
            )
        )  # fmt: skip
    given = {"gpu": "NVIDIA H100 80GB HBM3", **more}
    return NcclTable(collective=collective, rows=tuple(rows), ranks=ranks, nodes=nodes, **given)


def test_factors_of_bus_bandwidth() -> None:
    """NVIDIA/nccl-tests doc/PERFORMANCE.md."""
    names = ("all_reduce", "all_gather", "reduce_scatter", "alltoall", "broadcast", "sendrecv")
    assert [bus_factor(name, 4) for name in names] == [1.5, 0.75, 0.75, 0.75, 1.0, 1.0]


def test_fits_find_latency_and_bandwidth() -> None:
    """What the rows were made of comes back."""
    fit = fit_collective(table("all_gather", 300e9, 8, 1))
    assert fit.latency_s == pytest.approx(1e-5, rel=1e-3) and fit.bus_bytes_per_s == pytest.approx(
        300e9, rel=1e-3
    )
    assert fit.error == pytest.approx(0, abs=1e-6) and fit.rows == 11
    assert fit.best_bus_bytes_per_s == max(
        row.busbw_bytes_per_s for row in table("all_gather", 300e9, 8, 1).rows
    )
    for bad, said in (
        (table("all_gather", 1e9, 8, 1, cpu_time=True), "times are the host's"),
        (table("broadcast", 1e9, 1, 1), "one rank moves nothing"),
    ):
        with pytest.raises(InputError, match=said):
            fit_collective(bad)


@pytest.mark.parametrize(
    ("made", "kinds"),
    [
        (table("all_reduce", 300e9, 8, 1), []),
        (table("all_reduce", 480e9, 8, 1), ["in_switch_reduction"]),
        (table("all_gather", 480e9, 8, 1), []),
        (table("all_reduce", 300e9, 8, 1, failed=True), ["wrong_results"]),
        (table("all_reduce", 300e9, 16, 2), ["two_nodes"]),
        (table("all_reduce", 300e9, 2, 2), []),
        (table("all_reduce", 300e9, 32, 4), []),
        (table("all_reduce", 48e9, 32, 4), ["one_nic"]),
        (table("alltoall", 48e9, 32, 4), []),
        (table("all_reduce", 48e9, 8, 1), []),
        (table("all_gather", 20e9, 32, 4), ["below_nominal"]),
    ],
)
def test_what_a_planner_must_not_take_at_face_value(made: NcclTable, kinds: list[str]) -> None:
    """Sums in switches, one NIC's worth, a network far below its nominal rate, two nodes, wrong results."""
    assert [one.kind for one in find_anomalies(made, node_bytes_per_s=400e9)] == kinds


def test_cliffs_and_collectives_that_differ() -> None:
    """A larger message that is slower, and a bandwidth that must not stand for another."""
    plain = table("all_gather", 300e9, 8, 1)
    last = plain.rows[-1]
    slow = NcclRow(size_bytes=last.size_bytes, time_s=1.0, algbw_bytes_per_s=1.0, busbw_bytes_per_s=250e9)
    found = find_anomalies(NcclTable(collective="all_gather", rows=(*plain.rows[:-1], slow), ranks=8))
    assert [one.message for one in found] == [
        "all_gather: bandwidth falls from 298 to 250 GB/s between 512 and 1024 MiB"
    ]

    def fit(collective: str, bus: float, ranks: int = 8) -> CollectiveFit:
        return CollectiveFit(
            collective=collective, ranks=ranks, nodes=1, latency_s=1e-5, bus_bytes_per_s=bus, best_bus_bytes_per_s=bus,
            error=0.0, rows=9,
        )  # fmt: skip

    fits = [
        fit("all_reduce", 400e9),
        fit("all_gather", 300e9),
        fit("alltoall", 350e9),
        fit("all_gather", 1e9, 4),
    ]
    assert [one.message for one in compare_collectives(fits)] == [
        "all_gather reaches 75% of all_reduce's bus bandwidth on 8 ranks: calibrate each collective on its own"
    ]


def test_benchmarks_suggest_constants() -> None:
    """Shares of NVLink and of the NICs, and what the switch gains by summing; the largest groups count."""
    cluster = load_cluster("h100x64")
    link = cluster.gpu.nvlink_bytes_per_s
    nics = cluster.nic_bytes_per_s * cluster.nics_per_node
    tables = [
        table("all_gather", 0.8 * link, 8, 1),
        table("all_gather", 0.5 * link, 4, 1),
        table("all_reduce", 1.0 * link, 8, 1),
        table("all_reduce", 0.9 * nics, 64, 8, latency_s=5e-5),
    ]
    found = suggest_calibration(tables, cluster)
    assert found.values["nvlink_fraction.hopper"].value == pytest.approx(0.8, rel=0.01)
    assert found.values["nvls_gain.hopper"].value == pytest.approx(1 / 0.8, rel=0.01)
    assert found.values[f"network_fraction.{cluster.fabric}"].value == pytest.approx(0.9, rel=0.01)
    wrong = suggest_calibration([table("all_gather", 0.8 * link, 8, 1, failed=True)], cluster)
    assert wrong.values == {} and wrong.skipped == ("all_gather on 8 ranks: wrong results",)


def test_links_by_the_name_of_the_gpu() -> None:
    """One-way NVLink; a name that nobody knows has none."""
    names = ("NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB", "Tesla T4")
    assert [link_bytes_per_s(name) for name in names] == [450e9, 300e9, None]


HEAD = "# size count type redop root time algbw busbw #wrong time algbw busbw #wrong\n"


@pytest.mark.parametrize(
    ("row", "devices", "name", "ranks"),
    [
        ("1024 1 float sum -1 10.0 1.00 1.75 0 9 1 1.75 0", 8, "all_reduce", 8),
        ("1024 1 float sum -1 10.0 1.00 1.75 0 9 1 1.75 0", 0, "all_reduce", 8),
        ("1024 1 float sum -1 10.0 1.00 0.875 0 9 1 0.875 0", 8, "reduce_scatter", 8),
        ("1024 1 float none -1 10.0 1.00 0.875 0 9 1 0.875 0", 8, "all_gather", 8),
        ("1024 1 float none -1 10.0 1.00 0.875 0 9 1 0.875 N/A", 8, "alltoall", 8),
        ("1024 1 float none 0 10.0 1.00 1.00 0 9 1 1.00 0", 8, "broadcast", 8),
        ("1024 1 float sum 0 10.0 1.00 1.00 0 9 1 1.00 0", 8, "reduce", 8),
        ("1024 1 float none -1 10.0 1.00 1.00 0 9 1 1.00 0", 8, "sendrecv", 8),
    ],
)
def test_collectives_are_told_by_what_they_print(row: str, devices: int, name: str, ranks: int) -> None:
    """The ratio of bandwidths, the reduction, the root, and what is not checked in place."""
    lines = "".join(
        f"# Rank {rank} Group 0 Pid 1 on node{rank // 4} device {rank % 4} [0x10] NVIDIA H100\n"
        for rank in range(devices)
    )
    (found,) = import_nccl_tests(lines + HEAD + row + "\n")
    assert (found.collective, found.ranks, found.nodes) == (name, ranks, 2 if devices else None)
    assert found.ranks_per_node == (4 if devices else None) and len(found.notes) == (0 if devices else 1)
    assert found.rows[0].time_s == pytest.approx(1e-5) and found.rows[0].algbw_bytes_per_s == pytest.approx(
        1e9
    )


def test_wrong_results_and_host_times_are_kept() -> None:
    """Out of bounds by the last line or by a row; times of the host by the name of the column."""
    row = "1024 1 float sum -1 10.0 1.00 1.75 0 9 1 1.75 0\n"
    for tail, failed in (
        ("", False),
        ("# Out of bounds values : 0 OK\n", False),
        ("# Out of bounds values : 1 FAILED\n", True),
    ):
        assert import_nccl_tests(HEAD + row + tail)[0].failed is failed
    assert import_nccl_tests(HEAD + row.replace("1.75 0 9", "1.75 3 9"))[0].failed is True
    assert import_nccl_tests(HEAD.replace("time", "cputime") + row)[0].cpu_time is True
    text = (
        '{"results": [{"size": 8, "out_of_place": {"time": 2, "alg_bw": 1.0, "bus_bw": 1.75, "nwrong": 0}}],'
    )
    text += ' "test": "all_reduce_perf"}'
    (found,) = import_nccl_tests(text)
    assert (found.collective, found.ranks, found.rows[0].wrong) == ("all_reduce", 8, 0)
