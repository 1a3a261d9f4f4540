"""What DDP's settings send, when, and that figures are of their steady state: real processes."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from bench.plan.case import Case
from bench.records.record import CollectiveCost, Communication, Record
from bench.run.launch import Launcher
from bench.run.outcome import to_record
from bench.strategies import ddp
from tests.fakes import SHORT
from tests.run.test_passes import by_operation, parameter_bytes, run
from tests.strategies.test_contract import planned_case
from workloads.base import Facts


def case_of(options: dict[str, Any], **settings: Any) -> Case:
    case = planned_case("transformer:tiny", "ddp", 2, **settings)
    return msgspec.structs.replace(case, options=case.options | {"bucket_cap_mb": 0.05} | options)


def communicate(launcher: Launcher, options: dict[str, Any], **settings: Any) -> Communication:
    record, _ = run(launcher, case_of(options, **settings), "communication")
    assert record.communication is not None
    return record.communication


def reduced(found: Communication) -> CollectiveCost:
    """All there is but all-reduces would be a surprise."""
    (one,) = by_operation(found).values()
    assert one.op == "all_reduce"
    return one


def buckets(found: Communication) -> int:
    assert found.bucket_bytes is not None
    assert sum(found.bucket_bytes) == parameter_bytes()
    assert len(found.bucket_bytes) > 3
    return len(found.bucket_bytes)


@pytest.mark.parametrize("options", [{}, {"static_graph": True}])
def test_a_step_has_one_round_of_all_reduces_however_many_micro_steps(
    launcher: Launcher, options: dict[str, Any]
) -> None:
    found = communicate(launcher, options, accumulation_steps=3)
    assert reduced(found).calls == buckets(found)  # as with one micro-step
    assert reduced(found).payload_bytes == parameter_bytes()


@pytest.mark.parametrize("hook", ["fp16", "bf16"])
def test_a_halving_hook_sends_half_the_bytes_in_as_many_messages(
    launcher: Launcher, hook: str
) -> None:
    found = communicate(launcher, {"comm_hook": hook})
    assert reduced(found).calls == buckets(found)
    assert reduced(found).payload_bytes == parameter_bytes() // 2


def test_powersgd_sends_three_small_messages_a_bucket(launcher: Launcher) -> None:
    found = communicate(launcher, {"comm_hook": "powersgd", "powersgd_start": 9})
    reduce = reduced(found)
    assert reduce.calls == 3 * buckets(found)
    assert reduce.payload_bytes is not None
    assert reduce.payload_bytes < 0.2 * parameter_bytes()


def test_the_search_for_unused_parameters_is_one_small_message_more(launcher: Launcher) -> None:
    found = communicate(launcher, {"find_unused_parameters": True})
    reduce = reduced(found)
    assert reduce.calls == buckets(found) + 1
    assert reduce.payload_bytes is not None
    assert 0 < reduce.payload_bytes - parameter_bytes() < 1000


def test_post_local_sgd_sends_all_parameters_once_a_period(launcher: Launcher) -> None:
    found = communicate(launcher, {"local_sgd_period": 3})
    reduce = reduced(found)
    assert reduce.calls == pytest.approx(1 / 3)
    assert reduce.payload_bytes == parameter_bytes() // 3
    # It synchronises in its optimizer, which pairs of blocks leave out.
    assert found.sync_pairs_s is None
    assert found.exposed_s is not None


def timed(launcher: Launcher, options: dict[str, Any]) -> Record:
    effort = msgspec.structs.replace(SHORT, warmup_steps=2, timeout_s=200)
    assignment, outcomes = launcher.launch_case(
        case_of(options), effort, "timing", launch=0, processes=2
    )
    record = to_record(assignment, outcomes, run_id="r", environment="e", units=("token", 32))
    assert record.status == "ok", record.reason
    return record


def test_a_window_is_of_whole_periods_and_ends_with_equal_ranks(launcher: Launcher) -> None:
    record = timed(launcher, {"local_sgd_period": 5, "local_sgd_start": 3})
    assert record.timing is not None
    # 3 to settle, 1 of its own kind, 5 of a pilot: and so the 9th is one with an average.
    assert [len(one) for one in record.timing.warmup_step_s] == [8, 8]
    for steps in record.timing.step_s:
        assert len(steps) % 5 == 0
    assert "ranks_differ" not in record.flags
    assert "no_warmup" not in record.flags


def test_a_window_begins_when_powersgd_compresses(launcher: Launcher) -> None:
    record = timed(launcher, {"comm_hook": "powersgd", "powersgd_start": 6})
    assert record.timing is not None
    assert [len(one) for one in record.timing.warmup_step_s] == [10, 10]  # and the first one
    assert record.flags == []


def test_memory_of_post_local_sgd_is_of_a_whole_period(launcher: Launcher) -> None:
    case = case_of({"local_sgd_period": 7, "local_sgd_start": 50})
    record, outcomes = run(launcher, case, "memory")
    if "allocations_drift" in record.flags:  # gloo frees on threads of its own, at times late
        record, outcomes = run(launcher, case, "memory")
    assert record.memory is not None
    for outcome, peak in zip(outcomes, record.memory.peak_allocated_bytes, strict=True):
        assert outcome.allocations is not None
        assert outcome.step is not None
        assert outcome.step < 10  # few steps show it
        before = outcome.allocations.before[0]
        held = sum(outcome.held[0].values()) + parameter_bytes()  # DDP's buckets
        assert held < before < held + 0.3 * parameter_bytes()
        assert peak is not None
        assert peak > before


def test_no_tensor_memory_is_told_where_a_hook_allocates_unseen(launcher: Launcher) -> None:
    case = case_of({"comm_hook": "powersgd", "powersgd_start": 50})
    assignment, outcomes = launcher.launch_case(
        case, msgspec.structs.replace(SHORT, timeout_s=200), "memory", launch=0, processes=2
    )
    record = to_record(
        assignment,
        outcomes,
        run_id="r",
        environment="e",
        units=("token", 32),
        flags=ddp.flags(Facts(unit="token"), case),
    )
    assert record.status == "ok", record.reason
    assert record.memory is not None
    assert record.memory.peak_allocated_bytes == [None, None]
    assert "allocations_unseen" in record.flags
    for outcome in outcomes:
        assert outcome.step is not None
        assert outcome.step < 10
