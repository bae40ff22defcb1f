"""``layoutopt verify``."""

from __future__ import annotations

import json
from pathlib import Path

import click

from layoutopt.optimizer.report.commands.exit_code import ExitCode
from layoutopt.optimizer.report.commands.options import OutputOptions, output_options
from layoutopt.optimizer.report.terminal import print_json, print_tables
from layoutopt.optimizer.specs.errors import input_error


@click.command()
@click.argument("plan", metavar="PLAN", type=click.Path(path_type=Path))
@click.option("--model", metavar="MODEL", help="Also check that the plan is for this model.")
@click.option("--cluster", metavar="CLUSTER", help="Also check that the plan is for this cluster.")
@output_options
def command(plan: Path, model: str | None, cluster: str | None, output: OutputOptions) -> ExitCode:
    """Check the proof of PLAN, the file that solve wrote, with other code than found it, and all figures that it states.

    What was not checked is named, and what the claim is restricted to. Exit code 3 if any check fails.
    """
    from layoutopt.optimizer.ask.load import load_cluster
    from layoutopt.optimizer.report.verification import verify_plan
    from layoutopt.optimizer.specs.loading import load_workload

    plain = read_plan_file(plan)
    report = verify_plan(
        plain,
        file=str(plan),
        workload=load_workload(model) if model else None,
        cluster=load_cluster(cluster) if cluster else None,
    )
    if output.json:
        from layoutopt.optimizer.report.json_forms import to_plain

        print_json(to_plain(report))
    else:
        from layoutopt.optimizer.report.tables.answer import verify_tables

        print_tables(verify_tables(report, str(plan)))
    return ExitCode.OK if report.accepted else ExitCode.REJECTED


def read_plan_file(path: Path) -> object:
    """Parse a plan; raises ``InputError`` for a file that cannot be read, is no JSON, or means two things."""
    from layoutopt.optimizer.specs.document import read_text
    from layoutopt.optimizer.specs.loading import MAX_PLAN_BYTES

    text = read_text(path, max_bytes=MAX_PLAN_BYTES)
    try:
        return json.loads(text, object_pairs_hook=_without_twins, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        raise input_error(
            f"not JSON: {error.msg}", "what solve -o wrote", file=str(path), line=error.lineno
        ) from None
    except _Ambiguous as error:
        raise input_error(f"not JSON: {error}", "what solve -o wrote", file=str(path)) from None
    except (RecursionError, ValueError):
        # Brackets nested too deep, numbers of too many digits.
        raise input_error("not JSON that can be read", "what solve -o wrote", file=str(path)) from None


class _Ambiguous(Exception):
    """JSON that readers understand differently."""


def _without_twins(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Refuse keys that stand twice: one reader takes the first, another the last."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise _Ambiguous(f"the key {twice[:40]!r} stands twice in one object")
    return found


def _no_constant(name: str) -> float:
    # Python reads NaN and Infinity, which JSON does not have.
    raise _Ambiguous(f"{name} is no number of JSON")
