"""``layoutopt rules``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from layoutopt.optimizer.report.commands.options import OutputOptions, output_options
from layoutopt.optimizer.report.commands.values import FRAMEWORK, Release, near_hint
from layoutopt.optimizer.report.terminal import print_json, print_tables
from layoutopt.optimizer.specs.errors import input_error

if TYPE_CHECKING:
    from layoutopt.optimizer.space.rule import Rule


@click.command()
@click.argument("search", metavar="[NAME]", required=False, default="")
@click.option(
    "--framework",
    type=FRAMEWORK,
    default="megatron",
    show_default=True,
    help="Trainer whose rules are listed.",
)
@click.option("--software", type=Release(), help="Release of the trainer, or a date; default the newest.")
@output_options
def command(search: str, framework: str, software: str | None, output: OutputOptions) -> None:
    """List the rules that decide what a trainer can launch: names, formulas, reasons, sources; of those that hold NAME."""
    from layoutopt.optimizer.frameworks.registry import framework_named, parse_release
    from layoutopt.optimizer.space.rules import RULES

    trainer = framework_named(framework)
    release = parse_release(trainer, software)
    # As the search asks them: a rule of another release decides nothing.
    known = [rule for rule in RULES if trainer in rule.frameworks and rule.since <= release < rule.until]
    found = [rule for rule in known if search.lower() in rule.name]
    if not found:
        names = [rule.name for rule in known]
        raise input_error(f"no rule's name holds {search[:60]!r}", near_hint(search, names), key="NAME")
    if output.json:
        print_json([_plain(rule) for rule in found])
        return
    from layoutopt.optimizer.report.tables.described import rules_table

    print_tables(rules_table(found, trainer.value))


def _plain(rule: Rule) -> dict[str, object]:
    return {
        "name": rule.name,
        "formula": rule.formula,
        "reason": rule.reason,
        "source": rule.source,
        "axes": sorted(rule.reads),
        "frameworks": sorted(rule.frameworks),
    }
