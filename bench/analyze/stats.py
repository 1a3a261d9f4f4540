"""Intervals from independent launches. One launch has a figure but no interval.

A launch's figure scatters by a factor, so all sums are over logarithms: the figure of a row is the
geometric mean of its launches. Three launches say little about their own scatter, and Student's
factor for them is 4.3; but the other rows of a run were measured on the same machine in the same
hours, in turns. So each row's variance is drawn towards the run's, as far as the rows agree on
theirs: G. K. Smyth, Linear models and empirical Bayes methods for assessing differential
expression, Stat. Appl. Genet. Mol. Biol. 3 (2004), article 3. Where the rows' variances differ by
more than chance explains, little is borrowed, and the interval is nearly Student's; and a row that
plainly scatters more than the others borrows nothing.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence

import msgspec
from scipy import special

CONFIDENCE = 0.95
SAFETY = 1.2
"""Factor on the variance of a mean, set by simulation: it makes up for what launching again where
intervals are wide, and tails that are not normal, take from the coverage."""
LEAST_ROWS = 6
"""Rows that can say whether rows agree about their variance."""
UNLIKE = 0.05
"""Chance of a row's variance among the others', under which it borrows nothing from them."""
LEAST_VARIANCE = 1e-8
"""Of a logarithm: no clock and no scheduler repeats a launch to better than 0.01 %."""


LARGEST_LOG = 100.0


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


class Noise(msgspec.Struct, frozen=True, kw_only=True):
    """How much the launches of a run scatter, as far as its rows agree."""

    variance: float = 0.0
    """Of the logarithm of a launch's figure, typically."""
    freedom: float = 0.0
    """Launches that this knowledge is worth, for every row: 0 where each row stands alone."""
    most: float = math.inf
    """Degrees of freedom of all rows together, which no row can exceed."""


NOTHING_KNOWN = Noise()


class Centre(msgspec.Struct, frozen=True, kw_only=True):
    """The logarithm of a row's figure, and how far off it may be."""

    mean: float
    variance: float
    """Of one launch."""
    freedom: float
    """Of that variance."""
    launches: int

    @property
    def squared_error(self) -> float:
        """Variance of the mean."""
        return SAFETY * self.variance / self.launches


def noise_of(rows: Iterable[Sequence[float]]) -> Noise:
    """What the rows of one run say together about the scatter of launches.

    Args:
        rows: for each row, one positive figure per launch; rows with one launch say nothing.

    Returns:
        Smyth's estimate (2004, section 6.2) from mean and variance of the rows' log variances;
        ``NOTHING_KNOWN`` for fewer than ``LEAST_ROWS`` rows.
    """
    spreads = [(_variance(row), len(row) - 1) for row in rows if len(row) > 1]
    # Launches that agree to the last digit say how they were made, not how a machine scatters.
    spreads = [(variance, freedom) for variance, freedom in spreads if variance > LEAST_VARIANCE]
    if len(spreads) < LEAST_ROWS:
        return NOTHING_KNOWN
    centred = [
        math.log(variance) - float(special.digamma(freedom / 2)) + math.log(freedom / 2)
        for variance, freedom in spreads
    ]
    by_chance = statistics.fmean(float(special.polygamma(1, free / 2)) for _, free in spreads)
    excess = statistics.variance(centred) - by_chance
    most = float(sum(freedom for _, freedom in spreads))
    if excess <= 0:  # the rows differ no more than equal variances would
        return Noise(variance=math.exp(statistics.fmean(centred)), freedom=math.inf, most=most)
    half = _inverse_trigamma(excess)
    log_variance = statistics.fmean(centred) + float(special.digamma(half)) - math.log(half)
    return Noise(variance=math.exp(log_variance), freedom=2 * half, most=most)


def centre_of(values: Sequence[float], noise: Noise = NOTHING_KNOWN) -> Centre:
    """Mean and variance of the logarithms, the latter drawn towards the run's.

    Args:
        values: one positive figure per launch.
        noise: of the run.
    """
    own = len(values) - 1
    variance = _variance(values) if own else 0.0
    if own and noise.freedom and _is_unlike(variance, own, noise):
        noise = NOTHING_KNOWN
    if math.isinf(noise.freedom):
        variance = noise.variance
    elif own or noise.freedom:
        variance = (noise.freedom * noise.variance + own * variance) / (noise.freedom + own)
    return Centre(
        mean=statistics.fmean(map(math.log, values)),
        variance=variance,
        freedom=min(noise.freedom + own, max(noise.most, own)),
        launches=len(values),
    )


def _is_unlike(variance: float, freedom: int, noise: Noise) -> bool:
    """Whether a row scatters more than one of the others would by chance (an F test)."""
    others = min(noise.freedom, noise.most)
    return float(special.fdtrc(freedom, others, variance / noise.variance)) < UNLIKE


def figure_of(values: Sequence[float], noise: Noise = NOTHING_KNOWN) -> Estimate:
    """Geometric mean over independent launches, with its interval.

    >>> found = figure_of([100.0, 110.0, 121.0])  # logarithms 0.0953 apart; 4.303 / sqrt(3) of it
    >>> round(found.value, 9), round(found.high / found.value, 3)
    (110.0, 1.267)
    """
    centre = centre_of(values, noise)
    return _estimate(centre.mean, centre.squared_error, centre.freedom, centre.launches)


def ratio_of(
    above: Sequence[float], below: Sequence[float], noise: Noise = NOTHING_KNOWN
) -> Estimate:
    """Ratio of two rows' figures, with its interval (Welch and Satterthwaite's freedom).

    Args:
        above: one positive figure per launch.
        below: likewise, of what it is compared with.
        noise: of the run.
    """
    difference, squared_error, freedom = difference_of(above, below, noise)
    launches = min(len(above), len(below))
    return _estimate(difference, squared_error, freedom, launches)


def chance_of(
    above: Sequence[float], below: Sequence[float], noise: Noise = NOTHING_KNOWN
) -> float | None:
    """How often rows that are equal would differ as much as these: the two-sided p-value.

    Returns:
        None where a row has one launch.
    """
    if min(len(above), len(below)) < 2:
        return None
    difference, squared_error, freedom = difference_of(above, below, noise)
    return 2 * float(special.stdtr(freedom, -abs(difference) / math.sqrt(squared_error)))


def holm(chances: Sequence[float]) -> list[float]:
    """p-values corrected for their number, so that all verdicts of a report hold together.

    S. Holm, A simple sequentially rejective multiple test procedure, Scand. J. Stat. 6 (1979).

    >>> holm([0.01, 0.04, 0.03])  # 3 x 0.01; 2 x 0.03; 0.04, no less than the one before
    [0.03, 0.06, 0.06]
    """
    corrected = [0.0] * len(chances)
    least = 0.0
    ordered = sorted(range(len(chances)), key=lambda index: chances[index])
    for place, index in enumerate(ordered):
        least = max(least, min(1.0, (len(chances) - place) * chances[index]))
        corrected[index] = least
    return corrected


def median_of_differences(pairs: Sequence[tuple[float, float]]) -> Estimate:
    """Median of first minus second, with the interval between two of the ordered differences.

    Needs no shape of the noise: the chance that a median lies outside is a coin's. With six pairs
    the extremes span 97 %; fewer have no 95 % interval.
    """
    differences = sorted(first - second for first, second in pairs)
    count = len(differences)
    median = statistics.median(differences)
    below = [float(special.bdtr(heads, count, 0.5)) for heads in range(count + 1)]
    rank = next(heads for heads, chance in enumerate(below) if chance >= (1 - CONFIDENCE) / 2)
    if rank < 1 or 2 * below[rank - 1] > 1 - CONFIDENCE:
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


def difference_of(
    above: Sequence[float], below: Sequence[float], noise: Noise
) -> tuple[float, float, float]:
    """(difference of the logarithms, its variance, degrees of freedom of that variance).

    Args:
        above: one positive figure per launch.
        below: likewise.
        noise: of the run.
    """
    first, second = centre_of(above, noise), centre_of(below, noise)
    squared_error = first.squared_error + second.squared_error
    parts = [
        one.squared_error**2 / one.freedom for one in (first, second) if 0 < one.freedom < math.inf
    ]
    freedom = squared_error**2 / sum(parts) if parts and squared_error else math.inf
    return first.mean - second.mean, squared_error, min(freedom, max(noise.most, 1.0))


def exponential(log: float) -> float:
    """The exponential function, up to where no figure is one any more, nor any interval's end."""
    return math.exp(max(-LARGEST_LOG, min(LARGEST_LOG, log)))


def _estimate(log: float, squared_error: float, freedom: float, launches: int) -> Estimate:
    if launches < 2:
        return Estimate(value=exponential(log), launches=launches)
    reach = student(freedom) * math.sqrt(squared_error)
    return Estimate(
        value=exponential(log),
        low=exponential(log - reach),
        high=exponential(log + reach),
        launches=launches,
    )


def _variance(values: Sequence[float]) -> float:
    return max(statistics.variance([math.log(value) for value in values]), LEAST_VARIANCE)


def student(freedom: float, chance: float = 1 - CONFIDENCE) -> float:
    """Standard errors that are exceeded, on either side, with a chance."""
    if math.isinf(freedom):
        return float(special.ndtri(1 - chance / 2))
    return float(special.stdtrit(freedom, 1 - chance / 2))


def _inverse_trigamma(value: float) -> float:
    """The argument at which the trigamma function has a positive value, by Newton's method.

    On 1 / trigamma, which is convex and nearly straight, from below (Smyth 2004, appendix).
    """
    argument = 0.5 + 1 / value
    for _ in range(50):
        trigamma = float(special.polygamma(1, argument))
        step = trigamma * (1 - trigamma / value) / float(special.polygamma(2, argument))
        argument += step
        if -step < 1e-8 * argument:
            break
    return argument
