"""``layoutopt catalog``."""

from __future__ import annotations

import click

from layoutopt.optimizer.report.commands.options import OutputOptions, output_options
from layoutopt.optimizer.report.terminal import print_json, print_tables
from layoutopt.optimizer.specs.errors import input_error


@click.command()
@click.argument("kind", metavar="[models|clusters|gpus]", required=False, default="")
@click.argument("search", metavar="[SEARCH]", required=False, default="")
@output_options
def command(kind: str, search: str, output: OutputOptions) -> None:
    """List the built-in models, clusters and GPUs, all or those whose name holds SEARCH."""
    from layoutopt.optimizer.report.catalog import KINDS, find_catalog

    if kind.lower() in KINDS:
        found = find_catalog((kind.lower(),), search)
    elif search:
        raise input_error(f"{kind[:60]!r} is no kind", ", ".join(KINDS), key="catalog")
    else:
        # A single word that is no kind is looked for in all of them.
        found = find_catalog(KINDS, kind)
    if output.json:
        from layoutopt.optimizer.report.json_forms import to_plain

        print_json(to_plain(found.listed))
        return
    from layoutopt.optimizer.report.tables.described import catalog_tables

    print_tables(catalog_tables(found))
