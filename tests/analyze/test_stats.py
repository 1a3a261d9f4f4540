from __future__ import annotations

import math
import random
import statistics

import pytest

from bench.analyze.stats import (
    LEAST_ROWS,
    NOTHING_KNOWN,
    Noise,
    centre_of,
    chance_of,
    figure_of,
    holm,
    median_of_differences,
    noise_of,
    percentile,
    ratio_of,
)


def made(
    random: random.Random, rows: int, launches: int, scatter: float = 0.02
) -> list[list[float]]:
    return [
        [100 * math.exp(random.gauss(0, scatter)) for _ in range(launches)] for _ in range(rows)
    ]


def test_three_launches_worked_by_hand() -> None:
    # Logarithms ln 100 - 0.1, ln 100, ln 100 + 0.1: standard deviation 0.1, t(2) = 4.303,
    # and sqrt(1.2) x 4.303 x 0.1 / sqrt(3) = 0.2721; 1.2 is SAFETY.
    estimate = figure_of([100 * math.exp(-0.1), 100.0, 100 * math.exp(0.1)])
    assert estimate.value == pytest.approx(100.0)
    assert estimate.low == pytest.approx(100 * math.exp(-0.2721), rel=1e-4)
    assert estimate.high == pytest.approx(100 * math.exp(0.2721), rel=1e-4)
    assert estimate.launches == 3


def test_a_ratio_worked_by_hand() -> None:
    # Squared errors 0.02 / 2 each (logarithms 0.2 apart), so 2 degrees of freedom; t(2) x 0.1414.
    spread = [math.exp(-0.1), math.exp(0.1)]
    found = ratio_of([2 * one for one in spread], spread)
    assert found.value == pytest.approx(2.0)
    assert found.high == pytest.approx(2 * math.exp(4.3027 * math.sqrt(1.2 * 0.02)), rel=1e-4)


def test_one_launch_has_no_interval() -> None:
    estimate = figure_of([9.0])
    assert estimate.value == pytest.approx(9.0)
    assert estimate.low is estimate.half_width is None
    assert ratio_of([9.0], [3.0, 3.1]).half_width is None
    assert chance_of([9.0], [3.0, 3.1]) is None


def test_equal_launches_are_given_the_least_scatter_that_a_clock_has() -> None:
    found = ratio_of([4.0, 4.0], [2.0, 2.0])
    assert found.value == 2.0
    assert found.half_width is not None
    assert 0 < found.half_width < 0.002


def test_intervals_cover_the_truth_about_as_often_as_they_say() -> None:
    generator = random.Random(0)
    trials = 2000
    covered = {"figure": 0, "ratio": 0}
    for _ in range(trials):
        above, below = made(generator, 2, 3)
        covered["figure"] += bool(figure_of(above).includes(100))
        covered["ratio"] += bool(ratio_of(above, below).includes(1.0))
    # Somewhat more often, since some of it is kept for tails and for launching again.
    assert covered["figure"] / trials == pytest.approx(0.96, abs=0.02)
    assert covered["ratio"] / trials == pytest.approx(0.965, abs=0.02)


def test_rows_that_scatter_alike_lend_each_other_what_they_know() -> None:
    rows = made(random.Random(1), 200, 3)
    noise = noise_of(rows)
    assert noise.variance == pytest.approx(0.02**2, rel=0.2)
    assert noise.freedom > 20
    # sqrt(1.2) x 1.96 x 2 % / sqrt(3), where Student's interval of each row alone is wider.
    together = statistics.fmean(figure_of(row, noise).half_width or 0 for row in rows)
    alone = statistics.fmean(figure_of(row).half_width or 0 for row in rows)
    # Rows that scatter most by chance borrow nothing, which widens them and so the mean.
    assert together == pytest.approx(2.8, rel=0.15)
    assert alone > 1.6 * together


def test_rows_that_scatter_unlike_lend_each_other_little() -> None:
    generator = random.Random(1)
    rows = [row for k in range(100) for row in made(generator, 1, 3, 0.001 * 10 ** (k % 3))]
    assert noise_of(rows).freedom < 2
    # As many degrees of freedom as prior and row have, the row's own variance weighing most.
    noise = Noise(variance=math.log(1.1) ** 2 / 4, freedom=1.0, most=100.0)
    centre = centre_of([100.0, 110.0, 121.0], noise)
    assert centre.freedom == 3
    assert centre.variance == pytest.approx((1 / 4 + 2) / 3 * math.log(1.1) ** 2)


def test_a_row_that_plainly_scatters_more_borrows_nothing() -> None:
    noise = noise_of([*made(random.Random(1), 23, 3, 0.01)])
    wild = [100.0, 110.0, 121.0]
    assert centre_of(wild, noise) == centre_of(wild)
    calm = [100.0, 101.0, 102.0]
    assert centre_of(calm, noise).freedom > 20


def test_launches_that_repeat_exactly_say_nothing_of_the_machine() -> None:
    rows = made(random.Random(1), 23, 3, 0.01)
    assert noise_of([*rows, [5.0, 5.0, 5.0]]) == noise_of(rows)


def test_no_row_knows_more_than_all_together() -> None:
    rows = made(random.Random(4), LEAST_ROWS, 2)
    noise = noise_of(rows)
    assert noise.most == LEAST_ROWS
    assert centre_of(rows[0], Noise(variance=1e-4, freedom=math.inf, most=4.0)).freedom == 4.0
    assert noise_of(rows[:-1]) == NOTHING_KNOWN
    assert noise_of([*rows[:-1], [100.0]]) == NOTHING_KNOWN


def test_one_percent_apart_with_five_percent_spread_is_no_clear_difference() -> None:
    first, second = [95.0, 100.0, 105.0], [96.0, 101.0, 106.0]
    assert ratio_of(second, first).includes(1.0) is True
    assert ratio_of([195.0, 200.0, 205.0], first).includes(1.0) is False
    assert ratio_of([9.0], [3.0]).includes(1.0) is None


def test_a_chance_and_an_interval_agree() -> None:
    generator = random.Random(2)
    for _ in range(200):
        above, below = made(generator, 2, 4)
        chance = chance_of(above, below)
        assert chance is not None
        assert (chance > 0.05) == ratio_of(above, below).includes(1.0)


def test_equal_rows_differ_by_chance_as_often_as_the_chance_says() -> None:
    generator = random.Random(3)
    pairs = [made(generator, 2, 4) for _ in range(2000)]
    chances = [chance_of(above, below) or 0.0 for above, below in pairs]
    assert 0.02 < statistics.fmean(one < 0.05 for one in chances) < 0.05
    assert 0.4 < statistics.fmean(one < 0.5 for one in chances) < 0.5


def test_holm_worked_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert holm([]) == []


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
