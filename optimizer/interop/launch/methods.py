"""Training on preferences and rewards: what it does beside the steps of the policy that are priced."""

from __future__ import annotations

from itertools import pairwise
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_REFERENCE = "the reference model (its weights, and its forward pass over every sequence)"
_PAIRS = "the second sequence of every pair (a sample is a chosen and a rejected one)"
_ROLLOUT = "generation, the reference model, and reward or value models"

LEFT_OUT = {
    "dpo": (_REFERENCE, _PAIRS),
    "ipo": (_REFERENCE, _PAIRS),
    "kto": (_REFERENCE,),
    "orpo": (_PAIRS,),
    "simpo": (_PAIRS,),
    "cpo": (_PAIRS,),
    "rm": (_PAIRS,),
    "reward": (_PAIRS,),
    "reward_modeling": (_PAIRS,),
    "ppo": (_ROLLOUT,),
    "grpo": (_ROLLOUT,),
    "rloo": (_ROLLOUT,),
    "online_dpo": (_ROLLOUT, _PAIRS),
    "gkd": ("generation and the teacher model",),
}
"""Methods by their names in LLaMA-Factory, ms-swift, axolotl and TRL, and what of each is not priced."""


def note_method(method: object, notes: list[str]) -> None:
    """Say what a method beyond supervised fine-tuning does that is not priced; others say nothing."""
    left = LEFT_OUT.get(str(method).lower())
    if left:
        notes.append(f"{method}: priced as fine-tuning of the policy; not modelled: {', '.join(left)}")


def method_of(words: Iterable[str]) -> str | None:
    """Return the method that a command names by its script (``dpo.py``) or by a word behind ``trl``."""
    parts = list(words)
    names = [PurePosixPath(word).name.removesuffix(".py") for word in parts if word.endswith(".py")]
    names += [after for before, after in pairwise(parts) if PurePosixPath(before).name == "trl"]
    return next((name for name in names if name in LEFT_OUT), None)
