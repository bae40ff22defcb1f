"""Arithmetic over intervals of time in whole nanoseconds: arrays of starts and ends, both (n,)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    IntArray = NDArray[np.int64]
    Intervals = tuple[IntArray, IntArray]


def merged(start: IntArray, end: IntArray) -> Intervals:
    """Return the union of intervals (n,) as disjoint ones (m,) in order; touching ones become one."""
    kept = end > start
    start, end = start[kept], end[kept]
    if not len(start):
        return start, end
    # The reach so far, not the last end: a long interval may hold many that begin after it.
    order = np.argsort(start, kind="stable")
    start, reach = start[order], np.maximum.accumulate(end[order])
    first = np.concatenate([[True], start[1:] > reach[:-1]])
    last = np.concatenate([first[1:], [True]])
    return start[first], reach[last]


def length(intervals: Intervals) -> int:
    """Return the nanoseconds of disjoint intervals."""
    return int((intervals[1] - intervals[0]).sum())


def clipped(start: IntArray, end: IntArray, low: int, high: int) -> Intervals:
    """Return what of each interval (n,) lies between ``low`` and ``high``; what lies outside has length 0."""
    return np.clip(start, low, high), np.clip(end, low, high)


def gaps(covered: Intervals, low: int, high: int) -> Intervals:
    """Return what of ``low`` to ``high`` disjoint, ordered intervals leave open."""
    start, end = clipped(*covered, low, high)
    opened, closed = np.concatenate([[low], end]), np.concatenate([start, [high]])
    kept = closed > opened
    return opened[kept].astype(np.int64), closed[kept].astype(np.int64)


def contains(covered: Intervals, moments: IntArray) -> NDArray[np.bool_]:
    """Tell of each moment (n,) whether it is in one of disjoint, ordered intervals; ends don't belong to their intervals."""
    start, end = covered
    if not len(start):
        return np.zeros(len(moments), dtype=bool)
    place = np.searchsorted(start, moments, side="right") - 1
    inside: NDArray[np.bool_] = (place >= 0) & (moments < end[np.maximum(place, 0)])
    return inside


def enclosed(outer: Intervals, start: IntArray, end: IntArray) -> NDArray[np.bool_]:
    """Tell of each interval (n,) whether it lies within one of disjoint, ordered intervals."""
    if not len(outer[0]):
        return np.zeros(len(start), dtype=bool)
    place = np.searchsorted(outer[0], start, side="right") - 1
    within: NDArray[np.bool_] = (place >= 0) & (end <= outer[1][np.maximum(place, 0)])
    return within


def overlap(first: Intervals, second: Intervals) -> int:
    """Return the nanoseconds that two sets of disjoint, ordered intervals share."""
    # By the sizes of both and of their union: no pairs are looked at, of which there may be billions.
    union = merged(np.concatenate([first[0], second[0]]), np.concatenate([first[1], second[1]]))
    return length(first) + length(second) - length(union)


def shares(start: IntArray, end: IntArray, code: IntArray, low: int, high: int, codes: int) -> IntArray:
    """Return the nanoseconds of ``low`` to ``high`` by code, (codes + 1,): each moment counts for its least code.

    What no interval covers is the last entry, so that the sum is ``high - low`` exactly.
    """
    start, end = clipped(start, end, low, high)
    kept = end > start
    start, end, code = start[kept], end[kept], code[kept]
    cuts = np.unique(np.concatenate([[low, high], start, end]).astype(np.int64))
    best = np.full(len(cuts) - 1, codes)
    first, last = np.searchsorted(cuts, start), np.searchsorted(cuts, end)
    # From the last code to the first, so that what counts before writes over what counts after.
    for one in np.unique(code)[::-1]:
        mine, change = code == one, np.zeros(len(cuts), dtype=np.int64)
        np.add.at(change, first[mine], 1)
        np.add.at(change, last[mine], -1)
        best[np.cumsum(change[:-1]) > 0] = one
    found = np.zeros(codes + 1, dtype=np.int64)
    np.add.at(found, best, np.diff(cuts))
    return found
