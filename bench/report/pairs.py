"""The matrix of what hosts carry to each other, and the host or link that stands out."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from bench.analyze.pairs import matrix_of, slow_parts, within_and_between
from bench.records.collectives import Pairs
from bench.report.cells import DASH, significant
from bench.report.document import Grid, Heading, Items, Part, Text, grid_of

MEANING = (
    "One rank sends to another, in a row of 4 MiB messages, while all others are quiet; MB/s (10^6"
    " bytes), lines send to columns; the median over the pairs of ranks on two hosts, or on one."
)


def pairs_section(content: Any) -> list[Part]:
    """Parts of a report; nothing for a run on one host.

    Args:
        content: of ``run.json``: matrices, one a backend and link.
    """
    parts: list[Part] = []
    for one in read_pairs(content):
        carrier = one.backend + (f", links of {one.link}" if one.link else "")
        parts += [Heading(2, f"Within and between hosts: {carrier}"), Text(MEANING)]
        parts += [table(one), Items([*words_of(one)])]
    return parts


def read_pairs(content: Any) -> list[Pairs]:
    """Matrices as far as they can be read: one that another version wrote may hold other things."""
    try:
        return msgspec.convert(content, list[Pairs])
    except msgspec.ValidationError:
        return []


def words_of(one: Pairs) -> Iterator[str]:
    """What the matrix says, a sentence each."""
    matrix = matrix_of(one.pairs, one.hosts)
    within, between = within_and_between(matrix)
    if within is not None and between is not None:
        yield (
            f"Within a host {significant(within / 1e6)} MB/s, from one to another "
            f"{significant(between / 1e6)} MB/s: {within / between:.2g} times as much."
        )
    elif between is not None:
        yield f"From one host to another {significant(between / 1e6)} MB/s."
    across = [
        pair.round_trip_s for pair in one.pairs if one.hosts[pair.source] != one.hosts[pair.target]
    ]
    if across:
        yield f"A small message there and back takes {statistics.median(across) * 1e3:.3g} ms."
    slow = list(slow_parts(matrix))
    yield from (f"{words[0].upper()}{words[1:]}." for words in slow)
    if not slow:
        yield "No host and no link is slow next to the others."


def table(one: Pairs) -> Grid:
    """Hosts against hosts."""
    matrix = matrix_of(one.pairs, one.hosts)
    hosts: Sequence[str] = list(dict.fromkeys(one.hosts))
    body = [
        [
            source,
            *(
                significant(matrix[source, target] / 1e6) if (source, target) in matrix else DASH
                for target in hosts
            ),
        ]
        for source in hosts
    ]
    heads = ["from", *(f"to {host}" for host in hosts)]
    return grid_of("What hosts carry to each other, MB/s", heads, body, words=1)
