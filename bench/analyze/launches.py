"""What the launches of a run have in common, and what of each counts.

A row's figure is that of a typical launch. Machines drift, and now and then a launch is slow for
reasons of its own. A drift that all rows share is no scatter of any, and so is taken out of what
intervals are made from (the figures stay as they were measured); a launch far off counts as one at
the edge of what is usual (P. J. Huber, Robust estimation of a location parameter, Ann. Math. Stat.
35 (1964)). Both are flagged.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence

import msgspec
from scipy import special, stats

OUTLYING = 5.0
"""Typical scatters from the middle of its row at which a launch is no part of it any more."""
EDGE = 3.0
"""Scatters from the middle of its row as which a launch counts at most."""
LEAST_TO_CLIP = 5
"""Launches of a row that can say which of them is far off."""
RARE = 0.25
"""Share of a row's launches that may be called accidents."""
LEAST_FREEDOM = 10
"""Launches beyond each row's first that make a typical scatter."""
ODDEST = 0.1
"""Share of rows, on either side, that do not say what is typical."""
LEAST_SCATTER = 0.002
"""Scatter of launches below which nothing is called an outlier."""
WIDE_SCATTER = 0.1
"""Standard deviation of launches, relative, that is large on any machine."""
DRIFTED = 0.01
"""Change over a run that is worth a word."""
SURE = 0.001
"""Chance at which a trend is no accident."""


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """One launch's figure, and when it was made."""

    at: float
    """On any scale that grows with time, the same for all rows of a run."""
    figure: float


class Drift(msgspec.Struct, frozen=True, kw_only=True):
    """How all figures of a run changed from its first launch to its last."""

    change: float
    """Relative: -0.03 when launches became 3 % slower."""
    slope: float
    """Of the logarithms, per unit of time."""
    chance: float
    """Two-sided p-value of a straight line through the launches' deviations from their rows."""

    @property
    def is_clear(self) -> bool:
        """Whether it is both no accident and worth a word."""
        return self.chance < SURE and abs(self.change) > DRIFTED


def drift_of(rows: Iterable[Sequence[Launch]]) -> Drift | None:
    """The trend that the rows of a run share; None with fewer than two rows of two launches."""
    rows = [row for row in rows if len(row) > 1]
    freedom = sum(len(row) - 1 for row in rows) - 1
    if freedom < 2:
        return None
    pairs: list[tuple[float, float]] = []
    for row in rows:
        logs = [math.log(launch.figure) for launch in row]
        middle, level = statistics.fmean(launch.at for launch in row), statistics.fmean(logs)
        pairs += [(launch.at - middle, log - level) for launch, log in zip(row, logs, strict=True)]
    spread = sum(at * at for at, _ in pairs)
    slope = sum(at * log for at, log in pairs) / spread
    rest = sum((log - slope * at) ** 2 for at, log in pairs)
    if rest == 0:
        chance = 1.0 if slope == 0 else 0.0
    else:
        chance = 2 * float(special.stdtr(freedom, -abs(slope) / math.sqrt(rest / freedom / spread)))
    times = [launch.at for row in rows for launch in row]
    change = math.expm1(slope * (max(times) - min(times)))
    return Drift(change=change, slope=slope, chance=chance)


def counted(rows: Mapping[str, Sequence[Launch]]) -> dict[str, list[float]]:
    """The figures from which each row's mean and interval are made.

    Args:
        rows: of one run.

    Returns:
        As many figures for each row, in their order; equal to those measured where the run did not
        drift and no launch stands far off.
    """
    drift = drift_of(rows.values())
    slope = drift.slope if drift is not None and drift.is_clear else 0.0
    logs = {key: _levelled(row, slope) for key, row in rows.items()}
    typical = typical_scatter(logs.values())
    return {key: [math.exp(log) for log in _clipped(row, typical)] for key, row in logs.items()}


def _levelled(row: Sequence[Launch], slope: float) -> list[float]:
    """Logarithms without a slope over time, and with the same mean as before."""
    if not row:
        return []
    middle = statistics.fmean(launch.at for launch in row)
    return [math.log(launch.figure) - slope * (launch.at - middle) for launch in row]


def _clipped(row: Sequence[float], typical: float) -> list[float]:
    """Logarithms, none of them further from the row's median than what is usual.

    Where many are, they are no accidents, and count as they are.
    """
    if len(row) < LEAST_TO_CLIP:
        return list(row)
    middle = statistics.median(row)
    edge = EDGE * max(scale_of(row), typical, LEAST_SCATTER)
    if sum(abs(log - middle) > edge for log in row) > RARE * len(row):
        return list(row)
    return [min(max(log, middle - edge), middle + edge) for log in row]


def typical_scatter(rows: Iterable[Sequence[float]]) -> float:
    """Scatter of the logarithms within a typical row of a run; 0 where the run is too small."""
    known = [row for row in rows if len(row) > 1]
    if sum(len(row) - 1 for row in known) < LEAST_FREEDOM:
        return 0.0
    # A mean, since the scales of three launches lean to one side; without the oddest rows.
    return max(float(stats.trim_mean([scale_of(row) for row in known], ODDEST)), LEAST_SCATTER)


def noisy_rows(rows: Mapping[str, Sequence[Launch]]) -> set[str]:
    """Rows with a launch far from their others, or whose launches scatter widely.

    Far is measured by the scatter that is typical of the run, if it is large enough to know it.
    """
    logs = {key: [math.log(one.figure) for one in row] for key, row in rows.items() if len(row) > 1}
    typical = typical_scatter(logs.values()) or math.inf
    return {
        key
        for key, row in logs.items()
        if max(abs(log - statistics.median(row)) for log in row) > OUTLYING * typical
        or statistics.stdev(row) > WIDE_SCATTER
    }


def scale_of(values: Sequence[float]) -> float:
    """Standard deviation that a few outliers do not move: a quartile of all pairs' distances.

    Q_n of P. J. Rousseeuw and C. Croux, Alternatives to the median absolute deviation, J. Am. Stat.
    Assoc. 88 (1993), with their factors for small samples.

    Args:
        values: two or more.
    """
    count = len(values)
    distances = sorted(abs(one - other) for one, other in itertools.combinations(values, 2))
    half = count // 2 + 1
    small = {2: 0.399, 3: 0.994, 4: 0.512, 5: 0.844, 6: 0.611, 7: 0.857, 8: 0.669, 9: 0.872}
    large = count / (count + (1.4 if count % 2 else 3.8))
    return 2.2219 * small.get(count, large) * distances[half * (half - 1) // 2 - 1]
