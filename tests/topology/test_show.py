"""The data behind ``topology show``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from layoutopt.optimizer.specs.errors import InputError
from layoutopt.optimizer.topology.links import load_links
from layoutopt.optimizer.topology.show import topology_table

if TYPE_CHECKING:
    from collections.abc import Callable

    from layoutopt.optimizer.specs.cluster import ClusterSpec

    MakeCluster = Callable[..., ClusterSpec]

LINKS = load_links(alone=True)


def test_levels_from_the_node_outward(make_cluster: MakeCluster) -> None:
    """Names, sizes, counts, bandwidth per GPU and oversubscription of every level."""
    levels = {"leaf": (256, 1.0), "pod": (3072, 1.0), "spine": (16384, 7.0)}
    table = topology_table(make_cluster(16384, levels=levels), LINKS)
    assert [(row.name, row.part_gpus, row.gpus, row.blocks) for row in table.levels] == [
        ("nvlink", 1, 8, 2048),
        ("leaf", 8, 256, 64),
        ("pod", 256, 3072, 6),
        ("spine", 3072, 16384, 1),
    ]
    assert [row.bytes_per_s for row in table.levels] == pytest.approx([450e9, 50e9, 50e9, 50e9 / 7])
    assert table.nodes == 2048


def test_prices_of_chosen_groups(make_cluster: MakeCluster) -> None:
    """One row per collective and group, bus bandwidth near 0.96 of a NIC for one rank per node."""
    table = topology_table(make_cluster(512), LINKS, size_bytes=16e9, groups=[(64, 8), (8, 1)])
    assert len(table.collectives) == 10
    reduce = table.collectives[0]
    assert (reduce.collective, reduce.group, reduce.stride, reduce.members) == ("all_reduce", 64, 8, (1, 64))
    assert reduce.bus_bytes_per_s == pytest.approx(0.96 * 50e9, rel=0.02)
    assert reduce.bus_bytes_per_s == pytest.approx(2 * 63 / 64 * 16e9 / reduce.seconds)


def test_default_groups(make_cluster: MakeCluster) -> None:
    """Blocks of every level and one rank per node; a single GPU costs nothing."""
    table = topology_table(make_cluster(64, levels={"leaf": (16, 1.0), "spine": (64, 2.0)}), LINKS)
    groups = dict.fromkeys((row.group, row.stride) for row in table.collectives)
    assert list(groups) == [(8, 1), (16, 1), (64, 1), (8, 8)]
    alone = topology_table(make_cluster(1, gpus_per_node=1, nvlink_domain=1, nics_per_node=1), LINKS)
    assert {row.seconds for row in alone.collectives} == {0.0}


@pytest.mark.parametrize("group", [(0, 1), (8, 0), (65, 1), (8, 16)])
def test_groups_that_do_not_fit(group: tuple[int, int], make_cluster: MakeCluster) -> None:
    """Empty, without stride, more ranks than GPUs, reaching past the last GPU."""
    with pytest.raises(InputError, match="does not fit 64 GPUs"):
        topology_table(make_cluster(64), LINKS, groups=[group])


def test_negative_size(make_cluster: MakeCluster) -> None:
    """Bytes below zero and not a number."""
    for size_bytes in (-1.0, float("nan")):
        with pytest.raises(InputError, match="size of"):
            topology_table(make_cluster(64), LINKS, size_bytes=size_bytes)
