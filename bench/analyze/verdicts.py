"""Which differences are more than noise, for all comparisons of a report together.

Two things must both hold: the difference is clear although many were looked at (Holm), and it is
larger than what equal cases, measured as a pair in the same run, may differ by.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from bench.analyze.rows import Comparison, Row, Verdict, family
from bench.analyze.stats import CONFIDENCE, Estimate, holm

COMPARISONS = ("speedup", "peer", "setting", "rung")
"""Fields of a row that get a verdict. Those with the same row below the line are one comparison."""


def noise_floor(rows: Sequence[Row], world_size: int | None = None) -> float | None:
    """The largest difference that pairs of equal cases allow: the far end of their intervals.

    Args:
        rows: of one table.
        world_size: pairs on as many devices are taken where there are any, else all.

    Returns:
        A relative difference, such as 0.03; None where no pair was measured.
    """
    pairs = [row for row in rows if row.twin is not None and _reach(row.twin.comparison)]
    alike = [row for row in pairs if row.case.world_size == world_size]
    reaches = [_reach(row.twin.comparison) for row in alike or pairs if row.twin is not None]
    return math.expm1(max(reaches)) if reaches else None


def _reach(comparison: Comparison) -> float:
    """How far the interval of a ratio goes from 1, on the logarithmic scale; 0 without one."""
    ratio = comparison.ratio
    if ratio is None or ratio.low is None or ratio.high is None:
        return 0.0
    return max(abs(math.log(ratio.low)), abs(math.log(ratio.high)))


def judged(rows: Sequence[Row]) -> list[Row]:
    """The same rows, with a verdict for every comparison that has an interval."""
    tables: dict[object, list[Row]] = {}
    for row in rows:
        tables.setdefault(family(row.case), []).append(row)
    chances = _corrected(rows)
    changes: dict[int, dict[str, Comparison]] = {}
    for index, row in enumerate(rows):
        for name in COMPARISONS:
            comparison = _comparison(row, name)
            if comparison.chance is None:
                continue
            assert comparison.ratio is not None, "what has a chance has a ratio"
            floor = noise_floor(tables[family(row.case)], row.case.world_size)
            chance = chances[index, comparison.against or name]
            verdict = verdict_of(comparison.ratio, chance, floor)
            why = why_unclear(comparison.ratio, chance, len(chances))
            told = msgspec.structs.replace(
                comparison,
                verdict=verdict,
                why_unclear=why if verdict == "no clear difference" else None,
            )
            changes.setdefault(index, {})[name] = told
    return [
        msgspec.structs.replace(row, **changes.get(index, {})) for index, row in enumerate(rows)
    ]


def _corrected(rows: Sequence[Row]) -> dict[tuple[int, str], float]:
    """Corrected p-values by the row's place and what it is compared with, each pair once."""
    chances: dict[tuple[int, str], float] = {}
    for index, row in enumerate(rows):
        for name in COMPARISONS:
            comparison = _comparison(row, name)
            if comparison.chance is not None:
                chances[index, comparison.against or name] = comparison.chance
    return dict(zip(chances, holm([*chances.values()]), strict=True))


def pairs_of(rows: Sequence[Row]) -> dict[frozenset[str], float]:
    """p-values of all pairs of cases that tables compare, by the two ids, each pair once."""
    return {
        frozenset({row.case.id, comparison.against or name}): comparison.chance
        for row in rows
        for name in COMPARISONS
        if (comparison := _comparison(row, name)).chance is not None
    }


def verdict_of(ratio: Estimate, chance: float, floor: float | None) -> Verdict:
    """What may be said of one comparison.

    Args:
        ratio: of throughputs.
        chance: p-value, corrected for the number of comparisons.
        floor: relative difference that equal cases may show; None where none was measured.
    """
    beyond = abs(math.log(ratio.value)) > math.log1p(floor or 0.0)
    if chance >= 1 - CONFIDENCE or not beyond:
        return "no clear difference"
    return "faster" if ratio.value > 1 else "slower"


def why_unclear(ratio: Estimate, chance: float, count: int) -> str | None:
    """Why an interval that leaves out 1 is no clear difference; None for one that does not.

    Args:
        ratio: of throughputs.
        chance: p-value, corrected.
        count: of comparisons that it is corrected for.
    """
    if ratio.low is None or ratio.high is None or ratio.low <= 1 <= ratio.high:
        return None
    if chance >= 1 - CONFIDENCE:
        return f"chance brings about such an interval where {count} are looked at"
    return "equal cases, measured twice, may differ as much"


def _comparison(row: Row, name: str) -> Comparison:
    comparison: Comparison = getattr(row, name)
    return comparison
