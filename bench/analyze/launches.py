"""What the launches of a run have in common, and what of each counts.

A row's figure is that of a typical launch. Machines drift, and now and then a launch is slow for
reasons of its own. A clear drift that all rows share is no scatter of any: figures are then taken
as they would be in the middle of the run, so that rows with launches early and late can be
compared. A launch far off counts as one at the edge of what is usual (P. J. Huber, Robust
estimation of a location parameter, Ann. Math. Stat. 35 (1964)). Both are flagged.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec
from scipy import special

from bench.analyze.stats import exponential

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
LEAST_TREND = 6
"""Degrees of freedom that a trend needs beside it."""
LEAST_ROUNDS = 8
"""From which a trend is judged by the scatter of rounds; before, by that of launches."""
DRIFTED = 0.01
"""Change over a run that is worth a word."""
UPHEAVAL = 0.25
"""Change that is no drift to be taken out any more: the machine was another at the end."""
SURE = 0.001
"""Chance at which a trend is no accident."""


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """One launch's figure, and when it was made."""

    at: float
    """On any scale that grows with time, the same for all rows of a run."""
    round: int
    """Launches of one round share a fork server, and whatever else moves all of them."""
    figure: float


class Drift(msgspec.Struct, frozen=True, kw_only=True):
    """How all figures of a run changed from its first launch to its last."""

    change: float
    """Relative: -0.03 when launches became 3 % slower."""
    slope: float
    """Of the logarithms, per unit of time."""
    middle: float
    """Of the run, on the launches' scale of time."""
    chance: float
    """Two-sided p-value of a straight line through the launches' deviations from their rows."""

    @property
    def is_clear(self) -> bool:
        """Whether it is both no accident and worth a word."""
        return self.chance < SURE and abs(self.change) > DRIFTED

    @property
    def is_taken_out(self) -> bool:
        """Whether figures are given as in the middle of the run."""
        return self.is_clear and abs(self.change) < UPHEAVAL


def drift_of(rows: Iterable[Sequence[Launch]]) -> Drift | None:
    """The trend that the rows of a run share; None where there are too few launches to see one.

    A straight line through the launches' deviations from their rows, each row weighted by its
    scatter. Rounds may move all their launches alike: where there are enough of them, the line's
    error is that between rounds (K.-Y. Liang and S. L. Zeger, Longitudinal data analysis using
    generalized linear models, Biometrika 73 (1986)).
    """
    rows = [row for row in rows if len(row) > 1]
    freedom = sum(len(row) - 1 for row in rows) - 1
    if freedom < LEAST_TREND:
        return None
    typical = typical_scatter([math.log(one.figure) for one in row] for row in rows)
    points = [point for row in rows for point in _deviations(row, typical)]
    spread = sum(one.weight * one.at**2 for one in points)
    slope = sum(one.weight * one.at * one.log for one in points) / spread
    rests = [(one, one.log - slope * one.at) for one in points]
    squared_error = sum(one.weight * rest**2 for one, rest in rests) / freedom / spread
    rounds: dict[int, float] = {}
    for one, rest in rests:
        rounds[one.round] = rounds.get(one.round, 0.0) + one.weight * one.at * rest
    if len(rounds) >= LEAST_ROUNDS:
        freedom = len(rounds) - 2
        between = sum(score**2 for score in rounds.values()) / spread**2
        squared_error = between * len(rounds) / freedom
    times = [launch.at for row in rows for launch in row]
    return Drift(
        change=exponential(slope * (max(times) - min(times))) - 1,
        slope=slope,
        middle=(max(times) + min(times)) / 2,
        chance=_chance(slope, squared_error, freedom),
    )


class _Deviation(msgspec.Struct, frozen=True, kw_only=True):
    """A launch as it lies to the mean of its row."""

    at: float
    log: float
    round: int
    weight: float


def _deviations(row: Sequence[Launch], typical: float) -> Iterator[_Deviation]:
    logs = [math.log(launch.figure) for launch in row]
    middle, level = statistics.fmean(launch.at for launch in row), statistics.fmean(logs)
    weight = 1 / max(scale_of(logs), typical, LEAST_SCATTER) ** 2
    for launch, log in zip(row, logs, strict=True):
        yield _Deviation(at=launch.at - middle, log=log - level, round=launch.round, weight=weight)


def _chance(slope: float, squared_error: float, freedom: int) -> float:
    if squared_error == 0:
        return 1.0 if slope == 0 else 0.0
    return 2 * float(special.stdtr(freedom, -abs(slope) / math.sqrt(squared_error)))


def counted(rows: Mapping[str, Sequence[Launch]]) -> dict[str, list[float]]:
    """The figures from which each row's mean and interval are made.

    Args:
        rows: of one run.

    Returns:
        As many figures for each row, in their order; equal to those measured where the run did not
        drift and no launch stands far off.
    """
    drift = drift_of(rows.values())
    logs = {key: _levelled(row, drift) for key, row in rows.items()}
    typical = typical_scatter(logs.values())
    return {key: [exponential(log) for log in _clipped(row, typical)] for key, row in logs.items()}


def _levelled(row: Sequence[Launch], drift: Drift | None) -> list[float]:
    """Logarithms as they would be in the middle of the run, if it drifted."""
    if drift is None or not drift.is_taken_out:
        return [math.log(launch.figure) for launch in row]
    return [math.log(one.figure) - drift.slope * (one.at - drift.middle) for one in row]


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
    scales = sorted(map(scale_of, known))
    cut = int(ODDEST * len(scales))
    return max(statistics.fmean(scales[cut : len(scales) - cut]), LEAST_SCATTER)


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
