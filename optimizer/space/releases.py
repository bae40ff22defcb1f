"""Software releases: what a ``software`` string means for the rules of a framework."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from layoutopt.optimizer.specs.vocabulary import Framework

if TYPE_CHECKING:
    from collections.abc import Mapping

Release = tuple[int, ...]
"""A release as numbers, comparable.

Megatron frameworks count in megatron-core releases, torchtitan in eras.
"""

NEWEST: Release = (9999,)

ERA_A: Release = (0, 2)
ERA_B: Release = (0, 3)
ERA_C: Release = (0, 4)
"""torchtitan's configuration eras: A up to v0.2.2 (TOML), B from 2026-02-23 (dataclasses), C from 2026-08-20
(batches in tokens). B and C have no numbered release yet, so they stand as the next minor numbers.
"""

_ERAS: Mapping[str, Release] = {"a": ERA_A, "b": ERA_B, "c": ERA_C}
_CORE_OF_BRIDGE: Mapping[Release, Release] = {
    (0, 1): (0, 14),
    (0, 2): (0, 15),
    (0, 3): (0, 16),
    (0, 4): (0, 17),
    (0, 5): (0, 18),
}
"""NVIDIA-NeMo/Megatron-Bridge pyproject.toml of each tag: the megatron-core it pins."""

# NVIDIA NeMo framework containers (year, month) and the megatron-core inside, from the containers' release
# notes.
_CORE_OF_CONTAINER: Mapping[Release, Release] = {
    (24, 7): (0, 8),
    (24, 9): (0, 9),
    (24, 12): (0, 10),
    (25, 2): (0, 11),
    (25, 4): (0, 12),
    (25, 7): (0, 13),
    (25, 9): (0, 14),
    (25, 11): (0, 15),
    (26, 2): (0, 16),
    (26, 4): (0, 17),
    (26, 6): (0, 18),
    (26, 8): (0, 19),
}


def parse_release(framework: Framework, software: str | None) -> Release:
    """Read a software string as the release that the framework's rules are keyed by.

    Parameters
    ----------
    framework
        Decides the counting: megatron-core for the Megatron frameworks, eras for torchtitan, else its own
        numbers.
    software
        For example ``core 0.9``, ``0.15``, ``NeMo 25.02``, ``v0.2.2``, ``era C``; of a range the newest
        counts.

    Returns
    -------
    The release, ``NEWEST`` when the string is missing or says nothing that can be compared.
    """
    text = (software or "").strip().lower()
    era = re.search(r"\bera\s*([abc])\b", text)
    if era:
        return _ERAS[era.group(1)]
    found = [tuple(int(part) for part in match.split(".")) for match in re.findall(r"\d+(?:\.\d+)+", text)]
    if not found:
        return NEWEST
    release = max(found)
    if framework not in (Framework.MEGATRON, Framework.MEGATRON_BRIDGE):
        return release
    return _core_release(release, counts_core=framework is Framework.MEGATRON or "core" in text)


def _core_release(release: Release, *, counts_core: bool) -> Release:
    """Translate a container tag or a Bridge release into the megatron-core release inside it."""
    if release[0] >= 24:
        inside = [core for tag, core in _CORE_OF_CONTAINER.items() if tag <= release[:2]]
        return max(inside, default=(0, 8)) if release[:2] <= max(_CORE_OF_CONTAINER) else NEWEST
    return release if counts_core else _CORE_OF_BRIDGE.get(release[:2], NEWEST)
