"""What a trainer's file states by naming a DeepSpeed configuration: the file's own settings, else its name's."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.interop.deepspeed.read import import_deepspeed
from layoutopt.optimizer.interop.reading import shorten

if TYPE_CHECKING:
    from collections.abc import Callable

_STAGE = re.compile(r"zero[-_]?([0-3])|stage[-_]?([0-3])|ds_z([0-3])|\bz([0-3])\b", re.IGNORECASE)


def named_deepspeed(
    name: str,
    beside: Callable[[str], str | None],
    notes: list[str],
    missing: list[str],
    *,
    built_in: bool = False,
) -> dict[str, Any]:
    """Return the framework, and ``zero``, ``offload``, ``tp``, ``cp`` and ``precision`` as far as they are stated.

    Parameters
    ----------
    name
        The configuration's file, as the trainer's file names it.
    beside
        Returns the text of a file beside the trainer's, None where there is none.
    notes, missing
        Where what was assumed, and what nothing states, is added.
    built_in
        Whether a word without a suffix is one of the trainer's own configurations, whose name is its stage.
    """
    found: dict[str, Any] = {"framework": Framework.DEEPSPEED}
    text = beside(name)
    if text is not None:
        job = import_deepspeed(text, name)
        notes += [note for note in job.notes if note not in notes]
        return found | {
            "zero": job.layout.zero, "offload": job.options.optimizer_offload, "tp": job.layout.tp,
            "cp": job.layout.cp, "precision": job.training.precision, "optimizer": job.training.optimizer,
        }  # fmt: skip
    match = _STAGE.search(name)
    if match is None:
        missing.append(f"the ZeRO stage of {shorten(name)}, which was not found")
        return found
    stage = next(int(group) for group in match.groups() if group is not None)
    if not (built_in and "." not in name):
        notes.append(f"assumed: zero={stage}: so {shorten(name)} is called, which was not found")
    offload = "offload" in name.lower()
    if offload and stage == 3:
        notes.append("parameters in host memory are not modelled; memory is overestimated")
    return found | {"zero": stage, "offload": 1.0 if offload else None}
