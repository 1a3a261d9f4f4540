from __future__ import annotations

from typing import Any

import msgspec

from bench.plan.case import Effort, Limits, PlannedCase
from bench.run.changes import changes
from tests.fakes import make_case


def planned(effort: Effort | None = None, **case: Any) -> PlannedCase:
    return PlannedCase(case=make_case(**case), effort=effort or Effort())


ONE, TWO = planned(), planned(strategy="ddp", world_size=2)


def test_equal_plans_have_not_changed() -> None:
    assert changes([ONE, TWO], [TWO, ONE]) == ""


def test_fields_that_changed_are_named_with_their_values() -> None:
    longer = Effort(launches=5, limits=Limits(start_s=9.0))
    assert changes([ONE, TWO], [planned(longer), TWO]) == (
        f"{ONE.case.id}: effort.launches 3 -> 5, effort.limits.start_s 300.0 -> 9.0"
    )


def test_a_case_with_another_id_is_told_from_one_that_is_new() -> None:
    other = planned(seed=7)
    assert changes([ONE], [other]) == f"{ONE.case.id}: case.seed 0 -> 7"
    assert changes([ONE], [ONE, TWO]) == f"{TWO.case.id} not planned then"
    assert changes([ONE, TWO], [ONE]) == f"{TWO.case.id} not planned now"


def test_only_the_first_cases_are_named() -> None:
    before = [planned(seed=seed) for seed in range(6)]
    now = [planned(Effort(launches=1), seed=seed) for seed in range(6)]
    text = changes(before, now)
    assert text.count("effort.launches 3 -> 1") == 3
    assert text.endswith("; 3 more cases likewise")


def test_a_plan_of_before_a_setting_existed_has_its_default() -> None:
    plain = msgspec.to_builtins([ONE])
    del plain[0]["effort"]["limits"]
    assert changes(msgspec.convert(plain, list[PlannedCase]), [ONE]) == ""
