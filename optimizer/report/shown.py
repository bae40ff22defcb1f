"""What all answers of the Python interface share: one line as repr, tables as text and in notebooks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from layoutopt.optimizer.specs.printable import printable

if TYPE_CHECKING:
    from rich.console import RenderableType

    from layoutopt.optimizer.solve.plan import SolveOptions
    from layoutopt.optimizer.specs.cluster import ClusterSpec
    from layoutopt.optimizer.specs.workload import Workload


@dataclass(frozen=True, kw_only=True)
class Answer(ABC):
    """An answer that shows itself: one line as repr, tables as text and in notebooks."""

    workload: Workload = field(repr=False)
    cluster: ClusterSpec = field(repr=False)
    options: SolveOptions = field(repr=False)

    @abstractmethod
    def _tables(self) -> RenderableType:
        """Return the tables that the command prints."""

    def __str__(self) -> str:
        from rich.console import Console

        from layoutopt.optimizer.report.tables.console import WIDTH, Printable

        target = Console(
            width=WIDTH, highlight=False, emoji=False, markup=False, no_color=True, force_terminal=False
        )
        with target.capture() as captured:
            target.print(Printable(self._tables()), crop=False)
        return "\n".join(line.rstrip() for line in captured.get().splitlines())

    def _repr_html_(self) -> str:
        from io import StringIO

        from rich.console import Console

        from layoutopt.optimizer.report.tables.console import WIDTH, Printable

        target = Console(
            width=WIDTH,
            record=True,
            highlight=False,
            emoji=False,
            markup=False,
            file=StringIO(),
            force_terminal=True,
        )
        target.print(Printable(self._tables()), crop=False)
        template = '<pre style="line-height:1.3;overflow-x:auto">{code}</pre>'
        return target.export_html(inline_styles=True, code_format=template)

    @property
    def question_line(self) -> str:
        """Return the model and the cluster in a few words."""
        return printable(
            f"{self.workload.model.name} on {self.cluster.gpu_count:,} x {self.cluster.gpu.name}"
        )
