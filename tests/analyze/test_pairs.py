from __future__ import annotations

import itertools

import pytest

from bench.analyze.pairs import matrix_of, slow_parts, within_and_between
from bench.records.collectives import Pair

HOSTS = "abcd"


def matrix(hosts: str = HOSTS, **slow: float) -> dict[tuple[str, str], float]:
    """100 between any two hosts, and 900 within each, but for what is named: ``ab=30``."""
    rates = {(a, b): 900.0 if a == b else 100.0 for a, b in itertools.product(hosts, repeat=2)}
    return rates | {(name[0], name[1]): rate for name, rate in slow.items()}


def test_ranks_of_one_host_are_one_line() -> None:
    pairs = [
        Pair(source=source, target=target, bytes_per_s=rate, round_trip_s=0.1)
        for source, target, rate in [(0, 1, 9.0), (1, 0, 7.0), (0, 2, 1.0), (1, 2, 2.0)]
    ]
    assert matrix_of(pairs, ["a", "a", "b"]) == {("a", "a"): 8.0, ("a", "b"): 1.5}


def test_within_and_between_are_told_apart() -> None:
    assert within_and_between(matrix()) == (900.0, 100.0)
    assert within_and_between({("a", "b"): 1.0}) == (None, 1.0)
    assert within_and_between({}) == (None, None)


@pytest.mark.parametrize("hosts", ["ab", "abc", "abcd"])
def test_hosts_that_are_alike_are_not_blamed(hosts: str) -> None:
    assert list(slow_parts(matrix(hosts))) == []
    assert list(slow_parts({})) == []


@pytest.mark.parametrize("hosts", ["abc", "abcd"])
def test_a_slow_host_is_named_and_its_links_are_not(hosts: str) -> None:
    slow = {f"{one}b": 30.0 for one in hosts if one != "b"}
    slow |= {f"b{one}": 30.0 for one in hosts if one != "b"}
    assert list(slow_parts(matrix(hosts, **slow))) == [
        "host b is slow: all its links carry 30% of what others do"
    ]


@pytest.mark.parametrize("hosts", ["abc", "abcd"])
def test_a_host_that_is_slow_one_way_is_named_once(hosts: str) -> None:
    sends = {f"b{one}": 20.0 for one in hosts if one != "b"}
    assert list(slow_parts(matrix(hosts, **sends))) == [
        "host b sends slowly: at 20% of what others carry"
    ]
    receives = {f"{one}b": 20.0 for one in hosts if one != "b"}
    assert list(slow_parts(matrix(hosts, **receives))) == [
        "host b receives slowly: at 20% of what others carry"
    ]


def test_a_slow_link_is_named_and_its_hosts_are_not() -> None:
    assert list(slow_parts(matrix(cd=50.0))) == [
        "the link from c to d is slow: 50% of what others carry"
    ]


def test_of_two_hosts_the_slow_direction_is_named() -> None:
    assert list(slow_parts(matrix("ab", ab=10.0))) == [
        "the link from a to b is slow: 10% of what others carry"
    ]


def test_a_host_that_is_slow_within_is_named() -> None:
    assert list(slow_parts(matrix("abc", cc=300.0))) == [
        "within host c, ranks reach each other at 33% of others' speed"
    ]
