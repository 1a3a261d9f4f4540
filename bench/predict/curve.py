"""How long a collective takes over its size: measured or published points, and between them.

Between points: straight lines of log time over log size. Below the least size the time stays what
it is there, since what is left is latency; above the largest, time grows with the size, since what
is left is bandwidth.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping

import msgspec
import numpy as np
from scipy.optimize import isotonic_regression

from bench.records.collectives import Collective


class Curve(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of one operation among some ranks, by its size in bytes; both rise."""

    bytes: tuple[int, ...]
    seconds: tuple[float, ...]

    def at(self, size: float) -> float:
        """Seconds for a size in bytes.

        >>> round(Curve(bytes=(100, 10000), seconds=(1.0, 10.0)).at(1000) ** 2, 9)
        10.0
        """
        if size <= 0:
            return 0.0
        if size >= self.bytes[-1]:
            return self.seconds[-1] * size / self.bytes[-1]
        found = np.interp(np.log(size), np.log(self.bytes), np.log(self.seconds))
        return float(np.exp(found))


def fit(points: Iterable[tuple[int, float]]) -> Curve:
    """A curve through points, of which some may be off.

    Several of one size count as their median. A larger size never takes less: where points say
    so, they are averaged on the scale of logarithms (isotonic regression), so that one that was
    disturbed moves its neighbours as little as can be.

    Args:
        points: (bytes, seconds), at least one; sizes and times above 0.
    """
    by_size: dict[int, list[float]] = {}
    for size, seconds in points:
        by_size.setdefault(size, []).append(seconds)
    sizes = sorted(by_size)
    assert sizes, "a curve needs points"
    times = np.log([statistics.median(by_size[size]) for size in sizes])
    rising = isotonic_regression(times).x if len(sizes) > 1 else times
    return Curve(bytes=tuple(sizes), seconds=tuple(float(one) for one in np.exp(rising)))


class Timed(msgspec.Struct, frozen=True, kw_only=True):
    """One operation among one number of ranks."""

    alone: Curve
    """Of a call that finds the link idle."""
    in_row: Curve
    """Of a call right behind another."""


def of_rows(rows: Iterable[Collective]) -> Mapping[tuple[str, int], Timed]:
    """Curves by operation and number of ranks, of what ``bench comm`` has measured.

    Args:
        rows: of one kind of link; those that failed are left out.

    Returns:
        Those of fp32 under the operation's own name, and those of other types as ``op:dtype``.
    """
    good = [row for row in rows if row.status == "ok" and row.median_s and row.world_size > 1]
    groups: dict[tuple[str, int], list[Collective]] = {}
    for row in good:
        name = row.op if row.dtype == "fp32" else f"{row.op}:{row.dtype}"
        groups.setdefault((name, row.world_size), []).append(row)
    return {
        key: Timed(
            alone=fit((row.bytes, row.median_s) for row in some if row.median_s),
            in_row=fit((row.bytes, row.back_to_back_s or row.median_s or 0.0) for row in some),
        )
        for key, some in groups.items()
    }
