"""Intervals from independent launches. One launch has a figure but no interval."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import msgspec
from scipy import stats

CONFIDENCE = 0.95


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """A figure with its 95 % interval; both ends None where there is none."""

    value: float
    low: float | None = None
    high: float | None = None
    launches: int

    @property
    def half_width(self) -> float | None:
        """Half the interval's width, in the figure's unit."""
        if self.low is None or self.high is None:
            return None
        return (self.high - self.low) / 2

    def includes(self, value: float) -> bool | None:
        """Whether a value lies inside the interval; None without one."""
        if self.low is None or self.high is None:
            return None
        return self.low <= value <= self.high


def mean_of_launches(values: Sequence[float], *, confidence: float = CONFIDENCE) -> Estimate:
    """Mean over independent launches, with Student's interval.

    >>> round(mean_of_launches([9.0, 10.0, 11.0]).half_width, 2)  # 4.303 x 1 / sqrt(3)
    2.48
    """
    mean = statistics.fmean(values)
    if len(values) < 2:
        return Estimate(value=mean, launches=len(values))
    error = statistics.stdev(values) / math.sqrt(len(values))
    reach = _student(len(values) - 1, confidence) * error
    return Estimate(value=mean, low=mean - reach, high=mean + reach, launches=len(values))


def ratio_of_means(above: Sequence[float], below: Sequence[float]) -> Estimate:
    """Ratio of two independent means, with Welch's interval on its logarithm (delta method).

    Args:
        above: one positive figure per launch.
        below: likewise, of what it is compared with.
    """
    ratio = statistics.fmean(above) / statistics.fmean(below)
    launches = min(len(above), len(below))
    if launches < 2:
        return Estimate(value=ratio, launches=launches)
    parts = [
        (statistics.stdev(values) / statistics.fmean(values)) ** 2 / len(values)
        for values in (above, below)
    ]
    variance = sum(parts)
    if variance == 0:
        return Estimate(value=ratio, low=ratio, high=ratio, launches=launches)
    # Welch-Satterthwaite
    freedom = variance**2 / sum(
        part**2 / (len(values) - 1) for part, values in zip(parts, (above, below), strict=True)
    )
    reach = math.exp(_student(freedom) * math.sqrt(variance))
    return Estimate(value=ratio, low=ratio / reach, high=ratio * reach, launches=launches)


def median_of_differences(pairs: Sequence[tuple[float, float]]) -> Estimate:
    """Median of first minus second, with the interval between two of the ordered differences.

    Needs no shape of the noise: the chance that a median lies outside is a coin's. With six pairs
    the extremes span 97 %; fewer have no 95 % interval.
    """
    differences = sorted(first - second for first, second in pairs)
    count = len(differences)
    median = statistics.median(differences)
    rank = int(stats.binom.ppf((1 - CONFIDENCE) / 2, count, 0.5))
    if rank < 1 or 2 * stats.binom.cdf(rank - 1, count, 0.5) > 1 - CONFIDENCE:
        return Estimate(value=median, launches=count)
    return Estimate(
        value=median, low=differences[rank - 1], high=differences[-rank], launches=count
    )


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that so many percent of all do not exceed.

    >>> percentile([1.0, 2.0, 3.0, 4.0], 50)
    2.0
    """
    ordered = sorted(values)
    return ordered[max(0, math.ceil(percent / 100 * len(ordered)) - 1)]


def _student(freedom: float, confidence: float = CONFIDENCE) -> float:
    return float(stats.t.ppf((1 + confidence) / 2, freedom))
