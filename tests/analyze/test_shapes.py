from __future__ import annotations

import math
import random
import statistics

import pytest

from bench.analyze.shapes import (
    LEAST_LAUNCHES,
    has_slow_start,
    has_trend,
    has_two_levels,
    in_most,
)


def steady(generator: random.Random, count: int, scatter: float = 0.02) -> list[float]:
    return [math.exp(generator.gauss(0, scatter)) for _ in range(count)]


def share(rule: object, count: int, scatter: float = 0.02, trials: int = 500) -> float:
    generator = random.Random(7)
    assert callable(rule)
    return statistics.fmean(bool(rule(steady(generator, count, scatter))) for _ in range(trials))


@pytest.mark.parametrize("rule", [has_slow_start, has_trend, has_two_levels])
@pytest.mark.parametrize("count", [10, 40, 200])
@pytest.mark.parametrize("scatter", [0.01, 0.05])
def test_steady_steps_set_off_nothing(rule: object, count: int, scatter: float) -> None:
    assert share(rule, count, scatter) < 0.1
    # ... and a row asks for it in most of its launches.
    generator = random.Random(8)
    rows = [[steady(generator, count, scatter) for _ in range(3)] for _ in range(300)]
    assert callable(rule)
    assert statistics.fmean(in_most(row, rule) for row in rows) < 0.01


def test_a_slow_start_is_seen() -> None:
    generator = random.Random(1)
    steps = steady(generator, 40)
    assert not has_slow_start(steps)
    assert has_slow_start([step * (1.3 if place < 8 else 1) for place, step in enumerate(steps)])
    assert not has_slow_start([1.3, *steps[1:]])  # one step is no start
    assert not has_slow_start([1.5, 1.5, 1.0, 1.0])  # too few to tell


def test_a_trend_within_a_window_is_seen() -> None:
    generator = random.Random(1)
    steps = [step * (1 + place / 200) for place, step in enumerate(steady(generator, 40))]
    assert has_trend(steps)
    assert has_trend(steps[::-1])
    assert not has_trend([step * (1 + place / 4000) for place, step in enumerate(steps[:1] * 40)])


def test_two_levels_are_seen_and_a_tail_is_not() -> None:
    generator = random.Random(1)
    steps = steady(generator, 40)
    assert has_two_levels([step * (1.3 if place % 2 else 1) for place, step in enumerate(steps)])
    assert has_two_levels(
        [step * (1.3 if place % 4 == 0 else 1) for place, step in enumerate(steps)]
    )
    assert not has_two_levels(
        [step * (1.5 if place == 9 else 1) for place, step in enumerate(steps)]
    )
    # Levels 3 % apart are no one's concern, however clear.
    assert not has_two_levels([1.0, 1.03] * 20)
    assert not has_two_levels([1.0] * 20)
    assert has_two_levels([1.0] * 5 + [1.2] * 5, LEAST_LAUNCHES)
    assert not has_two_levels([1.0] * 5 + [1.2] * 4, LEAST_LAUNCHES)
