"""A matrix of bandwidths between hosts, and which host or link in it is slow."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence

from bench.records.collectives import Pair

SLOW = 0.7
"""Share of what the others carry below which a host or a link is called slow."""

Matrix = Mapping[tuple[str, str], float]
"""Bytes a second from one host to another, or within one."""


def matrix_of(pairs: Sequence[Pair], hosts: Sequence[str]) -> Matrix:
    """Medians over the pairs of ranks on each pair of hosts.

    Args:
        pairs: of ranks.
        hosts: of the ranks, in their order.
    """
    found: dict[tuple[str, str], list[float]] = {}
    for one in pairs:
        found.setdefault((hosts[one.source], hosts[one.target]), []).append(one.bytes_per_s)
    return {place: statistics.median(rates) for place, rates in found.items()}


def within_and_between(matrix: Matrix) -> tuple[float | None, float | None]:
    """Medians of what passes within a host, and from one host to another; None where nothing does.

    >>> within_and_between({("a", "a"): 9.0, ("a", "b"): 2.0, ("b", "a"): 4.0})
    (9.0, 3.0)
    """
    within = [rate for (source, target), rate in matrix.items() if source == target]
    between = [rate for (source, target), rate in matrix.items() if source != target]
    return (
        statistics.median(within) if within else None,
        statistics.median(between) if between else None,
    )


def slow_parts(matrix: Matrix) -> Iterator[str]:
    """What is slow, in words, and how much: hosts first, then links of none of these.

    A host is slow, or slow in one direction, where all its links are, next to those that do not
    touch it: that takes three hosts. Of two, only the direction can be told.
    """
    between = {place: rate for place, rate in matrix.items() if place[0] != place[1]}
    blamed: set[tuple[str, str]] = set()
    for host in dict.fromkeys(host for place in between for host in place):
        others = [rate for place, rate in between.items() if host not in place]
        sent = {place: rate for place, rate in between.items() if place[0] == host}
        received = {place: rate for place, rate in between.items() if place[1] == host}
        for words, own in (
            ("host {} is slow: all its links carry {} of what others do", sent | received),
            ("host {} sends slowly: at {} of what others carry", sent),
            ("host {} receives slowly: at {} of what others carry", received),
        ):
            if _are_slow(list(own.values()), others):
                blamed |= own.keys()
                yield words.format(host, _share(list(own.values()), others))
                break
    rest = {place: rate for place, rate in between.items() if place not in blamed}
    for place, rate in rest.items():
        others = [other for elsewhere, other in rest.items() if elsewhere != place]
        if _are_slow([rate], others):
            source, target = place
            share = _share([rate], others)
            yield f"the link from {source} to {target} is slow: {share} of what others carry"
    yield from _slow_within(
        {source: r for (source, target), r in matrix.items() if source == target}
    )


def _slow_within(rates: Mapping[str, float]) -> Iterator[str]:
    for host, rate in rates.items():
        others = [other for elsewhere, other in rates.items() if elsewhere != host]
        if _are_slow([rate], others):
            share = _share([rate], others)
            yield f"within host {host}, ranks reach each other at {share} of others' speed"


def _are_slow(own: Sequence[float], others: Sequence[float]) -> bool:
    """Whether even the best of some rates is far below the others."""
    return bool(own and others) and max(own) < SLOW * statistics.median(others)


def _share(own: Sequence[float], others: Sequence[float]) -> str:
    return f"{statistics.median(own) / statistics.median(others):.0%}"
