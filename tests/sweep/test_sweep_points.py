"""Combinations of a grid, their keys, and clusters at other sizes and rates."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from layoutopt.optimizer.frameworks.registry import Framework
from layoutopt.optimizer.solve.plan import SolveOptions
from layoutopt.optimizer.specs.errors import InputError
from layoutopt.optimizer.specs.loading import load_cluster, load_workload
from layoutopt.optimizer.sweep.families import (
    load_family,
    network_gbit_per_s,
    tier_rows,
    tiers_nest,
    with_network,
)
from layoutopt.optimizer.sweep.points import SweepGrid, make_point

if TYPE_CHECKING:
    from collections.abc import Callable

    from layoutopt.optimizer.specs.workload import Workload
    from layoutopt.optimizer.sweep.points import SweepPoint


def test_every_combination_once(tiny: Workload) -> None:
    """Two sizes, two batches, three networks and two lengths are 24 points with different keys."""
    grid = SweepGrid(
        workloads=[tiny],
        families=[load_family("h100")],
        gpus=(8, 16),
        global_batches=(32, 64),
        sequence_lengths=(1024, 2048),
        network_gbit_per_s=(200, 400, 800),
    )
    points = grid.points()
    assert len(points) == 24
    assert len({point.key for point in points}) == 24
    assert len({point.chain for point in points}) == 12  # sizes share a chain
    assert [point.gpus for point in points[:4]] == [8, 16, 8, 16]
    columns = points[-1].columns()
    assert (columns["global_batch"], columns["sequence_length"], columns["network_gbit_per_s"]) == (
        64,
        2048,
        800,
    )


def test_repeated_values_give_one_point(make_points: Callable[..., tuple[SweepPoint, ...]]) -> None:
    """The network a cluster has anyway is the same question."""
    assert len(make_points(8, 8, network_gbit_per_s=(400, 400.0))) == 1


def test_keys_depend_on_every_input(tiny: Workload) -> None:
    """Workload, cluster and options change the key; the search's effort does not."""
    cluster, options = load_cluster("h100x8"), SolveOptions()
    base = make_point(tiny, "h100", cluster, options).key
    longer = replace(tiny, training=replace(tiny.training, sequence_length=4096))
    others = [
        make_point(longer, "h100", cluster, options),
        make_point(tiny, "h100", load_cluster("h100x16"), options),
        make_point(tiny, "h100", cluster, replace(options, framework=Framework.ANY)),
        make_point(tiny, "h100", cluster, replace(options, gap=0.01)),
        make_point(tiny, "h100", cluster, replace(options, top=5)),
    ]
    assert len({base, *(point.key for point in others)}) == 6
    assert make_point(tiny, "h100", cluster, replace(options, workers=7)).key == base
    assert make_point(tiny, "h100", cluster, replace(options, time_limit_s=1.0)).key == base


def test_impossible_combinations_are_all_named() -> None:
    """A sequence beyond learned positions is refused before anything is solved, once for each length."""
    grid = SweepGrid(
        workloads=[load_workload("gpt3-175b")],
        families=[load_family("a100-80g")],
        gpus=(8, 16),
        sequence_lengths=(2048, 4096, 8192),
    )
    with pytest.raises(InputError) as error:
        grid.points()
    assert [problem.what.split()[0] for problem in error.value.problems] == ["4096", "8192"]


def test_a_gpu_name_alone_needs_sizes() -> None:
    """Without --gpus a bare GPU name is no cluster."""
    with pytest.raises(InputError, match="names a GPU, not a cluster"):
        load_family("h100").at(None)
    assert load_family("h100x64").at(None) == load_cluster("h100x64")
    assert load_family("h100x64").at(128) == load_cluster("h100x128")


def test_unknown_clusters_say_so() -> None:
    """A misspelt cluster gets the loader's message."""
    with pytest.raises(InputError, match="h101"):
        load_family("h101-1024")


def test_network_is_per_gpu() -> None:
    """800 Gbit/s per GPU, whatever the number of NICs."""
    cluster = replace(load_cluster("h100x64"), nics_per_node=4)
    assert network_gbit_per_s(with_network(cluster, 800)) == pytest.approx(800)
    assert with_network(cluster, None) is cluster


def test_explicit_graphs_keep_their_size_and_links() -> None:
    """A stated graph can't be resized or given another rate."""
    cluster = replace(load_cluster("h100x64"), graph={"nodes": []})
    with pytest.raises(InputError, match="state their own rates"):
        with_network(cluster, 200)
    family = replace(load_family("h100-1024"), base=cluster)
    with pytest.raises(InputError, match="explicit graph"):
        family.at(128)


@pytest.mark.parametrize(("small", "large", "nests"), [
    (1, 8, True),
    (8, 300, True),
    (300, 2000, True),
    (2000, 16384, True),
    (4096, 16384, True),
    (16384, 4096, False),
])  # fmt: skip
def test_reference_fabrics_nest(small: int, large: int, nests: bool) -> None:
    """The first GPUs of a larger reference fabric are linked as the smaller fabric is."""
    rows = [tier_rows(load_cluster(f"h100x{gpus}")) for gpus in (small, large)]
    assert tiers_nest(rows[0], rows[1], small) is nests


def test_another_network_does_not_nest() -> None:
    """A slower network's first GPUs are no part of a faster one."""
    slow = tier_rows(with_network(load_cluster("h100x256"), 200))
    assert not tiers_nest(slow, tier_rows(load_cluster("h100x512")), 256)
