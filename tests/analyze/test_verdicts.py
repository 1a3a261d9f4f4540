from __future__ import annotations

import math
import random

import msgspec
import pytest

from bench.analyze.rows import Comparison, Row, Twin
from bench.analyze.stats import Estimate
from bench.analyze.verdicts import judged, noise_floor, verdict_of
from tests.fakes import make_case


def ratio(value: float, low: float, high: float) -> Estimate:
    return Estimate(value=value, low=low, high=high, launches=3)


def made(seed: int, chance: float | None, value: float, world_size: int = 2) -> Row:
    estimate = ratio(value, value * 0.99, value * 1.01)
    return Row(
        case=make_case(seed=seed, world_size=world_size, strategy="ddp"),
        status="ok",
        peer=Comparison(ratio=estimate, chance=chance),
    )


def with_pair(row: Row, low: float, high: float) -> Row:
    pair = Twin(comparison=Comparison(ratio=ratio(math.sqrt(low * high), low, high)))
    return Row(case=row.case, status="ok", peer=row.peer, twin=pair)


def words(rows: list[Row]) -> list[str | None]:
    return [row.peer.verdict for row in judged(rows)]


def why(rows: list[Row]) -> str | None:
    return judged(rows)[0].peer.why_unclear


def test_an_interval_that_leaves_out_1_and_is_not_clear_says_why() -> None:
    assert why([made(0, 0.04, 1.1)]) is None
    many = [made(0, 0.04, 1.1), *[made(seed, 0.5, 1.001) for seed in range(1, 10)]]
    assert why(many) == "chance brings about such an interval where 10 are looked at"
    assert judged(many)[1].peer.why_unclear is None  # it holds 1
    pair = with_pair(made(0, 0.001, 1.1), 0.8, 1.25)
    assert why([pair]) == "equal cases, measured twice, may differ as much"


def test_a_verdict_must_hold_among_all_that_were_looked_at() -> None:
    assert words([made(0, 0.04, 1.1)]) == ["faster"]
    assert words([made(0, 0.04, 0.9)]) == ["slower"]
    many = [made(0, 0.04, 1.1), *[made(seed, 0.5, 1.01) for seed in range(1, 10)]]
    assert words(many) == ["no clear difference"] * 10
    # 0.004 x 10 is below 0.05, and nothing else is.
    many[0] = made(0, 0.004, 1.1)
    assert words(many)[:2] == ["faster", "no clear difference"]


def test_speedups_count_among_the_comparisons() -> None:
    row = made(0, 0.03, 1.1)
    both = Row(case=row.case, status="ok", peer=row.peer, speedup=row.peer)
    (found,) = judged([both])  # 2 x 0.03 is above 0.05
    assert found.peer.verdict == found.speedup.verdict == "no clear difference"


@pytest.mark.parametrize("name", ["setting", "rung"])
def test_settings_and_rungs_count_too_but_no_pair_of_rows_twice(name: str) -> None:
    row = made(0, 0.03, 1.1)
    peer = msgspec.structs.replace(row.peer, against="ddp")
    for other, verdict in (("ddp", "faster"), ("fsdp", "no clear difference")):
        also = msgspec.structs.replace(row.peer, against=other)
        (found,) = judged([msgspec.structs.replace(row, peer=peer, **{name: also})])
        assert found.peer.verdict == getattr(found, name).verdict == verdict


def test_what_has_no_interval_gets_no_verdict() -> None:
    (found,) = judged([made(0, None, 1.5)])
    assert found.peer.verdict is None


def test_a_difference_within_that_of_equal_cases_is_none() -> None:
    quiet = [made(0, 1e-9, 1.05), with_pair(made(1, 0.9, 1.0), 0.98, 1.03)]
    assert words(quiet)[0] == "faster"
    loud = [made(0, 1e-9, 1.05), with_pair(made(1, 0.9, 1.0), 0.93, 1.02)]
    assert words(loud)[0] == "no clear difference"


def test_the_floor_is_the_far_end_of_the_pairs_interval() -> None:
    row = with_pair(made(1, 0.9, 1.0), 1 / 1.08, 1.02)
    assert noise_floor([row]) == pytest.approx(0.08)
    assert noise_floor([made(0, 0.5, 1.0)]) is None
    # A pair on as many devices is taken before those on others.
    wide = with_pair(made(2, 0.9, 1.0, world_size=8), 0.8, 1.25)
    assert noise_floor([row, wide], 2) == pytest.approx(0.08)
    assert noise_floor([row, wide], 8) == pytest.approx(0.25)
    assert noise_floor([row, wide], 4) == pytest.approx(0.25)
    missing = Row(case=row.case, status="ok", twin=Twin(comparison=Comparison(reason="failed")))
    assert noise_floor([missing]) is None


def test_another_models_pair_is_no_floor() -> None:
    pair = with_pair(made(1, 0.9, 1.0), 0.8, 1.25)
    other = Row(
        case=make_case(workload="embedding", world_size=2),
        status="ok",
        peer=made(0, 1e-9, 1.1).peer,
    )
    assert words([pair, other])[1] == "faster"


def test_a_slower_row_counts_its_distance_as_a_faster_one_does() -> None:
    assert verdict_of(ratio(1 / 1.1, 0.9, 0.92), 1e-6, 0.099) == "slower"
    assert verdict_of(ratio(1.1, 1.09, 1.11), 1e-6, 0.099) == "faster"
    assert verdict_of(ratio(1.1, 1.09, 1.11), 1e-6, 0.11) == "no clear difference"


def test_equal_rows_give_a_false_alarm_in_few_reports() -> None:
    generator = random.Random(0)
    alarms = 0
    for _ in range(300):
        rows = [made(seed, generator.random(), 1 + generator.gauss(0, 0.1)) for seed in range(24)]
        alarms += set(words(rows)) != {"no clear difference"}
    assert alarms / 300 <= 0.09
