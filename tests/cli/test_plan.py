"""What ``bench plan`` prints."""

from __future__ import annotations

from bench.cli.plan import told_apart
from bench.plan.case import identify
from tests.fakes import make_case


def test_cases_of_one_name_are_told_apart_by_what_differs() -> None:
    cases = [identify(make_case(seed=seed, id="")) for seed in (0, 1)]
    other = identify(make_case(strategy="fsdp", id=""))
    assert told_apart([*cases, other]) == {
        cases[0].id: "   seed 0",
        cases[1].id: "   seed 1",
        other.id: "",
    }
