"""Cases whose steps are not all alike: after how many they repeat themselves."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from bench.plan.case import Case

PERIOD = "local_sgd_period"
"""Option of the one shipped strategy that synchronises in some steps, and in its optimizer."""


def period_of(case: Case) -> int:
    """Steps after which a case repeats itself: 1 where all are alike.

    Known from its options, which are all that a strategy makes its rhythm from.
    """
    value = case.options.get(PERIOD)
    return value if isinstance(value, int) and value > 1 else 1


def round_means(steps: Sequence[float], period: int) -> list[float]:
    """Mean of each whole round, so that what comes once in one is no outlier.

    >>> round_means([1.0, 3.0, 2.0, 4.0, 9.0], 2)
    [2.0, 3.0]
    """
    if period == 1:
        return list(steps)
    starts = range(0, len(steps) - period + 1, period)
    return [statistics.fmean(steps[at : at + period]) for at in starts]
