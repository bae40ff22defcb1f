"""``layoutopt model``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from layoutopt.optimizer.report.commands.options import (
    OutputOptions,
    model_argument,
    output_options,
    workload_options,
)
from layoutopt.optimizer.report.terminal import print_json, print_tables

if TYPE_CHECKING:
    from layoutopt.optimizer.ask.records import RunChoices


@click.group()
def command() -> None:
    """Show what a model is: parameters and layers."""


@command.command()
@model_argument
@workload_options
@output_options
def show(model: str, asked: RunChoices, output: OutputOptions) -> None:
    """Count the parameters of MODEL (all, those that one token passes, those in matrices) and its layers by kind."""
    from layoutopt.optimizer.ask.describe import describe_model
    from layoutopt.optimizer.report.commands.inputs import read_model

    facts = describe_model(read_model(model, asked, output))
    if output.json:
        from layoutopt.optimizer.report.json_forms import to_plain

        print_json(to_plain(facts))
        return
    from layoutopt.optimizer.report.tables.described import model_table

    print_tables(model_table(facts))
