"""Sets of memory savers: how they are written, and which of them a question opens."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

from layoutopt.optimizer.frameworks.preset import load_preset
from layoutopt.optimizer.frameworks.registry import savers_of
from layoutopt.optimizer.specs.errors import input_error
from layoutopt.optimizer.specs.vocabulary import Saver

if TYPE_CHECKING:
    from layoutopt.optimizer.space.context import Context
    from layoutopt.optimizer.space.options import SpaceOptions


def savers_text(savers: tuple[Saver, ...]) -> str:
    """Write a set of memory savers: names joined by ``+``, or ``none``."""
    return "+".join(savers) or "none"


def parse_savers(text: str) -> tuple[Saver, ...]:
    """Read what ``savers_text`` writes; a name that is not known raises ValueError."""
    return () if text == "none" else tuple(sorted({Saver(name) for name in text.split("+")}))


def saver_sets(ctx: Context, options: SpaceOptions) -> tuple[tuple[Saver, ...], ...]:
    """Return the fixed sets of memory savers, or every set of those allowed that the framework has.

    Raises ``InputError`` where it has none of them.
    """
    forbidden = {parse_savers(str(text)) for text in options.forbid.get("savers", ())}
    if "savers" in options.fix:
        fixed = dict.fromkeys(parse_savers(str(text)) for text in options.fix["savers"])
        return tuple(chosen for chosen in fixed if chosen not in forbidden)
    known = savers_of(ctx.framework, ctx.release, ctx.model)
    if options.allow and not set(options.allow) & set(known):
        asked, has = ", ".join(options.allow), ", ".join(known)
        raise input_error(
            f"{ctx.framework.value} has no {asked}", f"it has {has or 'no memory saver'}", key="allow"
        )
    # In the vocabulary's order, so that one set has one spelling.
    useful = [saver for saver in Saver if saver in options.allow and saver in known and _saves(saver, ctx)]
    # The empty set is among them: a saver that may be used need not be.
    sets = [chosen for size in range(len(useful) + 1) for chosen in combinations(useful, size)]
    return tuple(chosen for chosen in sets if chosen not in forbidden)


def _saves(saver: Saver, ctx: Context) -> bool:
    """Return whether a saver changes anything; moments may have 16 bits anyway."""
    preset = load_preset(ctx.framework).with_training(ctx.training)
    return saver is not Saver.BF16_MOMENTS or preset.moment_bytes > 2
