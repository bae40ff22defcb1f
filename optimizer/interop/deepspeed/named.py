"""What a trainer's file states by naming a DeepSpeed configuration: the file's own settings, else its name's."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.interop.deepspeed.read import import_deepspeed
from layoutopt.optimizer.interop.reading import shorten
from layoutopt.optimizer.specs.errors import InputError, Problem
from layoutopt.optimizer.specs.vocabulary import Precision

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from layoutopt.optimizer.interop.reading import Fields

_STAGE = re.compile(r"zero[-_]?([0-3])|stage[-_]?([0-3])|ds_z([0-3])|\bz([0-3])\b", re.IGNORECASE)


def named_deepspeed(
    name: str,
    beside: Callable[[str], str | None],
    notes: list[str],
    missing: list[str],
    *,
    built_in: bool = False,
) -> dict[str, Any]:
    """Return the framework, and degrees, batch, precision and ``offload`` as far as they are stated.

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
            "micro_batch": job.layout.micro_batch, "accumulation": job.layout.micro_batches,
            "global_batch": job.training.global_batch, "named": name,
        }  # fmt: skip
    # ds_z3_offload_config.json, zero2.json: examples are called after what they hold, and are often not handed on.
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


def require_agreement(
    stated: Mapping[str, Any],
    fields: Fields,
    batch: int | None,
    micro_key: str = "per_device_train_batch_size",
) -> None:
    """Refuse a DeepSpeed configuration that contradicts the arguments, as Hugging Face's trainer does.

    Its ``HfTrainerDeepSpeedConfig`` wants equal values or ``auto`` (transformers 5.24.0 ``integrations/deepspeed.py``).
    ``batch`` is the global batch that follows from the arguments. Raises ``InputError`` with both places of each value.
    """
    if "named" not in stated:
        return
    steps = "gradient_accumulation_steps"
    pairs: list[tuple[str, Any, str, Any]] = [
        (micro_key, fields.integer(micro_key), "train_micro_batch_size_per_gpu", stated["micro_batch"]),
        (steps, fields.integer(steps), steps, stated["accumulation"]),
    ]
    flags = {Precision.BF16: "bf16", Precision.FP16: "fp16"}
    own = [kind for kind, key in flags.items() if str(fields.raw(key) or False).lower() == "true"]
    if own and stated["precision"] in flags:
        pairs.append((flags[own[0]], own[0], f"{flags[stated['precision']]}.enabled", stated["precision"]))
    # The batch follows from the values before: where one of those differs, its own difference says nothing new.
    if not any(mine and theirs and mine != theirs for _, mine, _, theirs in pairs):
        pairs.append(("global batch", batch, "train_batch_size", stated["global_batch"]))
    problems = [
        Problem(
            what=f"{mine} contradicts {theirs}, which {their_key} of {shorten(stated['named'])} states",
            allowed="one value in both places, or auto in the latter",
            key=fields.path(key) if key in fields else key,
            file=fields.file,
        )
        for key, mine, their_key, theirs in pairs
        if mine and theirs and mine != theirs
    ]
    if problems:
        raise InputError(*problems)
