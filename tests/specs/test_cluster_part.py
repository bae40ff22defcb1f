"""The first GPUs of a cluster keep the network that they need."""

from __future__ import annotations

import pytest

from layoutopt.optimizer.specs.errors import InputError
from layoutopt.optimizer.specs.loading import load_cluster
from layoutopt.optimizer.specs.reference_fabric import first_gpus


@pytest.mark.parametrize(
    ("count", "levels"),
    [
        (16384, ["leaf", "pod", "spine"]),
        (4096, ["leaf", "pod", "spine"]),  # more than a pod of 3,072
        (3072, ["leaf", "pod"]),
        (256, ["leaf"]),
        (20, ["leaf"]),  # the last node is partly filled
        (8, []),  # one node
        (1, []),
    ],
)
def test_levels_up_to_the_first_that_covers(count: int, levels: list[str]) -> None:
    """Levels that join nothing are left out; the others keep their sizes."""
    whole = load_cluster("h100-16384")
    part = first_gpus(whole, count)
    assert part.gpu_count == count
    assert [level.name for level in part.levels] == levels
    assert part.levels == whole.levels[: len(levels)]


def test_all_gpus_are_the_cluster_itself() -> None:
    """Asking for as many as there are changes nothing."""
    whole = load_cluster("h100-256")
    assert first_gpus(whole, 256) is whole


@pytest.mark.parametrize("count", [257, 0, -8])
def test_more_than_there_are_is_refused(count: int) -> None:
    """A cluster isn't extended by guessing its network."""
    with pytest.raises(InputError, match="has 256 GPUs"):
        first_gpus(load_cluster("h100-256"), count)
