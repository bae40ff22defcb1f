"""Mesh orders against explicit reshapes of the rank list."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from checks.demands import group_members
from hypothesis import given, settings
from hypothesis import strategies as st

from layoutopt.optimizer.frameworks.abilities import ALL_ORDERS
from layoutopt.optimizer.specs.errors import InputError
from layoutopt.optimizer.topology.mesh import dense_axes, mesh_groups, mesh_valid

AXES = ("tp", "cp", "dp", "pp")
Degrees = dict[str, int]


def lines_along(
    order: tuple[str, ...], sizes: Degrees, along: set[str], ranks: np.ndarray
) -> set[tuple[int, ...]]:
    """Groups of the rank list ``ranks`` along some axes of a mixed radix, innermost axis first."""
    cube = ranks.reshape([sizes[axis] for axis in reversed(order)])
    own = [number for number, axis in enumerate(reversed(order)) if axis in along]
    count = prod(sizes[axis] for axis in along)
    lines = np.moveaxis(cube, own, range(-len(own), 0)).reshape(-1, count)
    return {tuple(sorted(line)) for line in lines.tolist()}


def groups_of(name: str, order: str, **degrees: int) -> set[tuple[int, ...]]:
    """Groups as the module under test lists them."""
    group = getattr(mesh_groups(order, **degrees), name)
    return {tuple(sorted(row)) for row in group_members(group).tolist()}


def stage_ranks(order: str, sizes: Degrees) -> np.ndarray:
    """Ranks of every pipeline stage, one row per stage, in the order of the other axes."""
    axes = [axis.value for axis in dense_axes(order)]
    cube = np.arange(prod(sizes.values())).reshape([sizes[axis] for axis in reversed(axes)])
    return np.moveaxis(cube, list(reversed(axes)).index("pp"), 0).reshape(sizes["pp"], -1)


degree = st.sampled_from([1, 2, 3, 4, 6])


@settings(max_examples=150)
@given(order=st.sampled_from(ALL_ORDERS), tp=degree, cp=degree, dp=degree, pp=degree)
def test_dense_groups_are_lines_of_the_mesh(order: str, tp: int, cp: int, dp: int, pp: int) -> None:
    """tp, cp, dp, pp and dp_cp groups are the lines of the reshaped rank list in all 24 orders."""
    sizes = {"tp": tp, "cp": cp, "dp": dp, "pp": pp}
    axes = tuple(axis.value for axis in dense_axes(order))
    ranks = np.arange(prod(sizes.values()))
    for name in AXES:
        assert groups_of(name, order, **sizes, ep=1, etp=1) == lines_along(axes, sizes, {name}, ranks)
    assert groups_of("dp_cp", order, **sizes, ep=1, etp=1) == lines_along(axes, sizes, {"dp", "cp"}, ranks)


@settings(max_examples=200)
@given(
    order=st.sampled_from(ALL_ORDERS), outside=st.booleans(), tp=degree, cp=degree, dp=degree, pp=degree,
    data=st.data(),
)  # fmt: skip
def test_expert_groups_split_a_stage(
    order: str, outside: bool, tp: int, cp: int, dp: int, pp: int, data: st.DataObject
) -> None:
    """Expert groups split every stage's rank list wherever the grid nests with the pipeline."""
    sizes = {"tp": tp, "cp": cp, "dp": dp, "pp": pp}
    width = tp * cp * dp
    etp = data.draw(st.sampled_from([d for d in range(1, width + 1) if width % d == 0]))
    ep = data.draw(st.sampled_from([d for d in range(1, width // etp + 1) if width // etp % d == 0]))
    full = order.replace("ep-dp", "dp-ep") if outside else order
    outside = full != order
    if not mesh_valid(full, **sizes, ep=ep, etp=etp)[0]:
        return
    axes = ("etp", "edp", "ep") if outside else ("etp", "ep", "edp")
    grid = {"etp": etp, "ep": ep, "edp": width // etp // ep}
    for name in axes:
        expected: set[tuple[int, ...]] = set()
        for stage in stage_ranks(full, sizes):
            expected |= lines_along(axes, grid, {name}, stage)
        assert groups_of(name, full, **sizes, ep=ep, etp=etp) == expected


def test_megatron_default_order() -> None:
    """tp4 cp2 pp2 dp2 with ep4: tp neighbours, pipeline outermost, experts folded over tp and cp."""
    degrees = {"tp": 4, "cp": 2, "pp": 2, "dp": 2, "ep": 4, "etp": 1}
    order = "tp-cp-ep-dp-pp"
    assert (0, 1, 2, 3) in groups_of("tp", order, **degrees)
    assert (0, 4) in groups_of("cp", order, **degrees)
    assert (0, 8) in groups_of("dp", order, **degrees)
    assert (0, 4, 8, 12) in groups_of("dp_cp", order, **degrees)
    assert (0, 16) in groups_of("pp", order, **degrees)
    assert (0, 1, 2, 3) in groups_of("ep", order, **degrees)
    assert (0, 4, 8, 12) in groups_of("edp", order, **degrees)


def test_pipeline_inside_data_parallel() -> None:
    """tp-cp-ep-pp-dp: experts beyond tp*cp stride over the stages of the pipeline."""
    degrees = {"tp": 2, "cp": 1, "pp": 2, "dp": 4, "ep": 4, "etp": 1}
    groups = groups_of("ep", "tp-cp-ep-pp-dp", **degrees)
    assert (0, 1, 4, 5) in groups
    assert (2, 3, 6, 7) in groups


def test_grid_that_does_not_nest_is_told() -> None:
    """Six expert ranks cannot straddle four ranks per stage; three times that can."""
    common = {"tp": 4, "cp": 1, "pp": 2, "dp": 3, "etp": 1}
    assert not mesh_valid("tp-cp-pp-ep-dp", ep=6, **common)[0]
    assert mesh_valid("tp-cp-pp-ep-dp", ep=12, **common)[0]
    assert mesh_valid("tp-cp-ep-dp-pp", ep=6, **common)[0]
    assert not mesh_valid("tp-cp-ep-dp-pp", ep=5, **common)[0]


def test_hsdp_splits_the_sharding_group() -> None:
    """Shard groups are neighbours in the sharding group, replicas hold the same place; 0: no replicas."""
    groups = mesh_groups("tp-cp-ep-dp-pp", tp=[2, 2], cp=[2, 2], pp=[1, 1], dp=[4, 4], ep=[1, 1], etp=[1, 1])
    shard = np.array([4, 0])
    inner, outer = groups.hsdp_inner(shard), groups.hsdp_outer(shard)
    assert inner.size.tolist() == [4, 8]
    assert outer.size.tolist() == [2, 1]
    assert group_members(inner, 0)[0].tolist() == [0, 2, 4, 6]
    assert group_members(outer, 0)[0].tolist() == [0, 8]


def test_hsdp_on_two_digits() -> None:
    """Where the pipeline separates cp from dp, a shard group fills the inner digit first."""
    groups = mesh_groups("tp-cp-pp-ep-dp", tp=1, cp=2, pp=2, dp=4, ep=1, etp=1)
    shard = np.array([4])
    assert group_members(groups.hsdp_inner(shard))[0].tolist() == [0, 1, 4, 5]
    assert group_members(groups.hsdp_outer(shard))[0].tolist() == [0, 8]


def test_all_orders() -> None:
    """Every order of the four dense axes is there once."""
    assert len(ALL_ORDERS) == len({dense_axes(order) for order in ALL_ORDERS}) == 24
    assert all(len(dense_axes(order)) == 4 for order in ALL_ORDERS)


@pytest.mark.parametrize("order", ["", "tp-cp-dp", "tp-cp-dp-pp-tp", "tp-cp-xp-dp-pp", "tp-cp-ep-ep-dp-pp"])
def test_bad_orders_are_errors(order: str) -> None:
    """Missing, repeated and unknown axes."""
    with pytest.raises(InputError, match="mesh order"):
        dense_axes(order)
