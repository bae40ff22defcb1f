"""A search of a command: progress on stderr, and Ctrl-C, of which the first stops it and the second aborts."""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from layoutopt.optimizer.report.commands.exit_code import OF_STATUS
from layoutopt.optimizer.report.terminal import note, print_json, print_tables

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import FrameType, TracebackType

    from rich.console import RenderableType

    from layoutopt.optimizer.report.commands.exit_code import ExitCode
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


def print_none(
    plan: Plan,
    output: OutputOptions,
    more: Mapping[str, Any] | None = None,
    tables: Sequence[RenderableType] = (),
) -> ExitCode:
    """Say why a search has no layout, with what was answered all the same: ``more`` as JSON, ``tables`` for people."""
    why = plan.infeasibility.message if plan.infeasibility else "stopped before a layout was found"
    if output.json:
        print_json({"status": plan.status.value, "reasons": [why], **(more or {})})
    else:
        from rich.console import Group
        from rich.text import Text

        print_tables(Group(Text(why), *tables))
    return OF_STATUS[plan.status.value]


class Interrupt:
    """A context in which Ctrl-C sets a flag once; ``on_first`` is called then. Outside the main thread it does nothing."""

    def __init__(self, on_first: Callable[[], None]) -> None:
        self._on_first = on_first
        self._asked = False
        self._before: Any = None

    def asked(self) -> bool:
        """Whether Ctrl-C was pressed."""
        return self._asked

    def __enter__(self) -> Self:
        # Python sets handlers in the main thread alone; a notebook's or a server's worker searches without one.
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
            self._before = None

    def _handle(self, number: int, frame: FrameType | None) -> None:
        # Between two looks at the flag whole tables are priced: whoever presses twice does not wait for that.
        if self._asked:
            raise KeyboardInterrupt
        self._asked = True
        self._on_first()
