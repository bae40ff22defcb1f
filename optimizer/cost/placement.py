"""Where a batch's axes lie on the cluster: the mesh order, its process groups, and the axes inside a layer's groups."""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutopt.optimizer.cost.batch import batch_of_one
from layoutopt.optimizer.specs.vocabulary import Axis
from layoutopt.optimizer.topology.mesh import closest_groups, mesh_groups

if TYPE_CHECKING:
    from layoutopt.optimizer.cost.batch import LayoutBatch
    from layoutopt.optimizer.specs.layout import Layout
    from layoutopt.optimizer.topology.mesh import MeshGroups


def order_of(batch: LayoutBatch, *, closest: bool) -> str:
    """Return the batch's mesh order, or the empty order that places every axis innermost."""
    return "" if closest else batch.codebook.orders[int(batch.order[0])]


def groups_of(order: str, batch: LayoutBatch) -> MeshGroups:
    """Return the process groups of a batch under one mesh order; the empty order gives every group stride 1."""
    if not order:
        return closest_groups(tp=batch.tp, cp=batch.cp, pp=batch.pp, dp=batch.dp, ep=batch.ep, etp=batch.etp)
    return mesh_groups(order, tp=batch.tp, cp=batch.cp, pp=batch.pp, dp=batch.dp, ep=batch.ep, etp=batch.etp)


def layout_groups(layout: Layout) -> MeshGroups:
    """Return the process groups of one layout, each of arrays (1,)."""
    return groups_of(layout.mesh_order, batch_of_one(layout))


def inner_axes(order: str, is_moe: bool) -> list[str]:
    """Name the axes beside tp and cp whose degree decides a stride inside a layer's groups.

    An axis counts when tp or cp lie outside it; pp also when experts may fold across it (dp outside it).
    """
    if not order:
        return []
    position = {axis: order.split("-").index(axis) for axis in ("tp", "cp", "dp", "pp")}
    reach = max(position["tp"], position["cp"])
    inner = [axis for axis in (Axis.DP, Axis.PP) if position[axis] < reach]
    if is_moe and position["pp"] < position["dp"] and Axis.PP not in inner:
        inner.append(Axis.PP)
    return [axis.value for axis in inner]
