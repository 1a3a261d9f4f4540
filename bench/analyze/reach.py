"""How small a change could have been seen, and whether changes are one and the same."""

from __future__ import annotations

import math
from collections.abc import Sequence

from scipy import special

from bench.analyze.stats import CONFIDENCE, NOTHING_KNOWN, Noise, difference_of, student

POWER = 0.8
"""Share of runs in which a change is found that is said to be one that could have been seen."""
ALIKE = 0.05
"""Chance of ratios that scatter as much, under which they are not one and the same."""


def reach_of(
    above: Sequence[float],
    below: Sequence[float],
    noise: Noise = NOTHING_KNOWN,
    comparisons: int = 1,
) -> float | None:
    """Difference of the logarithms from which ``chance_of`` calls two rows clearly different.

    Args:
        above: one positive figure per launch.
        below: likewise.
        noise: of the run.
        comparisons: among which it must be clear: Holm asks for so much of the clearest.

    Returns:
        None where a row has one launch.
    """
    if min(len(above), len(below)) < 2:
        return None
    _, squared_error, freedom = difference_of(above, below, noise)
    return student(freedom, (1 - CONFIDENCE) / comparisons) * math.sqrt(squared_error)


def visible_of(
    above: Sequence[float],
    below: Sequence[float],
    noise: Noise = NOTHING_KNOWN,
    comparisons: int = 1,
    floor: float = 0.0,
) -> float | None:
    """True difference of the logarithms that is called clear in ``POWER`` of such runs.

    One that is as large as ``reach_of`` is seen in half of them: half of the time noise makes it
    look smaller. So what that share of the noise takes away comes on top.

    Args:
        above: one positive figure per launch.
        below: likewise.
        noise: of the run.
        comparisons: among which it must be clear.
        floor: relative difference beyond which it must be seen.

    Returns:
        None where a row has one launch.
    """
    reach = reach_of(above, below, noise, comparisons)
    if reach is None:
        return None
    _, squared_error, freedom = difference_of(above, below, noise)
    on_top = student(freedom, 2 * (1 - POWER)) * math.sqrt(squared_error)
    return max(reach, math.log1p(floor)) + on_top


def are_alike(pairs: Sequence[tuple[Sequence[float], Sequence[float]]], noise: Noise) -> bool:
    """Whether ratios differ no more from each other than noise explains.

    Cochran's Q: squared deviations from their weighted mean, over their variances (W. G. Cochran,
    The combination of estimates from different experiments, Biometrics 10 (1954)).

    Args:
        pairs: figures above the line and below it, two launches or more each.
        noise: of the run.
    """
    found = [difference_of(above, below, noise) for above, below in pairs]
    weights = [1 / squared_error for _, squared_error, _ in found]
    mean = sum(w * log for w, (log, _, _) in zip(weights, found, strict=True)) / sum(weights)
    score = sum(w * (log - mean) ** 2 for w, (log, _, _) in zip(weights, found, strict=True))
    return float(special.chdtrc(len(found) - 1, score)) >= ALIKE
