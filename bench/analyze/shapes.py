"""What the shape of a window's step times says: a slow start, a trend, two levels.

Each rule was set so that steady, independent noise sets it off in fewer than one row in a hundred;
the tests beside it hold it to that.
"""

from __future__ import annotations

import functools
import itertools
import math
import statistics
from collections import Counter
from collections.abc import Callable, Sequence

from bench.analyze.launches import SURE
from bench.analyze.stats import percentile

CHANGED = 0.04
"""Change of the step from a window's first third to its last that is worth a word."""
SLOW_START = 1.05
"""How much longer the first steps of a window take when warm-up was not over."""
SPLIT = 0.92
"""Share of the variance between two levels: steps that scatter about one have 0.64 (normal) to 0.75
(even), and a few of them rarely more than this."""
APART = 0.05
"""Distance of two levels, relative to the lower."""
LEAST_STEPS = 10
PARTS = 15
"""Of a window, whose means show a trend."""
LEAST_LAUNCHES = 10
MINORITY = 0.15


def has_slow_start(steps: Sequence[float]) -> bool:
    """Whether the first fifth of a window's steps is slower than nearly all of its second half."""
    if len(steps) < LEAST_STEPS:
        return False
    first, rest = steps[: max(3, len(steps) // 5)], steps[len(steps) // 2 :]
    level = statistics.median(first)
    return level > SLOW_START * statistics.median(rest) and min(first) > percentile(rest, 75)


def has_trend(steps: Sequence[float]) -> int:
    """Whether steps became longer (1) or shorter (-1) throughout a window, or neither (0).

    Kendall's tau of the means of parts, since neighbouring steps are alike.
    """
    if len(steps) < LEAST_STEPS:
        return 0
    size = len(steps) // PARTS or 1
    means = [statistics.fmean(steps[at : at + size]) for at in range(0, len(steps), size)]
    third = len(steps) // 3
    before, after = statistics.median(steps[:third]), statistics.median(steps[-third:])
    if abs(after - before) <= CHANGED * before:
        return 0
    if chance_of_order(means) >= SURE:
        return 0
    return 1 if after > before else -1


def chance_of_order(values: Sequence[float]) -> float:
    """How often values in no order rise, or fall, as much as these do, or more.

    Kendall's test, exact: M. G. Kendall, Rank Correlation Methods, 1948. Equal values count as half
    a rise, and so against an order. The same as ``scipy.stats.kendalltau`` says, whose import alone
    would take longer than all figures of a page.

    >>> chance_of_order(range(4)), chance_of_order([4, 3, 1, 2])  # of 24 orders: 2, and 8
    (0.08333333333333333, 0.3333333333333333)
    """
    count = len(values)
    pairs = list(itertools.combinations(values, 2))
    rises = sum((later > earlier) - (later < earlier) for earlier, later in pairs)
    out_of_order = (len(pairs) - abs(rises)) // 2
    return min(1.0, 2 * sum(_orders(count)[: out_of_order + 1]) / math.factorial(count))


@functools.cache
def _orders(count: int) -> list[int]:
    """Of so many values, how many orders have 0, 1, 2 ... pairs out of order."""
    found = [1]
    for size in range(2, count + 1):  # the largest may stand before up to all of the others
        sums = list(itertools.accumulate([*found, *[0] * (size - 1)]))
        found = [one - (sums[at - size] if at >= size else 0) for at, one in enumerate(sums)]
    return found


def has_two_levels(values: Sequence[float], least: int = LEAST_STEPS) -> bool:
    """Whether values stand around two levels, neither of them rare.

    Otsu's criterion: the cut that leaves the least variance within both parts.

    Args:
        values: of steps, or of launches.
        least: as many are needed to tell.
    """
    count = len(values)
    if count < least:
        return False
    ordered = sorted(values)
    fewest = max(2, math.ceil(MINORITY * count))
    mean = statistics.fmean(ordered)
    total = math.fsum((value - mean) ** 2 for value in ordered)
    if total == 0:
        return False
    sums = list(itertools.accumulate(ordered))  # of all values up to each: long windows have many
    for cut in range(fewest, count - fewest + 1):
        low, high = sums[cut - 1] / cut, (sums[-1] - sums[cut - 1]) / (count - cut)
        between = cut * (low - mean) ** 2 + (count - cut) * (high - mean) ** 2
        if between > SPLIT * total and high > (1 + APART) * low:
            return True
    return False


def in_most(launches: Sequence[Sequence[float]], rule: Callable[[Sequence[float]], int]) -> bool:
    """Whether a rule holds, the same way, in more than half of the launches: once is an accident.

    Args:
        launches: steps of each.
        rule: 0 where it does not hold.
    """
    found = Counter(one for one in map(rule, launches) if one)
    return max(found.values(), default=0) > len(launches) / 2
