from __future__ import annotations

import msgspec
import pytest

from bench.analyze.ranking import exposed_share, ranking, wait_share
from bench.analyze.rows import Row
from bench.analyze.scaling import rows_of
from bench.records.record import Communication
from tests.analyze.test_scaling import launches
from tests.fakes import make_case


def row(strategy: str, *rates: float, flags: tuple[str, ...] = ()) -> Row:
    (found,) = rows_of([], launches(make_case(strategy=strategy, world_size=2), *rates))
    return msgspec.structs.replace(found, flags=[*flags])


FAST, ALIKE = row("ddp", 200, 201, 202), row("zero", 199, 200.5, 202)
SLOW = row("fsdp", 99, 100, 101)


def test_what_noise_explains_is_level_and_the_rest_is_behind() -> None:
    found = ranking([SLOW, ALIKE, FAST])
    assert found is not None
    assert found.best is FAST
    assert found.level == [ALIKE]
    assert [(one.case.strategy, round(change, 2)) for one, change in found.behind] == [
        ("fsdp", -0.5)
    ]


def test_one_launch_cannot_be_told_from_the_best() -> None:
    single = row("fsdp", 20)
    found = ranking([FAST, single])
    assert found is not None
    assert found.level == [single]


@pytest.mark.parametrize("flag", ["oversubscribed", "ranks_differ", "reference_implementation"])
def test_what_cannot_be_compared_is_no_candidate(flag: str) -> None:
    assert ranking([row("dp", 400, 401, 402, flags=(flag,))]) is None
    found = ranking([row("dp", 400, 401, 402, flags=(flag,)), SLOW])
    assert found is not None
    assert found.best is SLOW


def test_shares_are_of_a_profiled_step() -> None:
    measured = Communication(busy_s=0.3, exposed_s=0.1, wait_s=0.05, profiled_step_s=0.5)
    found = msgspec.structs.replace(SLOW, communication=measured)
    assert exposed_share(found) == pytest.approx(0.2)
    assert wait_share(found) == pytest.approx(0.1)
    assert exposed_share(SLOW) is None
    assert wait_share(SLOW) is None
