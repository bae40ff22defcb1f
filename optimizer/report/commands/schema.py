"""``layoutopt schema``."""

from __future__ import annotations

import click

from layoutopt.optimizer.report.commands.options import OutputOptions, output_options
from layoutopt.optimizer.report.commands.values import Word
from layoutopt.optimizer.report.terminal import print_json

KINDS = Word(("model", "cluster", "layout"))


@click.command()
@click.argument("kind", type=KINDS)
@output_options
def command(kind: str, output: OutputOptions) -> None:
    """Print the JSON Schema of an input file.

    Editors check and complete YAML files with it.
    """
    from layoutopt.optimizer.specs.loading import json_schema

    print_json(json_schema(kind))
