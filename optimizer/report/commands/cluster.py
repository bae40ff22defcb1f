"""``layoutopt cluster``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from layoutopt.optimizer.report.commands.options import (
    OUTPUT,
    OutputOptions,
    cluster_argument,
    output_options,
)
from layoutopt.optimizer.report.commands.paths import WRITTEN
from layoutopt.optimizer.report.commands.values import COUNT
from layoutopt.optimizer.report.terminal import note, print_document, print_json, print_tables
from layoutopt.optimizer.specs.writing import require_writable, write_file

if TYPE_CHECKING:
    from pathlib import Path


@click.group()
def command() -> None:
    """Show what a cluster is, or write it as a file to edit."""


@command.command()
@cluster_argument
@click.option("--gpus", type=COUNT, metavar="N", help="Use only the first N GPUs of the cluster.")
@click.option("--yaml", "as_yaml", is_flag=True, help="Print it as a cluster file, every key stated.")
@click.option(
    "-o", "--output", "file", type=WRITTEN, metavar="FILE",
    help="Write that file.",
)  # fmt: skip
@output_options
def show(cluster: str, gpus: int | None, as_yaml: bool, file: Path | None, output: OutputOptions) -> None:
    """Show the GPUs, nodes and network of CLUSTER; a built-in or NAMExN becomes a file to edit with --yaml."""
    from layoutopt.optimizer.ask.describe import describe_cluster
    from layoutopt.optimizer.ask.load import load_cluster
    from layoutopt.optimizer.report.commands.inputs import OPTIONS
    from layoutopt.optimizer.specs.cluster_text import cluster_text

    require_writable(file, key=OUTPUT)
    machine = load_cluster(cluster, gpus=gpus, names=OPTIONS)
    if file is not None:
        write_file(file, cluster_text(machine).encode(), key=OUTPUT)
        note(f"wrote {file}", output)
    if as_yaml and not output.json:
        print_document(cluster_text(machine))
        return
    facts = describe_cluster(machine)
    if output.json:
        from layoutopt.optimizer.report.json_forms import to_plain

        print_json(to_plain(facts))
    elif file is None:
        from layoutopt.optimizer.report.tables.described import cluster_table

        print_tables(cluster_table(facts, cluster))
