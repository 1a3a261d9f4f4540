from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.measure.intervals import Interval, total, union, without

INTERVALS = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 12)).map(lambda pair: (pair[0], sum(pair))),
    max_size=12,
)


def points(intervals: list[Interval]) -> set[float]:
    """The whole numbers n whose unit [n, n + 1) is covered."""
    return {point for begin, end in intervals for point in range(int(begin), int(end))}


@given(INTERVALS, INTERVALS)
def test_sets_of_intervals_behave_as_sets_of_points(
    some: list[Interval], others: list[Interval]
) -> None:
    assert points(union(some)) == points(some)
    assert total(union(some)) == len(points(some))
    left = without(union(some), union(others))
    assert points(left) == points(some) - points(others)
    assert total(left) == len(points(some) - points(others))


@pytest.mark.parametrize(
    ("some", "others", "left"),
    [
        ([(3, 7)], [(1, 5)], [(5, 7)]),
        ([(0, 10)], [(2, 3), (5, 6)], [(0, 2), (3, 5), (6, 10)]),
        ([(0, 1), (4, 5)], [(0, 9)], []),
        ([(0, 1)], [], [(0, 1)]),
        ([(2, 2)], [], [(2, 2)]),
    ],
)
def test_what_one_set_has_alone(
    some: list[Interval], others: list[Interval], left: list[Interval]
) -> None:
    assert without(union(some), others) == [one for one in left if one[0] < one[1]]
