from __future__ import annotations

import signal
import socket
import statistics
import threading
import time
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from bench.plan.case import Case, Effort
from bench.run.culprit import find_culprit
from bench.run.handover import Job, RankOutcome
from bench.run.launch import Launcher
from bench.run.outcome import to_record
from bench.run.outcome_timing import samples_per_s
from tests.fakes import SHORT, make_case


def launch(
    launcher: Launcher, case: Case, job: Job = "timing", effort: Effort = SHORT
) -> Sequence[RankOutcome]:
    _, outcomes = launcher.launch_case(case, effort, job, launch=0, processes=case.world_size)
    return outcomes


def faulty(name: str, **changes: Any) -> Case:
    return make_case(strategy=f"tests.fakes:{name}", world_size=2, **changes)


def test_two_ranks_train_and_hand_over(launcher: Launcher) -> None:
    ddp_options = {
        "bucket_cap_mb": None,
        "static_graph": False,
        "gradient_as_bucket_view": False,
    }
    case = make_case(strategy="ddp", options=ddp_options, world_size=2)
    outcomes = launch(launcher, case)
    assert [outcome.failure for outcome in outcomes] == [None, None]
    for rank, outcome in enumerate(outcomes):
        assert outcome.rank == rank
        assert outcome.measured is not None
        assert len(outcome.measured.step_s) >= SHORT.window.min_steps
        assert sum(outcome.measured.step_s) == pytest.approx(outcome.measured.window_s, rel=0.2)
        assert outcome.memory[0].allocated is None
        assert outcome.memory[0].process is not None
    counts = {len(outcome.measured.step_s) for outcome in outcomes if outcome.measured}
    assert len(counts) == 1
    assert outcomes[0].parameter_digest == outcomes[1].parameter_digest
    digests = [digest for outcome in outcomes for digest in outcome.batch_digests]
    assert len(set(digests)) == len(digests) == 6


def test_the_same_seed_gives_the_same_batches(launcher: Launcher) -> None:
    digests = [launch(launcher, make_case())[0].batch_digests for _ in range(2)]
    other = launch(launcher, make_case(seed=1))[0].batch_digests
    assert digests[0] == digests[1]
    assert set(other).isdisjoint(digests[0])


def test_a_sleeping_workload_gives_its_rate(launcher: Launcher) -> None:
    """Within two percent on an idle machine, which ``nox -s limits`` asks for."""
    effort = msgspec.structs.replace(
        SHORT, window=msgspec.structs.replace(SHORT.window, min_steps=20, max_s=2.0)
    )
    outcomes = launch(launcher, faulty("SLEEPING"), effort=effort)
    measured = [outcome.measured for outcome in outcomes if outcome.measured]
    assert len(measured) == 2
    # 8 samples a step over both ranks; rank 1 sleeps 40 ms, rank 0 sleeps 20 ms and waits.
    rate = samples_per_s(8 * len(measured[0].step_s), [one.window_s for one in measured])
    assert 0.9 * 8 / 0.04 < rate <= 8 / 0.04  # no sleep is shorter; some are longer under load
    early, late = (statistics.median(one.step_s) for one in measured)
    assert min(early / 0.02, late / 0.04) >= 1
    assert 8 / late == pytest.approx(8 / 0.04, rel=0.02)  # that of a typical step
    assert late / early == pytest.approx(2, rel=0.1)


def test_a_timing_launch_is_watched(launcher: Launcher) -> None:
    effort = msgspec.structs.replace(
        SHORT, window=msgspec.structs.replace(SHORT.window, min_steps=20, max_s=2.0)
    )
    assignment, outcomes = launcher.launch_case(
        faulty("SLEEPING"), effort, "timing", launch=0, processes=2
    )
    assert "sampler" not in {thread.name for thread in threading.enumerate()}
    record = to_record(assignment, outcomes, run_id="r", environment="e", units=("token", 1))
    conditions = record.conditions
    assert conditions is not None
    assert record.timing is not None
    assert conditions.span_s >= max(record.timing.window_s)
    assert conditions.span_s == pytest.approx(max(record.timing.window_s), rel=0.2)
    host = conditions.host
    for share in (host.others_load, host.steal):
        assert share is None or 0.0 <= share <= 1.0
    assert host.frequency_hz_mean is None or host.frequency_hz_mean > 1e8
    assert host.throttled_s is None or host.throttled_s >= 0.0
    assert conditions.devices == []
    assert record.timing.clock_resolution_s is not None


def test_only_timing_launches_are_watched(launcher: Launcher) -> None:
    (outcome,) = launch(launcher, make_case(), "memory")
    assert outcome.failure is None
    assert outcome.conditions is None


def test_ranks_are_pinned_to_cores_of_their_own(launcher: Launcher) -> None:
    if len(launcher.machine.cores) < 2:
        pytest.skip("this machine has one core")
    outcomes = launch(launcher, faulty("SLEEPING"))
    placements = [outcome.placement for outcome in outcomes if outcome.placement is not None]
    assert [placement.threads for placement in placements] == [1, 1]
    first, second = (placement.cores for placement in placements)
    assert (len(first), len(second)) == (1, 1)
    assert first != second


@pytest.mark.parametrize(
    ("name", "status", "reason"),
    [
        ("RAISE", "failed", "ValueError: deliberate"),
        ("EXIT", "failed", "the process ended with exit code 17 and no result"),
        ("KILL", "failed", "the process was ended by SIGKILL"),
        ("OUT_OF_MEMORY", "out_of_memory", "OutOfMemoryError: CUDA out of memory"),
    ],
)
def test_the_rank_at_fault_is_named(
    launcher: Launcher, name: str, status: str, reason: str
) -> None:
    begin = time.monotonic()
    outcomes = launch(launcher, faulty(name))
    culprit = find_culprit(outcomes)
    assert culprit is not None
    assert culprit.failure is not None
    assert (culprit.rank, culprit.failure.status) == (1, status)
    assert reason in culprit.failure.reason
    assert culprit.phase == "warm-up"
    assert time.monotonic() - begin < 60


def test_log_lines_carry_no_control_characters(launcher: Launcher) -> None:
    outcomes = launch(launcher, faulty("RAISE"))
    tail = "\n".join(outcomes[1].log_tail)
    assert "ValueError: deliberate: red | pipe" in tail
    assert "\x1b" not in tail


def test_a_stuck_launch_ends_at_its_limit_with_the_stacks_of_its_ranks(
    launcher: Launcher,
) -> None:
    begin = time.monotonic()
    outcomes = launch(launcher, faulty("STALL"), effort=msgspec.structs.replace(SHORT, timeout_s=8))
    assert time.monotonic() - begin < 8 + 10
    assert {outcome.failure.status for outcome in outcomes if outcome.failure} == {"timeout"}
    assert "misbehave" in "\n".join(outcomes[1].log_tail)
    assert outcomes[1].phase == "warm-up"


def test_ports_that_others_hold_do_not_matter(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            taken.bind(("127.0.0.1", 29500))
            taken.listen()
        except OSError:
            pass  # somebody else holds it, which is as good
        monkeypatch.setenv("MASTER_PORT", "29500")
        monkeypatch.setenv("MASTER_ADDR", "192.0.2.1")
        outcomes = launch(launcher, faulty("SLEEPING"))
    assert [outcome.failure for outcome in outcomes] == [None, None]


def test_signal_handlers_are_put_back(launcher: Launcher) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    launch(launcher, make_case())
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
