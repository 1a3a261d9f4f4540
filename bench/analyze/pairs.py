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

    A host is slow where all its links in a direction are, next to those that do not touch it: that
    takes three hosts. Of two, only the direction can be told.
    """
    between = {place: rate for place, rate in matrix.items() if place[0] != place[1]}
    hosts = list(dict.fromkeys(host for place in between for host in place))
    blamed: set[str] = set()
    for host in hosts:
        own = [rate for place, rate in between.items() if host in place]
        others = [rate for place, rate in between.items() if host not in place]
        if others and max(own) < SLOW * statistics.median(others):
            blamed.add(host)
            share = statistics.median(own) / statistics.median(others)
            yield f"host {host} is slow: all its links carry {share:.0%} of what others do"
    rest = {place: rate for place, rate in between.items() if blamed.isdisjoint(place)}
    for (source, target), rate in rest.items():
        others = [other for place, other in rest.items() if place != (source, target)]
        if others and rate < SLOW * statistics.median(others):
            share = rate / statistics.median(others)
            yield f"the link from {source} to {target} is slow: {share:.0%} of what others carry"
    for host in hosts:
        inside = matrix.get((host, host))
        others = [rate for (a, b), rate in matrix.items() if a == b != host]
        if inside is not None and others and inside < SLOW * statistics.median(others):
            share = inside / statistics.median(others)
            yield f"within host {host}, ranks reach each other at {share:.0%} of others' speed"
