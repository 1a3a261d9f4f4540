from __future__ import annotations

import random

import pytest

from bench.analyze.stats import (
    mean_of_launches,
    median_of_differences,
    percentile,
    ratio_of_means,
)


def test_three_launches_worked_by_hand() -> None:
    # mean 10, standard deviation 1, t(2) = 4.303: 4.303 / sqrt(3) = 2.484
    estimate = mean_of_launches([9.0, 10.0, 11.0])
    assert estimate.value == 10.0
    assert estimate.half_width == pytest.approx(2.484, abs=1e-3)
    assert estimate.launches == 3


def test_one_launch_has_no_interval() -> None:
    estimate = mean_of_launches([9.0])
    assert (estimate.value, estimate.low, estimate.half_width) == (9.0, None, None)
    assert ratio_of_means([9.0], [3.0, 3.1]).half_width is None


def test_equal_launches_have_no_width() -> None:
    assert ratio_of_means([4.0, 4.0], [2.0, 2.0]).half_width == 0
    assert ratio_of_means([4.0, 4.0], [2.0, 2.0]).value == 2.0


def test_intervals_cover_the_truth_about_as_often_as_they_say() -> None:
    generator = random.Random(0)
    trials = 2000
    covered = {"mean": 0, "ratio": 0}
    for _ in range(trials):
        above = [generator.gauss(200, 4) for _ in range(3)]
        below = [generator.gauss(100, 2) for _ in range(3)]
        covered["mean"] += bool(mean_of_launches(above).includes(200))
        covered["ratio"] += bool(ratio_of_means(above, below).includes(2.0))
    assert covered["mean"] / trials == pytest.approx(0.95, abs=0.02)
    assert covered["ratio"] / trials == pytest.approx(0.95, abs=0.025)


def test_one_percent_apart_with_five_percent_spread_is_no_clear_difference() -> None:
    first, second = [95.0, 100.0, 105.0], [96.0, 101.0, 106.0]
    assert ratio_of_means(second, first).includes(1.0) is True
    assert ratio_of_means([195.0, 200.0, 205.0], first).includes(1.0) is False
    assert ratio_of_means([9.0], [3.0]).includes(1.0) is None


def test_an_outlier_moves_the_tail_and_not_the_middle() -> None:
    steps = [1.0] * 99 + [10.0]
    assert percentile(steps, 50) == 1.0
    assert percentile(steps, 100) == 10.0
    assert percentile([1.0] * 90 + [10.0] * 10, 95) == 10.0


def test_the_medians_interval_needs_six_pairs() -> None:
    pairs = [(2.0 + offset, 1.0) for offset in (0.1, 0.2, 0.3, 0.4, 0.5)]
    assert median_of_differences(pairs).low is None
    six = median_of_differences([*pairs, (2.6, 1.0)])
    assert six.low == pytest.approx(1.1)
    assert six.high == pytest.approx(1.6)
    assert six.value == pytest.approx(1.35)


def test_the_medians_interval_covers() -> None:
    generator = random.Random(0)
    for count in (6, 12, 24):
        covered = 0
        for _ in range(1000):
            pairs = [(generator.gauss(1, 1), 0.0) for _ in range(count)]
            covered += bool(median_of_differences(pairs).includes(1.0))
        assert 0.94 <= covered / 1000 <= 0.995
