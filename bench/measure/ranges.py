"""Names of the ranges that our code writes into a profile, and reads out of it again.

Imports nothing: strategies write some of them, ``bench.measure`` reads them.
"""

from __future__ import annotations

import re

STEPS = "bench:steps"
"""Around the profiled steps, from one synchronise to the next."""
BUFFERS = "bench:buffers"
"""In which a strategy makes what a collective works on, and lets go of it."""
DEVICE = re.compile(r"^device:(\d+)$")
MOVE = re.compile(r"^move:(\w+):(\d+)$")


MARK = re.compile(r"^mark:([\w.]+)$")
"""Of no length: a phase of a step has just ended."""


def mark_range(phase: str) -> str:
    """Range that marks the end of a phase.

    >>> MARK.match(mark_range("forward"))[1]
    'forward'
    """
    return f"mark:{phase}"


def device_range(index: int) -> str:
    """Range in which one of several devices of a process works; its allocations are its own.

    >>> DEVICE.match(device_range(3))[1]
    '3'
    """
    return f"device:{index}"


def move_range(operation: str, size_bytes: int) -> str:
    """Range in which a strategy itself moves tensors between devices.

    >>> MOVE.match(move_range("gather", 4096)).groups()
    ('gather', '4096')
    """
    return f"move:{operation}:{size_bytes}"
