"""Start a launch again whose start failed for a reason that passes; and nothing else.

What has begun to measure is never run again: a figure that took several attempts is another figure.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence

from bench.errors import in_words
from bench.run.culprit import find_culprit
from bench.run.handover import Assignment, RankOutcome

TRANSIENT = re.compile(
    r"address already in use|EADDRINUSE|RendezvousTimeoutError"
    r"|connection (refused|reset|closed|aborted)|connection was likely closed|closed by peer"
    r"|got 0 bytes|broken pipe|timed out",
    re.IGNORECASE,
)
"""A port that somebody else was quicker to take; a peer, or the store, that did not answer."""
PAUSES_S = (1.0, 4.0)
"""Before the second and the third attempt."""

Launched = tuple[Assignment, tuple[RankOutcome, ...]]


def launch_with_retries(
    launch: Callable[[tuple[str, ...]], Launched], pause: Callable[[float], None] = time.sleep
) -> Launched:
    """Launch, and launch again while the start fails for a reason that passes.

    Args:
        launch: takes the reasons why it had to be called again.
        pause: waits so many seconds.
    """
    retries: tuple[str, ...] = ()
    for pause_s in PAUSES_S:
        try:
            launched = launch(retries)
        except Exception as error:
            reason = in_words(error)
            if TRANSIENT.search(reason) is None:
                raise
        else:
            found = transient_reason(launched[1])
            if found is None:
                return launched
            reason = found
        retries = (*retries, reason)
        pause(pause_s)
    return launch(retries)


def transient_reason(outcomes: Sequence[RankOutcome]) -> str | None:
    """Why a launch may be tried again; None for one that has joined, or failed for good.

    A rank that was killed, or that is at fault itself, comes before the echoes of its end, which
    sound like a connection that failed.
    """
    culprit = find_culprit(outcomes)
    if culprit is None or culprit.failure is None or culprit.failure.status != "failed":
        return None
    if any(one.joined_s is not None for one in outcomes) or culprit.failure.exception is None:
        return None
    reason = culprit.failure.reason
    return reason if TRANSIENT.search(reason) else None
