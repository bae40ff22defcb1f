"""``layoutopt topology``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from layoutopt.optimizer.report.commands.options import OutputOptions, cluster_argument, output_options
from layoutopt.optimizer.report.commands.paths import WRITTEN
from layoutopt.optimizer.report.commands.values import COUNT, QuantityText, Spelled
from layoutopt.optimizer.report.terminal import print_json, print_tables
from layoutopt.optimizer.specs.writing import require_writable, write_file

if TYPE_CHECKING:
    from pathlib import Path

    from layoutopt.optimizer.specs.cluster import ClusterSpec


COLLECTIVE = Spelled(("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "send-recv"))


@click.group()
def command() -> None:
    """Show a cluster's network and what collectives cost."""


@command.command()
@cluster_argument
@click.option(
    "--size",
    type=QuantityText("BYTES", "BYTES"),
    default="256 MB",
    show_default=True,
    help="Bytes of the whole tensor.",
)
@click.option(
    "--group", type=COUNT, metavar="RANKS", help="Ranks in a group; default all that fit the stride."
)
@click.option("--stride", type=COUNT, metavar="N", help="Distance between neighbours of a group; default 1.")
@click.option("--graph", type=WRITTEN, metavar="FILE", help="Write the cluster's graph as GraphML.")
@output_options
def show(
    cluster: str,
    size: float,
    group: int | None,
    stride: int | None,
    graph: Path | None,
    output: OutputOptions,
) -> None:
    """Show the levels of CLUSTER and the time of each collective on groups of ranks.

    All groups of the same size and stride communicate at once. Without --group and --stride: the groups that fill each
    level, and one rank of every node. The graph is the one that prices are read from: equal parts are one node with the
    number of its copies, links carry bandwidth, latency and count.
    """
    from layoutopt.optimizer.ask.load import load_cluster
    from layoutopt.optimizer.topology.links import load_links
    from layoutopt.optimizer.topology.show import graphml, topology_table

    require_writable(graph, key="--graph")
    machine = load_cluster(cluster)
    groups = _groups(machine, group, stride)
    # As nccl-tests would read them: beside training collectives share their links and reach less.
    table = topology_table(
        machine, load_links(machine.calibration, alone=True), size_bytes=size, groups=groups
    )
    if graph is not None:
        write_file(graph, graphml(machine), key="--graph")
    if output.json:
        from layoutopt.optimizer.report.json_forms import to_plain

        print_json(to_plain(table))
        return
    from layoutopt.optimizer.report.tables.described import topology_tables

    print_tables(topology_tables(table, machine))


@command.command()
@cluster_argument
@click.option(
    "--collective",
    type=COLLECTIVE,
    required=True,
    help="What the ranks do.",
)
@click.option(
    "--bytes",
    "size",
    type=QuantityText("BYTES", "BYTES"),
    required=True,
    help="Bytes as nccl-tests counts them: of the whole tensor, for an all-to-all and a send of one rank.",
)
@click.option("--ranks", type=COUNT, required=True, metavar="N", help="Ranks of the group.")
@click.option("--per-node", type=COUNT, metavar="N", help="Ranks in each node; default all that fit.")
@click.option(
    "--algorithm",
    type=click.Choice(("ring", "tree", "nvls", "sharp")),
    help="All-reduce by this one; default the fastest.",
)
@output_options
def cost(
    cluster: str,
    collective: str,
    size: float,
    ranks: int,
    per_node: int | None,
    algorithm: str | None,
    output: OutputOptions,
) -> None:
    """Price one collective of one group of CLUSTER, as nccl-tests would measure it on idle machines."""
    from layoutopt.optimizer.ask.load import load_cluster
    from layoutopt.optimizer.topology.links import load_links
    from layoutopt.optimizer.topology.one import Algorithm, Collective, price_one

    machine = load_cluster(cluster)
    price = price_one(
        machine,
        load_links(machine.calibration, alone=True),
        Collective(collective),
        size_bytes=size,
        ranks=ranks,
        per_node=per_node or min(ranks, machine.gpus_per_node),
        algorithm=Algorithm(algorithm) if algorithm else None,
    )
    if output.json:
        from layoutopt.optimizer.report.json_forms import to_plain

        print_json(to_plain(price))
        return
    from layoutopt.optimizer.report.tables.described import price_table

    print_tables(price_table(price))


def _groups(cluster: ClusterSpec, group: int | None, stride: int | None) -> list[tuple[int, int]]:
    """Complete a group of which only the size or only the stride is given."""
    if group is None and stride is None:
        return []
    apart = stride or 1
    return [(group or max(cluster.gpu_count // apart, 1), apart)]
