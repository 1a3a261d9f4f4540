"""Arithmetic of time intervals: what two activities have in common, and what one has alone.

An interval is (begin, end) in seconds. A set of intervals is a list of them, ordered and disjoint,
as ``union`` returns it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Interval = tuple[float, float]


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """The same times as ordered, disjoint intervals; empty ones are left out.

    >>> union([(3, 4), (0, 2), (1, 3), (5, 5)])
    [(0, 4)]
    """
    merged: list[Interval] = []
    for begin, end in sorted(intervals):
        if end <= begin:
            continue
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((begin, end))
    return merged


def without(intervals: Sequence[Interval], others: Sequence[Interval]) -> list[Interval]:
    """The times in the first set that are not in the second.

    >>> without([(3, 7)], [(1, 5)])
    [(5, 7)]
    """
    left: list[Interval] = []
    index = 0
    for begin, end in intervals:
        while index < len(others) and others[index][1] <= begin:
            index += 1
        at, look = begin, index
        while look < len(others) and others[look][0] < end:
            if others[look][0] > at:
                left.append((at, others[look][0]))
            at = max(at, others[look][1])
            look += 1
        if at < end:
            left.append((at, end))
    return left


def total(intervals: Iterable[Interval]) -> float:
    """Sum of the lengths of disjoint intervals.

    >>> total([(0, 4), (5, 6)])
    5
    """
    return sum(end - begin for begin, end in intervals)
