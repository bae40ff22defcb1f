"""What the notes of a measured run say beside and against its columns."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

from layoutopt.optimizer.evidence.table import read_cells
from layoutopt.optimizer.specs.document import packaged
from layoutopt.optimizer.specs.vocabulary import Dispatcher

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from layoutopt.optimizer.evidence.run import MeasuredRun


@dataclass(frozen=True, slots=True, kw_only=True)
class Phrase:
    """A pattern that decides a column or a fact; without a value its first group is the value."""

    target: str
    is_column: bool
    pattern: re.Pattern[str]
    value: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NoteFacts:
    """Facts that have no column; None where the notes do not say.

    ``dispatcher`` sends tokens to their experts. ``memory_gib``: memory is in GiB.
    ``fp32_reduction``: gradients are reduced in fp32 whatever the buffer's format. ``fp8_attention``,
    ``fused_loss``, ``fused_norm``, ``flash_attention_2`` and ``loss_chunks`` are the preset's switches.
    ``adapter_attention``: of attention alone.
    """

    compiled: bool | None = None
    dropout: bool | None = None
    dispatcher: Dispatcher | None = None
    fp32_reduction: bool | None = None
    fp8_attention: bool | None = None
    fused_loss: bool | None = None
    fused_norm: bool | None = None
    flash_attention_2: bool | None = None
    memory_gib: bool = False
    capacity_factor: float | None = None
    loss_chunks: int | None = None
    adapter_rank: int | None = None
    adapter_attention: bool = False


FLAGS = (
    "compiled",
    "dropout",
    "fp32_reduction",
    "fp8_attention",
    "fused_loss",
    "fused_norm",
    "flash_attention_2",
)
"""Facts that are either so or not."""

READERS: Mapping[str, Callable[[str], Any]] = dict.fromkeys(FLAGS, lambda text: text == "1") | {
    "dispatcher": Dispatcher,
    "capacity_factor": float,
    "loss_chunks": int,
    "adapter_rank": int,
    # Where notes say so at all, it is so.
    "memory_gib": lambda text: True,
    "adapter_attention": lambda text: True,
}
"""How a fact's words are read."""


@cache
def phrases() -> tuple[Phrase, ...]:
    """Read the package's phrases, in order of precedence."""
    return tuple(
        Phrase(
            target=entry.get("column") or entry["fact"],
            is_column="column" in entry,
            pattern=re.compile(entry["phrase"], re.IGNORECASE),
            value=entry.get("value"),
        )
        for entry in packaged("evidence", "notes")
    )


def read_notes(run: MeasuredRun) -> tuple[MeasuredRun, NoteFacts]:
    """Return the row with the columns that its notes decide, and the facts that have no column."""
    found = _matches(run.notes or "")
    names = {phrase.target for phrase in phrases() if phrase.is_column}
    cells = {name: value for name, value in found.items() if name in names}
    values: dict[str, Any] = read_cells(cells)[0]
    return (replace(run, **values) if values else run), _facts(found)


def _matches(notes: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for phrase in phrases():
        # Phrases stand in order of precedence: a later one of the same target overrules nothing.
        match = None if phrase.target in found else phrase.pattern.search(notes)
        if match:
            found[phrase.target] = match[1] if phrase.value is None else phrase.value
    return found


def _facts(found: Mapping[str, str]) -> NoteFacts:
    return NoteFacts(**{name: READERS[name](text) for name, text in found.items() if name in READERS})
