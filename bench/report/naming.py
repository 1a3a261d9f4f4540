"""What rows are called in sentences."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from bench.analyze.rows import Row
from bench.report.notes import variants

MOST_NAMED = 5
"""Rows that are named in one sentence."""


class Names:
    """What rows are called in a sentence."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._name = variants(rows)

    def __call__(self, row: Row) -> str:
        """The variant, such as: ddp, bf16-amp."""
        return self._name(row.case)

    def sized(self, row: Row) -> str:
        """With the number of devices."""
        return f"{self(row)} x{row.case.world_size}"

    def many(self, rows: Iterable[Row], *, sized: bool = False) -> str:
        """Some of them, and the number of the others."""
        return listed([self.sized(row) if sized else self(row) for row in rows])


def listed(texts: Sequence[str], most: int = MOST_NAMED) -> str:
    """Texts in a sentence, no more than one reads.

    >>> listed(["a"]), listed(["a", "b", "c"]), listed(list("abcdef"), 2)
    ('a', 'a, b and c', 'a, b and 4 others')
    >>> listed(["a, with x", "b", "c"])
    'a, with x; b and c'
    """
    comma = "; " if any(", " in text for text in texts) else ", "
    *some, last = texts
    if len(texts) > most + 1:
        some, last = list(texts[:most]), f"{len(texts) - most} others"
    return f"{comma.join(some)} and {last}" if some else last
