from __future__ import annotations

from typing import Any

import msgspec
import pytest

from bench.analyze.ranking import Ranking, exposed_share, rankings, wait_share
from bench.analyze.rows import Row, noise_among
from bench.analyze.scaling import rows_of
from bench.analyze.stats import noise_of
from bench.plan.case import Case, identify
from bench.records.record import Communication, Parity, Record
from tests.analyze.test_scaling import launches
from tests.fakes import make_case


def row(strategy: str, *rates: float, flags: tuple[str, ...] = ()) -> Row:
    (found,) = rows_of([], launches(make_case(strategy=strategy, world_size=2), *rates))
    return msgspec.structs.replace(found, flags=[*flags])


FAST, ALIKE = row("ddp", 200, 201, 202), row("zero", 199, 200.5, 202)
SLOW = row("fsdp", 99, 100, 101)


def ranking(rows: list[Row]) -> Ranking:
    (found,) = rankings(rows)
    return found


def changes(found: Ranking) -> list[tuple[str, float]]:
    return [(one.case.label, round(change, 1)) for one, change in found.behind]


def test_what_noise_explains_is_level_and_the_rest_is_behind() -> None:
    found = ranking([SLOW, ALIKE, FAST])
    assert found.best is FAST
    assert found.level == [ALIKE]
    assert changes(found) == [("fsdp", -0.5)]


def test_one_launch_cannot_be_told_from_the_best() -> None:
    single = row("fsdp", 20)
    assert ranking([FAST, single]).level == [single]


@pytest.mark.parametrize(
    "way", [{"precision": "bf16-amp"}, {"compile": "default"}, {"accumulation_steps": 4}]
)
def test_what_tables_of_settings_compare_is_not_ranked(way: dict[str, Any]) -> None:
    case = make_case(strategy="ddp", world_size=2, **way)
    (other,) = rows_of([], launches(case, 400, 401, 402))
    assert [found.best for found in rankings([FAST, other, SLOW])] == [FAST, other]
    assert [found.behind for found in rankings([FAST, other])] == [[], []]


@pytest.mark.parametrize("flag", ["oversubscribed", "ranks_differ", "reference_implementation"])
def test_what_cannot_be_compared_is_no_candidate(flag: str) -> None:
    unfit = row("dp", 400, 401, 402, flags=(flag,))
    assert rankings([unfit]) == []
    assert ranking([unfit, SLOW]).best is SLOW
    assert ranking([unfit, SLOW]).rows == [unfit, SLOW]


def variant(number: int, **fields: Any) -> Case:
    label = f"fsdp(wrap={number})"
    return make_case(strategy="fsdp", world_size=2, options={"wrap": number}, label=label, **fields)


def test_the_first_was_seen_in_the_same_figures() -> None:
    # 3.4 % is clear between two rows, and not of the best of five, of which ten pairs could be it.
    best = launches(variant(0), 100, 101, 99)
    slower = [launches(variant(number), 96.6, 97.6, 95.6) for number in range(1, 5)]
    assert len(ranking(rows_of([], [*best, *slower[0]])).behind) == 1
    five = ranking(rows_of([], [*best, *(one for some in slower for one in some)]))
    assert five.behind == []
    assert len(five.level) == 4


def test_all_tables_of_a_report_count_together() -> None:
    def pair(workload: str) -> list[Record]:
        cases = [variant(number, workload=workload) for number in (0, 1)]
        return [*launches(cases[0], 100, 101, 99), *launches(cases[1], 96.6, 97.6, 95.6)]

    assert len(ranking(rows_of([], pair("transformer"))).behind) == 1
    many = rankings(rows_of([], [one for n in range(9) for one in pair(f"model{n}")]))
    assert len(many) == 9
    # Nine equal changes of p = 0.015 each: none is clear any more.
    assert [found.behind for found in many] == [[]] * 9


def test_what_a_table_compares_too_has_its_verdict_from_there() -> None:
    ddp = make_case(strategy="ddp", world_size=2)
    slower = [launches(variant(number), 96.6, 97.6, 95.6) for number in range(1, 4)]
    rows = rows_of([], [*launches(ddp, 100, 101, 99), *(one for some in slower for one in some)])
    told = [one.peer.verdict for one in rows if one.case.strategy == "fsdp"]
    found = ranking(rows)
    assert found.best.case.label == "ddp"
    assert [one.case.label for one, _ in found.behind] == [
        one.case.label for one, verdict in zip(rows[1:], told, strict=True) if verdict == "slower"
    ]


def test_each_speed_of_the_links_has_a_ranking_of_its_own() -> None:
    def linked(strategy: str, link: str, *rates: float) -> list[Record]:
        case = make_case(strategy=strategy, world_size=2, nodes=2, link=link)
        return launches(case, *rates)

    records = [
        *linked("ddp", "1gbit", 99, 100, 101),
        *linked("fsdp", "1gbit", 49, 50, 51),
        *linked("ddp", "10gbit", 199, 200, 201),
        *linked("fsdp", "10gbit", 299, 300, 301),
        *launches(make_case(strategy="single"), 149, 150, 151),
    ]
    slow, fast = rankings(rows_of([], records))
    assert (slow.best.case.label, changes(slow)) == ("ddp", [("fsdp", -0.5)])
    assert (fast.best.case.label, changes(fast)) == ("fsdp", [("ddp", -0.3)])
    assert slow.with_fewer is not None
    assert slow.with_fewer.case.label == "single"
    assert fast.with_fewer is None


def test_what_trains_otherwise_stands_beside_the_ranking() -> None:
    lossy = msgspec.structs.replace(FAST, parity=Parity(verdict="lossy_by_design"))
    found = ranking([SLOW, lossy])
    assert found.best is SLOW
    assert found.ahead == [lossy]
    # Its interval lies above the other's; by the rule for all differences that is not enough.
    near = msgspec.structs.replace(row("zero", 100, 103, 106), parity=lossy.parity)
    assert ranking([SLOW, near]).ahead == []


def test_repeats_count_in_what_is_known_of_noise() -> None:
    case = make_case(strategy="ddp", world_size=2)
    twin = identify(msgspec.structs.replace(case, twin=True, id=""))
    cases = [case, twin, *map(variant, range(4))]
    rates = [
        (99, 100, 101),
        (90, 100, 110),
        (99, 101, 103),
        (98, 99, 100),
        (97, 99, 101),
        (9, 10, 11),
    ]
    records = [one for c, some in zip(cases, rates, strict=True) for one in launches(c, *some)]
    assert noise_among(rows_of([], records)) == noise_of(rates)


def test_shares_are_of_a_profiled_step() -> None:
    measured = Communication(busy_s=0.3, exposed_s=0.1, wait_s=0.05, profiled_step_s=0.5)
    found = msgspec.structs.replace(SLOW, communication=measured)
    assert exposed_share(found) == pytest.approx(0.2)
    assert wait_share(found) == pytest.approx(0.1)
    assert exposed_share(SLOW) is None
    assert wait_share(SLOW) is None
