"""A search of a command: progress on stderr, and Ctrl-C, of which the first stops it and the second aborts."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from layoutopt.optimizer.report.commands.interrupt import Interrupt
from layoutopt.optimizer.report.terminal import note

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from layoutopt.optimizer.report.commands.options import OutputOptions
    from layoutopt.optimizer.solve.plan import Plan, SolveOptions
    from layoutopt.optimizer.solve.search.result import Progress
    from layoutopt.optimizer.specs.cluster import ClusterSpec
    from layoutopt.optimizer.specs.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """What a search is given to be watched and stopped by."""

    on_progress: Callable[[Progress], None]
    should_stop: Callable[[], bool]


@contextmanager
def watched(output: OutputOptions) -> Iterator[Watch]:
    """Show how searches go on, and let Ctrl-C end them."""
    from layoutopt.optimizer.report.progress import progress_printer

    printer = progress_printer(quiet=output.quiet, verbose=output.verbose)
    with printer, Interrupt(lambda: note("stopping; Ctrl-C again aborts", output)) as interrupt:
        yield Watch(on_progress=printer.update, should_stop=interrupt.asked)


def solve_watched(
    workload: Workload, cluster: ClusterSpec, options: SolveOptions, output: OutputOptions
) -> Plan:
    """Search for the layout of a question."""
    from layoutopt.optimizer.solve.api import solve_layout

    with watched(output) as watch:
        return solve_layout(
            workload, cluster, options, on_progress=watch.on_progress, should_stop=watch.should_stop
        )
