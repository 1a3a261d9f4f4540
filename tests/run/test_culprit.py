from __future__ import annotations

from typing import Any

import pytest

from bench.run.culprit import fault_of, find_culprit, reason_of, teardown_exits
from bench.run.ends import SERVER_DIED, Ends, Overdue, explained
from bench.run.handover import Failure, RankOutcome
from bench.run.stacks import is_waiting, main_stack
from tests.run.test_outcome import outcome, record_of

STACKS = """\
Thread 0x00007f01 (most recent call first):
  File "/lib/python3.11/threading.py", line 331 in wait

Current thread 0x00007f02 (most recent call first):
  File "{file}", line 5 in {function}
  File "/home/me/train.py", line 9 in main
"""


@pytest.mark.parametrize(
    ("file", "function", "waiting"),
    [
        ("/torch/distributed/distributed_c10d.py", "all_reduce", True),
        ("/torch/autograd/graph.py", "_engine_run_backward", True),
        ("/torch/cuda/__init__.py", "synchronize", True),
        ("/home/me/model.py", "forward", False),
    ],
)
def test_the_innermost_frame_says_who_waits(file: str, function: str, waiting: bool) -> None:
    stack = main_stack(STACKS.format(file=file, function=function))
    assert len(stack) == 2
    assert function in stack[0]
    assert is_waiting(stack) is waiting


def test_a_log_without_stacks_says_nothing() -> None:
    assert main_stack("Traceback (most recent call last):") == []
    assert is_waiting([]) is None


WAITS = ['File "/torch/distributed/distributed_c10d.py", line 1 in all_reduce']
WORKS = ['File "/home/me/model.py", line 1 in forward']


def stalled(rank: int, stack: list[str], step: int | None) -> RankOutcome:
    failure = Failure(status="timeout", reason="no end")
    return outcome(rank, failure=failure, stack=stack, step=step, phase="window")


@pytest.mark.parametrize(
    ("stacks", "steps", "culprit"),
    [
        ([WAITS, WORKS, WAITS], [5, 5, 5], 1),
        ([WAITS, WAITS, WAITS], [5, 5, 4], 2),
        ([WORKS, WORKS, WAITS], [5, 4, 3], 1),  # among those that work
        ([WAITS, WAITS, WAITS], [None, 1, 1], 0),
        ([WAITS, WAITS, WAITS], [4, 4, 5], None),
        ([[], [], []], [None, None, None], None),
    ],
)
def test_who_held_the_others_up(
    stacks: list[list[str]], steps: list[int | None], culprit: int | None
) -> None:
    ranks = [stalled(rank, *one) for rank, one in enumerate(zip(stacks, steps, strict=True))]
    found = find_culprit(ranks)
    assert found is not None
    assert fault_of(found, ranks).rank == culprit
    said = "which of them held the others up is not known" in reason_of(found, ranks)
    assert said is (culprit is None)


def test_what_says_what_is_wrong_comes_before_what_stood_still() -> None:
    own = outcome(1, failure=Failure(status="failed", reason="ValueError: no", at_s=9.0))
    echo = outcome(2, failure=Failure(status="failed", reason="Broken pipe", at_s=1.0))
    assert find_culprit([stalled(0, WORKS, 1), own, echo]) is own
    killed = outcome(0, failure=Failure(status="failed", reason="ended", is_echo=True))
    assert find_culprit([killed, own]) is own


@pytest.mark.parametrize(
    ("words", "is_own"),
    [
        ("", True),
        (": corrupted size vs. prev_size", True),
        (": [Rank 0] Process group watchdog thread terminated with exception: NCCL error", False),
        (": [Rank 0] Process group watchdog thread terminated with exception: CUDA error", True),
    ],
)
def test_an_abort_comes_before_an_echo_unless_its_watchdog_says_otherwise(
    words: str, is_own: bool
) -> None:
    reason = f"the process was ended by SIGABRT{words}"
    aborted = outcome(1, failure=Failure(status="failed", reason=reason, at_s=2.0))
    other = outcome(0, failure=Failure(status="failed", reason="Broken pipe", at_s=1.0))
    assert find_culprit([other, aborted]) is (aborted if is_own else other)
    own = outcome(0, failure=Failure(status="failed", reason="ValueError: no", at_s=9.0))
    assert find_culprit([own, aborted]) is own


def test_a_watch_that_fails_is_the_reason_and_no_rank() -> None:
    ranks = [
        outcome(rank, failure=ends([-9, -9], [None, None], problem="OSError: no").failure(rank))
        for rank in range(2)
    ]
    found = find_culprit(ranks)
    assert found is not None
    assert reason_of(found, ranks).endswith("the watch over the processes failed: OSError: no")
    assert fault_of(found, ranks).rank is None


def ends(codes: list[int | None], ended_s: list[float | None], **changes: Any) -> Ends:
    return Ends(exit_codes=codes, ended_s=ended_s, **changes)


def test_how_a_process_ended_is_its_reason() -> None:
    mixed = ends([17, -9, -9, None], [3.0, 2.0, None, None])
    first, second, third, fourth = (mixed.failure(rank) for rank in range(4))
    assert (first.reason, first.exit_code) == (
        "the process ended with exit code 17 and no result",
        17,
    )
    assert (second.reason, second.signal, second.at_s) == (
        "the process was ended by SIGKILL",
        "SIGKILL",
        2.0,
    )
    assert third.is_echo
    assert fourth.reason == "the process did not start"
    assert mixed.failure(9).reason == "the process did not start"


def test_the_launch_as_a_whole_is_no_ranks_fault() -> None:
    late = ends([-9], [None], overdue=Overdue(rank=None, spent_s=9.0, limit_s=8.0)).failure(0)
    assert (late.status, late.reason) == (
        "timeout",
        "not finished after 8 s, the limit of a launch",
    )
    dead = ends([255, 255], [1.0, 1.0], server_died=True)
    ranks = [outcome(rank, failure=dead.failure(rank)) for rank in range(2)]
    found = find_culprit(ranks)
    assert found is not None
    assert (reason_of(found, ranks), fault_of(found, ranks).rank) == (SERVER_DIED, None)


def test_last_words_in_a_log_explain_an_exit() -> None:
    failure = ends([1], [1.0]).failure(0)
    told = explained(failure, "Traceback ...\n  File\ntorch.distributed.DistStoreError: gone\n")
    assert told.reason.endswith("no result: torch.distributed.DistStoreError: gone")
    assert told.exception == "DistStoreError"
    assert explained(failure, "ValueError: no\nall is well\n") == failure
    aborted = ends([-6], [1.0]).failure(0)
    assert explained(aborted, "  what():  [enforce] 8 vs 4\n").reason == (
        "the process was ended by SIGABRT: [enforce] 8 vs 4"
    )


def test_an_abort_after_the_hand_over_costs_nothing() -> None:
    first, second = outcome(0, exit_code=-15), outcome(1, exit_code=-6, log_tail=["terminate"])
    record = record_of(first, second)
    assert record.status == "ok"
    assert record.throughput is not None
    assert record.teardown_exit == {"1": -6}
    assert record.log_tail == {"1": ["terminate"]}
    assert teardown_exits([outcome(0, exit_code=-15)]) == {"0": -15}
    assert teardown_exits([outcome(0)]) == {}


def test_a_loss_that_is_no_number_is_flagged() -> None:
    assert record_of(outcome(0), outcome(1, loss_is_finite=False)).flags == ["loss_not_finite"]
    assert record_of(outcome(0), outcome(1, loss_is_finite=True)).flags == []
