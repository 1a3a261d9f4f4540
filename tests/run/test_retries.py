from __future__ import annotations

from collections.abc import Sequence

import pytest

from bench.run.handover import Failure, RankOutcome
from bench.run.retries import PAUSES_S, Launched, launch_with_retries, transient_reason
from tests.run.test_outcome import assignment, outcome

REFUSED = "RuntimeError: Connection refused"


def failed(rank: int, reason: str, joined_s: float | None = None) -> RankOutcome:
    failure = Failure(status="failed", reason=reason, at_s=1.0, exception="RuntimeError")
    return outcome(rank, failure=failure, joined_s=joined_s)


class Launches:
    """Answers one after the other."""

    def __init__(self, *answers: Exception | Sequence[RankOutcome]) -> None:
        self.answers = list(answers)
        self.retries: list[tuple[str, ...]] = []
        self.pauses: list[float] = []

    def __call__(self, retries: tuple[str, ...]) -> Launched:
        self.retries.append(retries)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return assignment(), tuple(answer)

    def run(self) -> Launched:
        return launch_with_retries(self, self.pauses.append)


def test_a_start_that_fails_in_passing_is_tried_twice_more() -> None:
    good = [outcome(0)]
    launches = Launches([failed(0, REFUSED)], OSError("Address already in use"), good)
    assert launches.run()[1] == tuple(good)
    reasons = (REFUSED, "OSError: Address already in use")
    assert launches.retries == [(), reasons[:1], reasons]
    assert launches.pauses == list(PAUSES_S)


def test_after_that_it_has_failed() -> None:
    launches = Launches(*[[failed(0, REFUSED)]] * 3)
    assert launches.run()[1][0].failure is not None
    launches = Launches(*[ConnectionRefusedError("connection refused")] * 3)
    with pytest.raises(ConnectionRefusedError):
        launches.run()


@pytest.mark.parametrize(
    "outcomes",
    [
        [outcome(0)],
        [failed(0, "ValueError: no")],
        [failed(0, REFUSED), failed(1, REFUSED, joined_s=5.0)],
        # Whose peer was killed, that only echoes it.
        [
            failed(0, REFUSED),
            outcome(
                1,
                joined_s=None,
                failure=Failure(status="failed", reason="ended by SIGKILL", signal="SIGKILL"),
            ),
        ],
        [outcome(0, joined_s=None, failure=Failure(status="timeout", reason="timed out"))],
    ],
)
def test_nothing_else_is_run_again(outcomes: list[RankOutcome]) -> None:
    assert transient_reason(outcomes) is None
    launches = Launches(outcomes)
    launches.run()
    assert launches.pauses == []


def test_a_fault_of_our_own_is_not_tried_again() -> None:
    launches = Launches(ValueError("no"))
    with pytest.raises(ValueError, match="no"):
        launches.run()
    assert launches.pauses == []
