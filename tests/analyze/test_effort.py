from __future__ import annotations

import random

import pytest

from bench.analyze.effort import cases_in_need, relative_width
from bench.analyze.launches import Launch
from bench.analyze.stats import Estimate
from bench.plan.case import Effort


def timed(rows: dict[str, list[float]]) -> dict[str, list[Launch]]:
    return {
        key: [Launch(at=at, round=at, figure=figure) for at, figure in enumerate(row)]
        for key, row in rows.items()
    }


def test_the_widest_come_first_and_the_narrow_not_at_all() -> None:
    figures = {
        "quiet": [100.0, 100.1, 100.2],
        "loud": [100.0, 120.0, 140.0],
        "between": [100.0, 105.0, 110.0],
    }
    efforts = dict.fromkeys(figures, Effort(launch_interval=0.05))
    assert cases_in_need(timed(figures), efforts) == ["loud", "between"]


def test_what_is_asked_counts_and_not_the_width_alone() -> None:
    figures = {"loud": [100.0, 120.0, 140.0], "strict": [100.0, 101.0, 102.0]}
    efforts = {"loud": Effort(launch_interval=0.4), "strict": Effort(launch_interval=0.001)}
    assert cases_in_need(timed(figures), efforts) == ["strict", "loud"]


@pytest.mark.parametrize(
    ("launches", "most", "expected"), [(1, 20, []), (3, 3, []), (3, 4, ["a"]), (4, 4, [])]
)
def test_one_launch_tells_nothing_and_the_most_is_the_most(
    launches: int, most: int, expected: list[str]
) -> None:
    figures = {"a": [100.0, 150.0, 200.0, 120.0][:launches]}
    assert cases_in_need(timed(figures), {"a": Effort(max_launches=most)}) == expected


def test_cases_that_may_have_nothing_more_still_say_what_noise_is() -> None:
    generator = random.Random(0)
    figures = {str(i): [generator.gauss(100, 0.3) for _ in range(3)] for i in range(20)}
    # Alone, three launches that happen to lie 1 % apart are 3 % uncertain.
    figures["own"] = [99.5, 100.0, 100.5]
    own = {"own": Effort(launch_interval=0.01)}
    assert cases_in_need(timed({"own": figures["own"]}), own) == ["own"]
    assert cases_in_need(timed(figures), own) == []


def test_a_width_is_relative_to_its_figure() -> None:
    assert relative_width(Estimate(value=50, low=45, high=55, launches=3)) == pytest.approx(0.1)
    assert relative_width(Estimate(value=50, launches=1)) is None
