from __future__ import annotations

import msgspec
import pytest

from bench.analyze.rhythm import period_of
from bench.analyze.scaling import rows_of
from bench.plan.case import Case
from bench.plan.registry import all_strategies
from bench.records.record import CollectiveCost, Communication, Record, Timing
from bench.report.notes import notes_of
from tests.analyze.test_scaling import launches, row, timing
from tests.fakes import make_case
from tests.strategies.variants import VARIANTS

LOCAL = make_case(
    strategy="ddp",
    world_size=2,
    options={"local_sgd_period": 8},
    label="ddp(local_sgd_period=8)",
)


def test_the_period_is_the_one_that_each_strategy_trains_in() -> None:
    strategies = all_strategies()
    for name, variants in VARIANTS.items():
        strategy = strategies[name]
        for given in variants:
            options = msgspec.to_builtins(msgspec.convert(given, strategy.options))
            case = make_case(strategy=name, world_size=2, options=options)
            assert period_of(case) == strategy.rhythm(options).period, (name, given)
            # What synchronises in its optimizer, and has no sync cost, is what has a period.
            exactness = strategy.exactness(options)
            assert (period_of(case) > 1) is (exactness.kind == "local")
            assert strategy.has_sync_cost(options) is (
                strategy.can_skip_sync and period_of(case) == 1
            )


def unlike_steps(case: Case) -> list[Record]:
    """Seven steps of 137 ms, and one of 765: 216 ms in the mean."""
    step_s = [0.137] * 7 + [0.768]
    found = Timing(
        launch_s=0.2,
        setup_s=[0.1],
        first_step_s=[1.0],
        warmup_step_s=[[0.2]],
        step_s=[step_s * 12],
        block_steps=8,
        window_s=[sum(step_s) * 12],
        stopped_by="max_s",
    )
    rate = case.global_batch / (sum(step_s) / 8)
    return [timing(case, rate, launch, timing=found) for launch in range(3)]


def profiled(step_s: float, case: Case) -> Record:
    spent = Communication(
        busy_s=0.08,
        exposed_s=0.08,
        profiled_step_s=step_s,
        sync_cost_s=0.0,
        sync_pairs_s=[(0.1, 0.1)] * 8,
        collectives=[
            CollectiveCost(
                op="all_reduce", calls=0.125, payload_bytes=1, wire_bytes_minimum=1, busy_s=0.08
            )
        ],
    )
    return Record(
        run_id="r", launch=0, pass_="communication", case=case, status="ok", environment="e",
        communication=spent,
    )  # fmt: skip


def test_the_mean_stands_beside_the_median_of_unlike_steps() -> None:
    found = row(unlike_steps(LOCAL), LOCAL)
    assert found.step_mean_s == pytest.approx(0.215875)
    assert found.step_median_s == pytest.approx(0.137)


def test_a_profiled_step_is_compared_with_the_mean_one() -> None:
    assert "profile_slowed" not in row([*unlike_steps(LOCAL), profiled(0.25, LOCAL)], LOCAL).flags
    assert "profile_slowed" in row([*unlike_steps(LOCAL), profiled(0.28, LOCAL)], LOCAL).flags


def test_steps_that_synchronise_are_no_second_level_of_a_rhythm() -> None:
    often = msgspec.structs.replace(LOCAL, options={"local_sgd_period": 4})
    for case, flags in ((often, []), (make_case(strategy="ddp", world_size=2), ["bimodal"])):
        records = launches(case, 100, 100, 100)
        assert records[0].timing is not None
        steps = msgspec.structs.replace(records[0].timing, step_s=[[0.1, 0.1, 0.1, 0.5] * 12])
        changed = [msgspec.structs.replace(record, timing=steps) for record in records]
        assert row(changed, case).flags == flags


def test_what_synchronises_in_its_optimizer_has_no_sync_cost() -> None:
    (found,) = rows_of([], [*unlike_steps(LOCAL), profiled(0.21, LOCAL)])
    assert found.sync_cost is None
    assert "communication_contradicts" not in found.flags
    assert notes_of(found, "details") == [
        "not compared with itself: the same on one device was not measured",
        "no sync cost: ranks synchronise in the optimizer, which it leaves out",
    ]


@pytest.mark.parametrize(
    ("strategy", "operation", "note"),
    [
        ("fsdp", "all_gather", "gathers of parameters go on without it"),
        ("zero", "broadcast", "the optimizer, which sends parameters, is left out"),
        ("ddp", "all_reduce", None),
    ],
)  # fmt: skip
def test_what_a_sync_cost_leaves_out_is_said(
    strategy: str, operation: str, note: str | None
) -> None:
    case = make_case(strategy=strategy, world_size=2)
    spent = Communication(
        sync_pairs_s=[(0.3 + i / 100, 0.2) for i in range(6)],
        collectives=[
            CollectiveCost(op=operation, calls=1, payload_bytes=1, wire_bytes_minimum=1, busy_s=0.1)
        ],
    )
    record = msgspec.structs.replace(profiled(0.2, case), communication=spent)
    (found,) = rows_of([], [*launches(case, 99, 100, 101), record])
    notes = [one for one in notes_of(found, "details") if one.startswith("sync cost")]
    assert notes == ([] if note is None else [f"sync cost: of gradients only; {note}"])
