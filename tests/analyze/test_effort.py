from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from bench.analyze.effort import cases_in_need, further_s, relative_width, too_wide
from bench.analyze.launches import Launch
from bench.analyze.stats import Estimate
from bench.plan.case import Case, Effort
from bench.records.record import Parity, Record
from tests.analyze.test_scaling import PAIR, SINGLE, parity, timing


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
    assert too_wide(timed(figures), efforts) == ["loud", "between"]


def test_what_is_asked_counts_and_not_the_width_alone() -> None:
    figures = {"loud": [100.0, 120.0, 140.0], "strict": [100.0, 101.0, 102.0]}
    efforts = {"loud": Effort(launch_interval=0.4), "strict": Effort(launch_interval=0.001)}
    assert too_wide(timed(figures), efforts) == ["strict", "loud"]


@pytest.mark.parametrize(
    ("launches", "most", "expected"), [(1, 20, []), (3, 3, []), (3, 4, ["a"]), (4, 4, [])]
)
def test_one_launch_tells_nothing_and_the_most_is_the_most(
    launches: int, most: int, expected: list[str]
) -> None:
    figures = {"a": [100.0, 150.0, 200.0, 120.0][:launches]}
    assert too_wide(timed(figures), {"a": Effort(max_launches=most)}) == expected


def test_cases_that_may_have_nothing_more_still_say_what_noise_is() -> None:
    generator = random.Random(0)
    figures = {str(i): [generator.gauss(100, 0.3) for _ in range(3)] for i in range(20)}
    # Alone, three launches that happen to lie 1 % apart are 3 % uncertain.
    figures["own"] = [99.5, 100.0, 100.5]
    own = {"own": Effort(launch_interval=0.01)}
    assert too_wide(timed({"own": figures["own"]}), own) == ["own"]
    assert too_wide(timed(figures), own) == []


def test_a_width_is_relative_to_its_figure() -> None:
    assert relative_width(Estimate(value=50, low=45, high=55, launches=3)) == pytest.approx(0.1)
    assert relative_width(Estimate(value=50, launches=1)) is None


def repeated(case: Case, *rates: float, **changes: Any) -> list[Record]:
    return [timing(case, rate, launch, **changes) for launch, rate in enumerate(rates)]


def test_what_nobody_compares_gets_no_more_launches() -> None:
    wide = (100.0, 130.0, 80.0)
    efforts = {PAIR.id: Effort(), SINGLE.id: Effort()}
    assert cases_in_need(repeated(PAIR, *wide), efforts) == [PAIR.id]
    for flag in ("oversubscribed", "no_warmup", "ranks_differ", "profiler_on"):
        assert cases_in_need(repeated(PAIR, *wide, flags=[flag]), efforts) == []
    wrong = parity(PAIR, Parity(verdict="failed"))
    assert cases_in_need([*repeated(PAIR, *wide), wrong], efforts) == []
    failed = msgspec.structs.replace(
        timing(PAIR, 1, 3), status="failed", timing=None, throughput=None
    )
    assert cases_in_need([*repeated(PAIR, *wide), failed], efforts) == []
    # The pass for memory may fail for reasons of its own.
    other = msgspec.structs.replace(failed, pass_="memory")
    assert cases_in_need([*repeated(PAIR, *wide), other], efforts) == [PAIR.id]


def test_only_launches_beyond_the_plan_count_against_the_budget() -> None:
    records = [timing(SINGLE, 1, launch, elapsed_s=2.0) for launch in range(5)]
    records.append(timing(SINGLE, 1, 5, elapsed_s=1.0, restart_s=4.0))
    assert further_s(records, {SINGLE.id: 3}) == pytest.approx(2 * 2 + 1 + 4)
    assert further_s(records, {}) == 0
    assert further_s([timing(SINGLE, 1, 5)], {SINGLE.id: 3}) == 0  # of an older version
