"""When two mesh orders number the ranks alike."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from layoutopt.optimizer.cost.batch import LayoutBatch

_AXES = ("tp", "cp", "dp", "pp")


def _active(rows: LayoutBatch) -> NDArray[np.int64]:
    """Return which axes exceed 1, as a bit mask per row."""
    # An axis of one rank stands nowhere: orders that differ in it alone are one.
    bits = [(getattr(rows, axis) > 1).astype(np.int64) << bit for bit, axis in enumerate(_AXES)]
    result: NDArray[np.int64] = bits[0] | bits[1] | bits[2] | bits[3]
    return result


@cache
def _classes(orders: tuple[str, ...]) -> NDArray[np.int64]:
    """Number the orders under each mask of active axes, shape (16, orders); alike means the same number."""
    table = np.zeros((1 << len(_AXES), len(orders)), dtype=np.int64)
    for mask in range(len(table)):
        kept = [
            tuple(a for a in order.split("-") if a in _AXES and mask >> _AXES.index(a) & 1)
            for order in orders
        ]
        table[mask] = [kept.index(axes) for axes in kept]
    return table


def same_order(rows: LayoutBatch, orders: tuple[str, ...]) -> NDArray[np.bool_]:
    """Tell which orders number a row's ranks as its own order does, shape (n, len(orders)).

    Axes of degree 1 don't count.
    """
    classes = _classes((*orders, *rows.codebook.orders))[_active(rows)]
    own = np.take_along_axis(classes, rows.order[:, None] + len(orders), axis=1)
    result: NDArray[np.bool_] = classes[:, : len(orders)] == own
    return result


def first_orders(rows: LayoutBatch, valid: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Keep, among each row's valid orders, the first of every set that numbers the ranks alike.

    ``valid`` has shape (n, orders of the codebook).
    """
    classes = _classes(rows.codebook.orders)[_active(rows)]
    kept = np.zeros_like(valid)
    taken = np.zeros_like(valid)
    every = np.arange(len(valid))
    for position in range(valid.shape[1]):
        number = classes[:, position]
        # The first valid one, so that the framework's own order is named where it is among them.
        kept[:, position] = valid[:, position] & ~taken[every, number]
        taken[every, number] |= kept[:, position]
    return kept
