"""Arguments of the commands that look at a given layout."""

from __future__ import annotations

from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from layoutopt.optimizer.report.commands.completion import complete_cluster, complete_model

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True, kw_only=True)
class JobChoices:
    """How a layout was given: MODEL CLUSTER with ``--layout``, or a launch file with ``--from`` and ``--cluster``."""

    model: str | None
    cluster: str | None
    layout: str | None
    files: tuple[str, ...]
    where: str | None


_OPTIONS = (
    click.argument("model", metavar="[MODEL]", required=False, shell_complete=complete_model),
    click.argument("cluster", metavar="[CLUSTER]", required=False, shell_complete=complete_cluster),
    click.option(
        "--layout", metavar="TEXT|FILE",
        help="tp=8,pp=16,... or a layout file or plan; what is left out follows from GPUs and batch.",
    ),
    click.option(
        "--from", "files", metavar="FILE", multiple=True, type=click.Path(),
        help="Launch script or configuration of a trainer; also its config.json, node list or error log.",
    ),
    click.option(
        "--cluster", "where", metavar="CLUSTER", shell_complete=complete_cluster, help="The cluster, beside --from."
    ),
)  # fmt: skip


def job_arguments(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the arguments and pass them as one ``JobChoices``, named ``given``."""

    @wraps(command)
    def collect(**values: Any) -> Any:
        """Pass the job's options on as one record."""
        choices = {name: values.pop(name) for name in JobChoices.__slots__}
        return command(**values, given=JobChoices(**choices))

    decorated: Callable[..., Any] = collect
    for option in reversed(_OPTIONS):
        decorated = option(decorated)
    return decorated
