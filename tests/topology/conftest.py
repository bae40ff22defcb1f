"""Small clusters of many shapes for the topology tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from layoutopt.optimizer.specs.cluster import ClusterSpec, NetworkLevel
from layoutopt.optimizer.specs.loading import load_cluster
from layoutopt.optimizer.topology.groups import Digit, GroupBatch

GPU = load_cluster("h100x8").gpu


MakeCluster = Callable[..., ClusterSpec]
MakeGroup = Callable[[int, int, int], GroupBatch]


@pytest.fixture(scope="session")
def make_cluster() -> MakeCluster:
    """Return a builder of clusters of 8-GPU nodes on one switch level, with any field changed."""

    def build(gpus: int, *, levels: dict[str, tuple[int, float]] | None = None, **fields: Any) -> ClusterSpec:
        named = levels or {"spine": (gpus, 1.0)}
        given = {"gpus_per_node": 8, "nvlink_domain": 8, "nics_per_node": 8, "nic_bytes_per_s": 50e9} | fields
        return ClusterSpec(
            name="test",
            gpu=given.pop("gpu", GPU),
            gpu_count=gpus,
            levels=tuple(
                NetworkLevel(name=name, gpus=size, oversubscription=factor)
                for name, (size, factor) in named.items()
            ),
            **given,
        )

    return build


@pytest.fixture(scope="session")
def make_group() -> MakeGroup:
    """Return a builder of one group from size, stride and the number of ranks."""

    def build(size: int, stride: int, ranks: int) -> GroupBatch:
        return GroupBatch(digits=(Digit(np.array([size]), np.array([stride])),), ranks=np.array([ranks]))

    return build
