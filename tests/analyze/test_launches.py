from __future__ import annotations

import math
import random
import statistics

import pytest

from bench.analyze.launches import (
    LEAST_FREEDOM,
    Launch,
    counted,
    drift_of,
    noisy_rows,
    scale_of,
    typical_scatter,
)


def steady(generator: random.Random, count: int, scatter: float = 0.02) -> list[float]:
    return [math.exp(generator.gauss(0, scatter)) for _ in range(count)]


def timed(*rows: list[float]) -> dict[str, list[Launch]]:
    return {
        str(number): [Launch(at=at, round=at, figure=figure) for at, figure in enumerate(row)]
        for number, row in enumerate(rows)
    }


def test_the_robust_scatter_is_that_of_the_most() -> None:
    generator = random.Random(2)
    for count in (2, 3, 4, 5, 8, 20, 21):
        found = [scale_of([generator.gauss(0, 1) for _ in range(count)]) for _ in range(3000)]
        assert statistics.fmean(found) == pytest.approx(1.0, abs=0.06), count
    # Five of ten anywhere cannot move it far.
    values = [generator.gauss(0, 1) for _ in range(16)] + [1e6] * 4
    assert scale_of(values) < 4


def test_a_launch_far_from_its_row_makes_the_row_noisy() -> None:
    generator = random.Random(3)
    rows = [steady(generator, 3) for _ in range(24)]
    assert noisy_rows(timed(*rows)) == set()
    rows[5][1] *= math.exp(-8 * 0.02)
    assert noisy_rows(timed(*rows)) == {"5"}


def test_a_row_alone_is_noisy_only_where_anyone_would_say_so() -> None:
    assert noisy_rows(timed([1.0, 1.0001, 1.03])) == set()
    assert noisy_rows(timed([1.0, 1.0, 1.3])) == {"0"}
    assert noisy_rows(timed([1.0])) == set()
    assert noisy_rows({}) == set()


def test_launches_that_scatter_by_nothing_have_no_outliers() -> None:
    assert noisy_rows(timed(*[[1.0, 1.0, 1.0]] * 9, [1.0, 1.0, 1.001])) == set()


def test_what_counts_is_what_was_measured_where_nothing_is_odd() -> None:
    generator = random.Random(9)
    rows = timed(*[steady(generator, 5, 0.01) for _ in range(6)])
    for key, figures in counted(rows).items():
        assert figures == pytest.approx([launch.figure for launch in rows[key]])
    assert counted({"none": [], "one": [Launch(at=0, round=0, figure=7.0)]}) == {
        "none": [],
        "one": [pytest.approx(7.0)],
    }


def test_a_launch_far_off_counts_as_one_at_the_edge() -> None:
    generator = random.Random(9)
    rows = [steady(generator, 9, 0.01) for _ in range(12)]
    rows[3][4] = 0.5
    figures = counted(timed(*rows))["3"]
    assert statistics.median(figures) > figures[4] > 0.93  # three scatters of 1 % to 2 %
    assert figures[:4] == pytest.approx(rows[3][:4])
    # Of four launches nobody can say which is the odd one.
    assert counted(timed([1.0, 1.0, 1.0, 0.5]))["0"] == pytest.approx([1.0, 1.0, 1.0, 0.5])


def test_a_drift_is_taken_out_of_the_scatter() -> None:
    generator = random.Random(9)
    rows = made(generator, 12, 4, -0.2)
    levelled = counted({str(number): row for number, row in enumerate(rows)})
    for row, figures in zip(rows, levelled.values(), strict=True):
        logs = [math.log(launch.figure) for launch in row]
        counts = [math.log(figure) for figure in figures]
        # All rows have launches in all rounds: their means are those of the run's middle already.
        assert statistics.fmean(counts) == pytest.approx(statistics.fmean(logs))
        assert statistics.stdev(counts) < 0.6 * statistics.stdev(logs)


def test_rows_of_different_times_are_taken_to_the_middle_of_the_run() -> None:
    generator = random.Random(9)
    rows = [[one for one in row if one.at < 4] for row in made(generator, 12, 20, -0.2)]
    late = made(generator, 2, 20, -0.2)
    levelled = list(counted({str(at): row for at, row in enumerate([*rows, *late])}).values())
    # Of what all rows have at the middle, where a fifth of the figure has half gone.
    for number, figures in enumerate(levelled):
        level = 1 + (number if number < 12 else number - 12)
        assert statistics.fmean(figures) / level == pytest.approx(0.9, abs=0.03)


def test_rounds_that_move_all_launches_alike_are_no_drift() -> None:
    generator = random.Random(11)
    clear = 0
    for _ in range(100):
        moves = [generator.gauss(0, 0.02) for _ in range(12)]
        rows = [
            [
                Launch(at=at, round=at, figure=math.exp(generator.gauss(moves[at], 0.02)))
                for at in range(12)
            ]
            for _ in range(12)
        ]
        drift = drift_of(rows)
        assert drift is not None
        clear += drift.is_clear
    assert clear <= 3


def test_a_small_run_has_no_typical_scatter() -> None:
    logs = [[0.0, 0.1]] * LEAST_FREEDOM
    assert typical_scatter(logs[1:]) == 0
    assert typical_scatter(logs) > 0.05
    assert typical_scatter([[0.0, 0.0]] * LEAST_FREEDOM) == 0.002


def made(generator: random.Random, rows: int, launches: int, drift: float) -> list[list[Launch]]:
    return [
        [
            Launch(at=at, round=at, figure=(1 + row) * (1 + drift * at / (launches - 1)) * figure)
            for at, figure in enumerate(steady(generator, launches))
        ]
        for row in range(rows)
    ]


def test_a_drift_is_the_change_from_first_to_last() -> None:
    generator = random.Random(4)
    drift = drift_of(made(generator, 24, 5, -0.06))
    assert drift is not None
    assert drift.change == pytest.approx(-0.06, abs=0.015)
    assert drift.is_clear
    exact = drift_of(timed([100, 90, 81]).values())
    assert exact is None  # one row of three cannot tell noise from drift
    exact = drift_of(timed([100 * 0.9**at for at in range(9)]).values())
    assert exact is not None
    assert exact.change == pytest.approx(0.9**8 - 1)


def test_noise_is_no_drift() -> None:
    generator = random.Random(5)
    found = [drift_of(made(generator, 12, 4, 0.0)) for _ in range(500)]
    assert sum(one is not None and one.is_clear for one in found) <= 3
    assert drift_of([]) is None
    assert drift_of([[Launch(at=0, round=0, figure=1.0)]]) is None


def test_a_drift_too_small_to_matter_is_not_told() -> None:
    generator = random.Random(6)
    drift = drift_of(made(generator, 200, 20, -0.005))
    assert drift is not None
    assert drift.chance < 0.01
    assert not drift.is_clear


def test_an_upheaval_is_told_and_not_taken_out() -> None:
    generator = random.Random(4)
    rows = {str(number): row for number, row in enumerate(made(generator, 24, 5, -0.4))}
    drift = drift_of(rows.values())
    assert drift is not None
    assert drift.is_clear
    assert not drift.is_taken_out
    assert counted(rows)["3"] == pytest.approx([launch.figure for launch in rows["3"]])
