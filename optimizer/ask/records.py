"""What can be asked, and what messages call it: light records that the command line builds while it parses."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Generic, TypeVar

from layoutopt.optimizer.specs.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from layoutopt.optimizer.frameworks.registry import Framework

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """What messages call each thing that was given: arguments of Python or options of the command line."""

    sequence_length: str = "sequence_length"
    global_batch: str = "global_batch"
    batch_tokens: str = "batch_tokens"
    precision: str = "precision"
    gpus: str = "gpus"
    total_tokens: str = "total_tokens"
    epochs: str = "epochs"
    samples: str = "samples"
    layout: str = "layout"
    files: str = "files"
    settings: str = "settings"
    arguments: str = "arguments"
    function: str = "function"
    recipe_file: str = "recipe_file"
    layout_or_files: str = "layout='tp=8,pp=16' or files=['train.sh']"

    @contextmanager
    def used(self) -> Iterator[None]:
        """Let problems of arguments carry these names; problems inside files keep their keys.

        Raises the ``InputError`` of its body under these names.
        """
        try:
            yield
        except InputError as error:
            problems = (
                problem if problem.file else replace(problem, key=getattr(self, problem.key, problem.key))
                for problem in error.problems
            )
            raise InputError(*problems) from None


PYTHON = Names()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunChoices:
    """What replaces training numbers of a model file, and the number of GPUs.

    The batch is given in sequences or in tokens, the run's length in tokens or as
    epochs over samples of one sequence. The first precision replaces the file's; the others are alternatives.
    For files of other tools: ``settings`` and ``arguments`` are variables and positions that a script leaves to the
    outside, ``function`` is the one of a Python configuration, ``recipe_file`` holds a Megatron-Bridge or NeMo 2 recipe, and
    ``strict`` refuses whatever has to be assumed.
    """

    sequence_length: int | None = None
    global_batch: int | None = None
    batch_tokens: float | None = None
    precision: tuple[str, ...] = ()
    gpus: int | None = None
    total_tokens: float | None = None
    epochs: float | None = None
    samples: int | None = None
    settings: tuple[tuple[str, str], ...] = ()
    arguments: tuple[tuple[int, str], ...] = ()
    function: str | None = None
    recipe_file: str | None = None
    strict: bool = False


AS_STATED = RunChoices()


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest:
    """A layout as it was given: as text or file for a model on a cluster, or by files of a launch.

    ``files`` hold a launch file, and beside it its model configuration, a node list, an error log. ``framework`` None is
    the launch file's, Megatron-LM where there is none.
    """

    cluster: str
    model: str | None = None
    layout: str | None = None
    files: tuple[str, ...] = ()
    framework: Framework | None = None
    software: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded(Generic[T]):
    """What was read, with notes on what was assumed or left out."""

    value: T
    notes: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    """What kinds of foreign files were read."""
