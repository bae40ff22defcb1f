"""Megatron-LM's pipeline layout strings: read them, write them.

Grammar (NVIDIA/Megatron-LM core/transformer/pipeline_parallel_layer_layout.py): characters ``E`` embedding,
``t`` decoder layer, ``m`` multi-token-prediction layer, ``L`` loss; ``|`` separates stages; commas are
ignored; ``x*N`` repeats one character, ``(...)*N`` a group, which may hold ``|`` but no other group. Stages
are listed chunk-major: entry i belongs to pipeline rank ``i % pp``, chunk ``i // pp``; empty ones are legal.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from layoutopt.optimizer.specs.errors import input_error

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_LAYERS = 10_000
MAX_SHOWN = 60
LETTERS = "EtmL|"
WORDS = {"embedding": "E", "decoder": "t", "mtp": "m", "loss": "L"}
_GROUP = re.compile(r"\(([^()]*)\)\*(\d{1,6})")
_REPEAT = re.compile(r"([EtmL|])\*(\d{1,6})")
_STAGE = re.compile("E?t*m*L?")


@dataclass(frozen=True, slots=True, kw_only=True)
class StageItems:
    """What one virtual stage holds: decoder and MTP layers, and whether the embedding or the loss."""

    layers: int
    mtp: int = 0
    embedding: bool = False
    loss: bool = False


def parse_layout_string(text: str, *, key: str = "pipeline_model_parallel_layout") -> tuple[StageItems, ...]:
    """Read a layout string into its stages, in order.

    Raises ``InputError`` for what the grammar does not allow, for an embedding that is not the first item or
    a loss that is not the last, and for MTP layers that are not together after all decoder layers.
    """
    letters = _expand(text, key)
    unknown = sorted(set(letters) - set(LETTERS))
    if unknown:
        what = f"layout {shorten(text)!r}: unexpected {unknown[0]!r}"
        raise input_error(what, "E t m L | , x*N (...)*N", key=key)
    return check_stages([_items(stage, key) for stage in letters.split("|")], key=key)


def shorten(value: object) -> str:
    """One line of at most ``MAX_SHOWN`` characters that shows a value from a file."""
    shown = " ".join(str(value).split())
    return shown if len(shown) <= MAX_SHOWN else shown[: MAX_SHOWN - 3] + "..."


def _expand(text: str, key: str) -> str:
    letters = text.replace(",", "")  # Megatron-LM strips commas too: they are there for people
    # Groups first: what repeats inside of one is repeated with it.
    for pattern in (_GROUP, _REPEAT):
        # Counted before it is written out: a short string may stand for more letters than fit into memory.
        size = sum(len(part) * int(times) for part, times in pattern.findall(letters))
        if size > 10 * MAX_LAYERS:
            what = f"layout {shorten(text)!r} repeats too often"
            raise input_error(what, f"at most {MAX_LAYERS} layers", key=key)
        letters = pattern.sub(lambda match: match[1] * int(match[2]), letters)
    return letters


def _items(stage: str, key: str) -> StageItems:
    if not _STAGE.fullmatch(stage):
        what = f"layout stage {shorten(stage)!r} is out of order"
        raise input_error(what, "E, then t, then m, then L", key=key)
    layers, mtp = stage.count("t"), stage.count("m")
    return StageItems(layers=layers, mtp=mtp, embedding=stage[:1] == "E", loss=stage[-1:] == "L")


def stages_from_lists(stages: Sequence[object], *, key: str) -> tuple[StageItems, ...]:
    """Read the list-of-lists form: ``[["embedding", "decoder"], ..., ["loss"]]``.

    Raises ``InputError`` for unknown items.
    """
    items = []
    for stage in stages:
        words = stage if isinstance(stage, list | tuple) else [stage]
        letters = "".join(WORDS.get(str(word), "?") for word in words)
        if "?" in letters:
            what = f"layout stage {shorten(stage)} is not known"
            raise input_error(what, "lists of " + ", ".join(WORDS), key=key)
        items.append(_items(letters, key))
    return check_stages(items, key=key)


def check_stages(stages: Sequence[StageItems], *, key: str) -> tuple[StageItems, ...]:
    """Check one embedding first, one loss last, and all MTP layers in one stage after the decoder layers.

    Raises ``InputError`` for others.
    """
    holders = [index for index, stage in enumerate(stages) if stage.mtp]
    if not stages or not stages[0].embedding or sum(stage.embedding for stage in stages) != 1:
        raise input_error("layout has no embedding, or not as its first item", "one E at the start", key=key)
    if not stages[-1].loss or sum(stage.loss for stage in stages) != 1:
        raise input_error("layout has no loss, or not as its last item", "one L at the end", key=key)
    if len(holders) > 1:
        raise input_error("layout spreads MTP layers over stages", "all m in one stage", key=key)
    if holders and any(stage.layers for stage in stages[holders[0] + 1 :]):
        raise input_error("layout has decoder layers after the MTP layers", "m after the last t", key=key)
    if sum(stage.layers for stage in stages) > MAX_LAYERS:
        raise input_error("layout has too many layers", f"at most {MAX_LAYERS}", key=key)
    return tuple(stages)


def write_layout_string(stages: Sequence[StageItems]) -> str:
    """Write stages as the shortest string of this form: equal neighbours become ``(...|)*N``."""
    texts = [_stage_text(stage) for stage in stages]
    parts = []
    index = 0
    while index < len(texts) - 1:
        run = index
        while run < len(texts) - 1 and texts[run] == texts[index]:
            run += 1
        times = run - index
        parts.append(f"({texts[index]}|)*{times}" if times > 1 else f"{_short(stages[index])}|")
        index = run
    return "".join(parts) + _short(stages[-1])


def _stage_text(stage: StageItems) -> str:
    return "E" * stage.embedding + "t" * stage.layers + "m" * stage.mtp + "L" * stage.loss


def _short(stage: StageItems) -> str:
    layers = (
        f"t*{stage.layers}" if stage.layers > 2 else "t" * stage.layers
    )  # from three on shorter than letters
    return "E" * stage.embedding + layers + "m" * stage.mtp + "L" * stage.loss
