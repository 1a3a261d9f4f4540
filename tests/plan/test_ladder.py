from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from bench.analyze.settings import PLAIN, WITHIN
from bench.errors import SuiteError
from bench.plan.case import PlannedCase
from bench.plan.ladder import RUNG_SETTINGS
from bench.plan.matrix import expand
from bench.plan.suite import parse_suite
from tests.fakes import TWO_CORES

LADDER = """\
    ladder:
      - precision: bf16-amp
      - {accumulation_steps: 4}
      - options: {bucket_cap_mb: 100}
      - {optimizer_kernels: foreach, options: {static_graph: true}}
"""
BLOCK = """\
matrix:
  - workloads: [transformer:tiny]
    strategies: [ddp]
    world_sizes: [2]
"""


def plan(text: str, only: str | None = None) -> Sequence[PlannedCase]:
    return expand(parse_suite(text, source="my.yaml"), TWO_CORES, only=only)


def test_each_rung_keeps_what_those_below_it_have_added() -> None:
    planned = plan(BLOCK + LADDER)
    cases = [one.case for one in planned]
    assert [
        (c.precision, c.accumulation_steps, c.label, c.optimizer_kernels, c.global_batch)
        for c in cases
    ] == [
        ("fp32", 1, "ddp", "auto", 8),
        ("bf16-amp", 1, "ddp", "auto", 8),
        ("bf16-amp", 4, "ddp", "auto", 32),
        ("bf16-amp", 4, "ddp(bucket_cap_mb=100)", "auto", 32),
        ("bf16-amp", 4, "ddp(bucket_cap_mb=100, static_graph=true)", "foreach", 32),
    ]
    assert [one.rung_below for one in planned] == [None, *(case.id for case in cases[:-1])]


def test_rungs_are_ordinary_cases() -> None:
    """With the ids that they would have without a ladder, and planned once."""
    alone = plan(BLOCK + "    precision: bf16-amp\n    accumulation_steps: 4\n")
    rungs = {one.case.id: one.rung_below for one in plan(BLOCK + LADDER)}
    assert alone[0].case.id in rungs
    again = plan(BLOCK + LADDER + BLOCK.removeprefix("matrix:\n") + "    precision: bf16-amp\n")
    assert [one.case.id for one in again] == [*rungs]
    first = BLOCK + "    precision: bf16-amp\n" + BLOCK.removeprefix("matrix:\n") + LADDER
    assert {one.case.id: one.rung_below for one in plan(first)} == rungs


def test_each_workload_strategy_and_size_has_a_ladder_of_its_own() -> None:
    text = """\
matrix:
  - workloads: [transformer:tiny, resnet152:tiny]
    strategies: [ddp, fsdp]
    world_sizes: [1, 2]
    ladder: [precision: bf16-amp, accumulation_steps: 2]
"""
    planned = plan(text)
    assert len(planned) == 2 * 2 * 2 * 3
    below = {one.case.id: one.rung_below for one in planned}
    for one in planned:
        lower = next((other for other in planned if other.case.id == one.rung_below), None)
        if lower is not None:
            assert (lower.case.strategy, lower.case.world_size, lower.case.workload) == (
                one.case.strategy,
                one.case.world_size,
                one.case.workload,
            )
    assert sum(rung is None for rung in below.values()) == 8


def test_a_twin_is_no_rung() -> None:
    planned = plan(BLOCK + "    twins: true\n    ladder: [precision: bf16-amp]\n")
    assert [(one.case.twin, one.rung_below is None) for one in planned] == [
        (False, True),
        (True, True),
        (False, False),
        (True, True),
    ]


def test_a_plan_with_rungs_survives_its_file() -> None:
    planned = plan(BLOCK + LADDER)
    again = msgspec.json.decode(msgspec.json.encode(planned), type=list[PlannedCase])
    assert [one.rung_below for one in again] == [one.rung_below for one in planned]


@pytest.mark.parametrize(
    ("ladder", "message"),
    [
        ("[]", "matrix[0].ladder: is empty: there is nothing to run"),
        ("{precision: bf16-amp}", "matrix[0].ladder: must be a list, not a mapping"),
        ("[{}]", "matrix[0].ladder[0]: changes nothing"),
        ("[launches: 3]", "matrix[0].ladder[0]: unknown key 'launches'"),
        ("[precision: fp23]", "matrix[0].ladder[0].precision: invalid value 'fp23'"),
        (
            "[accumulation_steps: [2, 4]]",
            "matrix[0].ladder[0].accumulation_steps: a rung has one value of each setting",
        ),
        (
            "[env: {NCCL_ALGO: [x, y]}]",
            "matrix[0].ladder[0].env: a rung has one value of each setting",
        ),
        ("[options: 3]", "matrix[0].ladder[0].options: must be a mapping"),
        (
            "[{precision: bf16-amp, options: {bucket_cap: 3}}]",
            "matrix[0].ladder[0].options: ddp has no option 'bucket_cap'; did you mean",
        ),
        ("[options: {bucket_cap_mb: big}]", "matrix[0].ladder[0].options.bucket_cap_mb: Expected"),
        ("[precision: fp32]", "matrix[0].ladder[0]: changes nothing of transformer-tiny-ddp-cpu2"),
    ],
)
def test_a_mistake_in_a_ladder_is_named(ladder: str, message: str) -> None:
    with pytest.raises(SuiteError) as caught:
        plan(BLOCK + f"    ladder: {ladder}\n")
    assert str(caught.value).startswith(f"my.yaml: {message}")


def test_a_case_stands_on_one_rung_only() -> None:
    other = BLOCK.removeprefix("matrix:\n") + "    ladder: [%s]\n"
    text = BLOCK + "    ladder: [precision: bf16-amp, accumulation_steps: 2]\n"
    with pytest.raises(SuiteError, match=r"matrix\[1\]: plans .* as a rung of two ladders"):
        plan(text + other % "accumulation_steps: 2, precision: bf16-amp")
    assert len(plan(text + other % "precision: bf16-amp, optimizer_kernels: foreach")) == 4


def test_a_ladder_counts_before_it_is_made() -> None:
    rungs = ", ".join(["precision: bf16-amp", "precision: fp32"] * 10)
    axes = f"    seed: {list(range(9_000))}\n    ladder: [{rungs}]\n"
    with pytest.raises(SuiteError, match="189,000 cases, more than"):
        plan(BLOCK + axes)


def test_rungs_may_change_what_tables_of_settings_compare() -> None:
    # A source with its options is told by its label.
    assert {*PLAIN, *WITHIN} - {"data_label"} == RUNG_SETTINGS - {"data"}


def test_a_filter_leaves_no_gap_in_a_ladder() -> None:
    whole = plan(BLOCK + LADDER)
    for text, only in (
        (BLOCK + "    filter: accumulation_steps == 1 or label != ddp\n" + LADDER, None),
        (BLOCK + LADDER, "accumulation_steps == 1 or label != ddp"),
    ):
        left = plan(text, only)
        assert [one.case.id for one in left] == [whole[index].case.id for index in (0, 1, 3, 4)]
        assert [one.rung_below for one in left] == [
            None,
            *(one.case.id for one in left[:-1]),
        ]
    (alone,) = plan(BLOCK + LADDER, "optimizer_kernels == foreach")
    assert alone.rung_below is None


def test_a_ladder_does_not_come_back() -> None:
    text = BLOCK + "    ladder: [{precision: bf16-amp}, {precision: fp32}]\n"
    with pytest.raises(SuiteError, match=r"ladder\[1\]: comes back to .* been at before"):
        plan(text)
