"""A small part of ``nox -s statistics``: a change that spoils the intervals is seen at once."""

from __future__ import annotations

import numpy as np

from tests.statistics.coverage import adaptive, fixed
from tests.statistics.noise import DRIFTING, HEAVY, NORMAL, figures
from tests.statistics.recorded import recorded, recorded_false_alarms
from tests.statistics.reports import false_alarms, power


def test_intervals_hold_the_truth() -> None:
    for kind in (NORMAL, HEAVY, DRIFTING):
        tally = fixed(kind, np.random.default_rng(1), count=4, reports=40)
        assert 0.92 <= tally.covered <= 0.995, kind.name
        assert 0.91 <= tally.ratio_covered <= 0.995, kind.name


def test_launching_again_where_intervals_are_wide_does_not_spoil_them() -> None:
    tally = adaptive(NORMAL, np.random.default_rng(1), interval=0.02, reports=30)
    assert tally.covered >= 0.91
    assert 3 < np.mean(tally.counts) < 8


def test_verdicts_find_what_is_there_and_little_else() -> None:
    random = np.random.default_rng(2)

    def draw(rows: int) -> list[list[float]]:
        return figures(NORMAL.draw(random, rows, 4))

    assert max(false_alarms(draw, reports=40)) <= 0.1
    assert max(false_alarms(draw, reports=40, with_twin=False)) <= 0.1
    assert power(draw, change=0.1, reports=30) >= 0.8


def test_recorded_launches_are_there() -> None:
    assert len(recorded()) == 23
    assert {len(row) for row in recorded()} == {20}
    text, _ = recorded_false_alarms(20)
    assert text.count("\n") == 4  # headings, a line, and three numbers of launches
