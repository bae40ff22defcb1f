"""Mesh orders: which ranks form each process group.

Ranks are a mixed radix over the axes tp, cp, dp, pp in the mesh order, innermost first (NVIDIA/Megatron-LM
megatron/core/parallel_state.py ``RankGenerator``; pytorch/torchtitan distributed/parallel_dims.py). The
expert grid splits the ranks of one pipeline stage into expert-tensor (innermost), expert and expert-data
parallel ones.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from layoutopt.optimizer.specs.errors import input_error
from layoutopt.optimizer.specs.vocabulary import Axis
from layoutopt.optimizer.topology.groups import Digit, GroupBatch

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    IntArray = NDArray[np.int64]
    BoolArray = NDArray[np.bool_]

DENSE_AXES = (Axis.TP, Axis.CP, Axis.DP, Axis.PP)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshGroups:
    """Process groups of ``n`` layouts under one mesh order.

    ``dp_cp`` shards dense optimizer state (ZeRO), ``edp`` that of experts.
    """

    tp: GroupBatch
    cp: GroupBatch
    dp: GroupBatch
    dp_cp: GroupBatch
    pp: GroupBatch
    ep: GroupBatch
    etp: GroupBatch
    edp: GroupBatch

    def hsdp_inner(self, shard: IntArray) -> GroupBatch:
        """Return the ``shard`` (n,) neighbouring ranks of ``dp_cp`` that hold one copy; 0 is the whole group."""
        digits, inner_size = [], self._shard(shard)
        for digit in self.dp_cp.digits:
            taken = np.minimum(digit.size, inner_size)
            digits.append(Digit(taken, digit.stride))
            # Neighbours first: a shard takes whole inner digits before it takes of the next one.
            inner_size = np.maximum(inner_size // taken, 1)
        return replace(self.dp_cp, digits=tuple(digits), memo={})

    def hsdp_outer(self, shard: IntArray) -> GroupBatch:
        """Return the ranks of ``dp_cp`` with the same shard in different copies; size 1 where ``shard`` (n,) is 0."""
        inner = self.hsdp_inner(shard)
        pairs = zip(self.dp_cp.digits, inner.digits, strict=True)
        digits = tuple(Digit(whole.size // part.size, whole.stride * part.size) for whole, part in pairs)
        return replace(self.dp_cp, digits=digits, memo={})

    def _shard(self, shard: IntArray) -> IntArray:
        return np.where(shard > 0, shard, self.dp_cp.size)


@dataclass(frozen=True, slots=True)
class _Mesh:
    """Dense axes in order with their degrees and strides, and where experts stand."""

    order: tuple[Axis, ...]
    degree: dict[Axis, IntArray]
    stride: dict[Axis, IntArray]
    ranks: IntArray
    ep_outside_dp: bool

    @property
    def pp_outermost(self) -> bool:
        """Tell whether stages are blocks of consecutive ranks."""
        return self.order[-1] is Axis.PP

    @property
    def inside_pp(self) -> IntArray:
        """Ranks of one stage that are consecutive: the stride of the pipeline axis."""
        return self.stride[Axis.PP]


def mesh_groups(
    order: str, *, tp: ArrayLike, cp: ArrayLike, pp: ArrayLike, dp: ArrayLike, ep: ArrayLike, etp: ArrayLike
) -> MeshGroups:
    """Return every process group of a batch of layouts.

    ``order`` names the axes innermost first, such as ``tp-cp-ep-dp-pp``; whether ``ep`` stands before or
    after ``dp`` says if expert-parallel or expert-data-parallel ranks are neighbours. Degrees are integers of
    shape (n,).
    Raises ``InputError`` for an order that is no permutation of the axes.
    """
    mesh = _mesh(order, tp=tp, cp=cp, pp=pp, dp=dp)
    grid = _expert_grid(mesh, np.asarray(ep, dtype=np.int64), np.asarray(etp, dtype=np.int64))
    groups = {axis.value: _axis_group(mesh, axis) for axis in DENSE_AXES}
    groups |= {name: _stage_group(mesh, size, stride) for name, (size, stride) in grid.items()}
    return MeshGroups(dp_cp=_data_and_context(mesh), **groups)


def closest_groups(
    *, tp: ArrayLike, cp: ArrayLike, pp: ArrayLike, dp: ArrayLike, ep: ArrayLike, etp: ArrayLike
) -> MeshGroups:
    """Return groups that stand for every mesh order of degrees (n,): no order's groups have lower prices."""
    # Any order will do: only sizes are read from it.
    mesh = _mesh("tp-cp-dp-pp", tp=tp, cp=cp, pp=pp, dp=dp)
    grid = _expert_grid(mesh, np.asarray(ep, dtype=np.int64), np.asarray(etp, dtype=np.int64))
    sizes = {axis.value: mesh.degree[axis] for axis in DENSE_AXES}
    sizes["dp_cp"] = mesh.degree[Axis.CP] * mesh.degree[Axis.DP]
    sizes |= {name: size for name, (size, _) in grid.items()}
    one = np.ones_like(mesh.ranks)
    groups = {
        name: GroupBatch(digits=(Digit(size, one),), ranks=mesh.ranks, closest=True)
        for name, size in sizes.items()
    }
    return MeshGroups(**groups)


def mesh_valid(
    order: str, *, tp: ArrayLike, cp: ArrayLike, pp: ArrayLike, dp: ArrayLike, ep: ArrayLike, etp: ArrayLike
) -> BoolArray:
    """Tell where (n,) the expert grid can be laid out: it divides a stage and nests with the pipeline's stride."""
    mesh = _mesh(order, tp=tp, cp=cp, pp=pp, dp=dp)
    experts, tensor = np.asarray(ep, dtype=np.int64), np.asarray(etp, dtype=np.int64)
    # Experts lie inside a stage: their grid divides its ranks.
    valid = mesh.ranks // mesh.degree[Axis.PP] % (experts * tensor) == 0
    if not mesh.pp_outermost:
        for size, stride in _expert_grid(mesh, experts, tensor).values():
            below, above = mesh.inside_pp <= stride, mesh.inside_pp >= stride * size
            straddles = (mesh.inside_pp % stride == 0) & (stride * size % mesh.inside_pp == 0)
            valid &= below | above | straddles
    return np.asarray(valid, dtype=np.bool_)


def dense_axes(order: str) -> tuple[Axis, ...]:
    """Return the dense axes of an order, innermost first.

    Raises ``InputError`` unless it names tp, cp, dp and pp once, and ep at most once.
    """
    names = order.split("-")
    dense = [name for name in names if name != Axis.EP]
    if sorted(dense) != sorted(DENSE_AXES) or names.count(Axis.EP) > 1:
        raise input_error(
            f"mesh order {order!r} is no order of the axes",
            "tp, cp, dp, pp once each and ep where experts fold, innermost first, such as tp-cp-ep-dp-pp",
            key="mesh_order",
        )
    return tuple(Axis(name) for name in dense)


def _mesh(order: str, *, tp: ArrayLike, cp: ArrayLike, pp: ArrayLike, dp: ArrayLike) -> _Mesh:
    axes, names = dense_axes(order), order.split("-")
    columns = np.broadcast_arrays(
        *(np.atleast_1d(np.asarray(value, dtype=np.int64)) for value in (tp, cp, dp, pp))
    )
    degree = dict(zip(DENSE_AXES, columns, strict=True))
    stride, ranks = {}, np.ones_like(columns[0])
    for axis in axes:
        stride[axis] = ranks
        ranks = ranks * degree[axis]
    # Where ep is not named, expert-parallel ranks are neighbours, as in Megatron-LM's default order.
    outside = Axis.EP in names and names.index(Axis.EP) > names.index(Axis.DP)
    return _Mesh(axes, degree, stride, ranks, outside)


def _axis_group(mesh: _Mesh, axis: Axis) -> GroupBatch:
    return GroupBatch(digits=(Digit(mesh.degree[axis], mesh.stride[axis]),), ranks=mesh.ranks)


def _data_and_context(mesh: _Mesh) -> GroupBatch:
    """The ranks along cp and dp: one digit where the two axes are neighbours."""
    inner, outer = sorted((Axis.CP, Axis.DP), key=mesh.order.index)
    if mesh.order.index(outer) == mesh.order.index(inner) + 1:
        digits: tuple[Digit, ...] = (Digit(mesh.degree[inner] * mesh.degree[outer], mesh.stride[inner]),)
    else:
        digits = tuple(Digit(mesh.degree[axis], mesh.stride[axis]) for axis in (inner, outer))
    return GroupBatch(digits=digits, ranks=mesh.ranks)


def _expert_grid(mesh: _Mesh, ep: IntArray, etp: IntArray) -> dict[str, tuple[IntArray, IntArray]]:
    """Size and stride of the expert axes in the list of ranks of one stage."""
    stage = mesh.degree[Axis.TP] * mesh.degree[Axis.CP] * mesh.degree[Axis.DP]
    # Rows that break this are dropped by a rule later; until then no size may be 0.
    edp = np.maximum(stage // (ep * etp), 1)
    one = np.ones_like(mesh.ranks)
    ep, etp = ep * one, etp * one
    if mesh.ep_outside_dp:
        return {"etp": (etp, one), "edp": (edp, etp), "ep": (ep, etp * edp)}
    return {"etp": (etp, one), "ep": (ep, etp), "edp": (edp, etp * ep)}


def _stage_group(mesh: _Mesh, size: IntArray, stride: IntArray) -> GroupBatch:
    """Turn a digit of a stage's rank list into digits of ranks: beyond the pipeline, strides grow by pp."""
    if mesh.pp_outermost:
        return GroupBatch(digits=(Digit(size, stride),), ranks=mesh.ranks)
    inside = np.minimum(np.maximum(mesh.inside_pp // stride, 1), size)
    outer_stride = np.maximum(stride, mesh.inside_pp) * mesh.degree[Axis.PP]
    digits = (Digit(inside, stride), Digit(size // inside, outer_stride))
    return GroupBatch(digits=digits, ranks=mesh.ranks)
