"""Read the stacks that a process writes when it is told to: ``faulthandler``'s format."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

from bench.errors import one_line

CURRENT = "Current thread"
"""Begins the stack of the thread that took the signal, which is the main one."""
FRAME = re.compile(r'\s*File "(?P<file>[^"]*)", line \d+ in (?P<function>\S+)')
FRAMES = 12
WAITING_FILES = ("/torch/distributed/",)
WAITING_FUNCTIONS = frozenset({"synchronize", "_engine_run_backward"})
"""Innermost functions in which a rank waits for its device or its peers. Backward is one of them:
that is where DDP and FSDP wait for gradients."""


def main_stack(log: str) -> list[str]:
    """Innermost frames of the main thread when the process last wrote its stacks; or nothing."""
    _, found, stack = log.rpartition(CURRENT)
    if not found:
        return []
    _, *lines = stack.splitlines()
    frames = itertools.takewhile(FRAME.match, lines)
    return [one_line(frame) for frame in itertools.islice(frames, FRAMES)]


def is_waiting(stack: Sequence[str]) -> bool | None:
    """Whether a thread with that stack waits for others; None without one."""
    innermost = FRAME.match(stack[0]) if stack else None
    if innermost is None:
        return None
    in_library = any(part in innermost["file"] for part in WAITING_FILES)
    return in_library or innermost["function"] in WAITING_FUNCTIONS
