"""Which of several ranks that failed was the first with a fault of its own.

One rank that dies takes the others with it: they lose their connections, or are ended. What they
say is an echo, and the cause only where there is no other.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence

from bench.errors import plural
from bench.records.record import Fault
from bench.run.handover import Failure, RankOutcome
from bench.run.stacks import is_waiting

ECHO = re.compile(
    r"connection (closed|reset|refused|aborted)|connection was likely closed|closed by peer"
    r"|broken pipe|socket closed|timed out waiting|recvBytes|sendBytes|got 0 bytes|SIGTERM"
    r"|ncclRemoteError|remote process exit|communicator was aborted|NCCL watchdog"
    r"|watchdog thread terminated with exception: (?!.*CUDA error)|gloo/transport",
    re.IGNORECASE,
)
"""What a healthy rank says when another one has died, over gloo and over NCCL, whose watchdog
aborts the process."""
TRACEBACK_LINES = 8


def is_echo(failure: Failure) -> bool:
    """Whether a failure is only the echo of another rank's end."""
    return failure.is_echo or ECHO.search(failure.reason) is not None


def find_culprit(outcomes: Sequence[RankOutcome]) -> RankOutcome | None:
    """The rank that failed first by its own fault; None when none failed.

    Before one that stood still, which is ended from outside, comes one that says what is wrong. An
    abort without a reason may be a backend's or a broken heap's: it comes behind what is a rank's
    own, and before what is an echo.
    """
    failed = [outcome for outcome in outcomes if outcome.failure is not None]

    def order(outcome: RankOutcome) -> tuple[bool, bool, bool, float]:
        failure = outcome.failure
        assert failure is not None
        at_s = float("inf") if failure.at_s is None else failure.at_s
        is_abort = "SIGABRT" in failure.reason
        return is_echo(failure), is_abort, failure.status == "timeout", at_s

    first = min(failed, key=order, default=None)
    if first is None or first.failure is None:
        return None
    if first.failure.status == "timeout":
        return find_stalled(outcomes) or first
    return first


def find_stalled(outcomes: Sequence[RankOutcome]) -> RankOutcome | None:
    """Of ranks that were ended because they stood still, the one that held the others up.

    It is the one whose stack shows it doing something else than waiting, or that has completed
    fewer steps; None where neither tells.
    """
    stalled = [one for one in outcomes if one.failure and one.failure.status == "timeout"]
    if len(stalled) == 1:
        return stalled[0]
    busy = [one for one in stalled if is_waiting(one.stack) is False]
    if len(busy) == 1:
        return busy[0]
    steps = sorted((-1 if one.step is None else one.step, one.rank) for one in busy or stalled)
    if len(steps) > 1 and steps[0][0] < steps[1][0]:
        return next(one for one in stalled if one.rank == steps[0][1])
    return None


def teardown_exits(outcomes: Sequence[RankOutcome]) -> dict[str, int]:
    """Exit codes of the ranks that failed after they had handed their outcome over.

    The launcher ends the others with SIGTERM when one has failed.
    """
    codes = {str(one.rank): one.exit_code for one in outcomes if one.exit_code and not one.failure}
    own = {rank: code for rank, code in codes.items() if code != -signal.SIGTERM}
    return own or codes


def reason_of(culprit: RankOutcome, outcomes: Sequence[RankOutcome]) -> str:
    """One sentence: where, and what."""
    failure = culprit.failure
    assert failure is not None
    if failure.is_of_launch:
        return failure.reason
    if len(outcomes) == 1:
        return f"in {culprit.phase}: {failure.reason}"
    if _is_unknown(culprit, outcomes):
        stalled = [one for one in outcomes if one.failure is not None]
        return (
            f"{plural(len(stalled), 'rank')}, in {culprit.phase}: {failure.reason}; which of them"
            " held the others up is not known"
        )
    host = "" if culprit.host is None else f" on {culprit.host}"
    reason = f"rank {culprit.rank} of {len(outcomes)}{host}, in {culprit.phase}: {failure.reason}"
    if is_echo(failure):  # of what has no better words elsewhere, so that all of them are needed
        others = [one for one in outcomes if one.failure is not None and one is not culprit]
        reason += "".join(f"; rank {o.rank}: {o.failure.reason}" for o in others if o.failure)
    return reason


def fault_of(culprit: RankOutcome, outcomes: Sequence[RankOutcome]) -> Fault:
    """The reason, taken apart."""
    failure = culprit.failure
    assert failure is not None
    return Fault(
        rank=None if _is_unknown(culprit, outcomes) else culprit.rank,
        host=culprit.host if failure.is_of_launch or not _is_unknown(culprit, outcomes) else None,
        phase=culprit.phase,
        step=culprit.step,
        exception=failure.exception,
        signal=failure.signal,
        exit_code=failure.exit_code,
        traceback=failure.traceback or culprit.stack or culprit.log_tail[-TRACEBACK_LINES:],
    )


def _is_unknown(culprit: RankOutcome, outcomes: Sequence[RankOutcome]) -> bool:
    failure = culprit.failure
    assert failure is not None
    is_timeout = failure.status == "timeout"
    return failure.is_of_launch or (is_timeout and find_stalled(outcomes) is None)
