"""Clocks for a block of steps: each part of each step, without synchronising inside the block.

A block is a row of boundaries: one at its start, and one at each ``mark``. A part of a step lasts
from the boundary before it to its own. On a CPU a boundary is a reading of ``perf_counter``; on an
accelerator it is an event on the device's current stream, read after the block.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

LAST_PHASE = "optimizer"
"""The mark that ends a step."""
EVENT_RESOLUTION_S = 0.5e-6
"""Of the time between two events: CUDA Runtime API, cudaEventElapsedTime."""


@dataclass(frozen=True, kw_only=True)
class Block:
    """Times of a block of steps, in seconds."""

    elapsed_s: float
    """Host time from after the first to after the last synchronise: what throughput uses."""
    step_s: list[float]
    phase_s: dict[str, list[float]]
    """Per phase, its total in each step."""


class Clock(Protocol):
    """Times one block after the other."""

    @property
    def resolution_s(self) -> float:
        """Shortest time that it can tell from none."""

    def reserve(self, marks: int) -> None:
        """Prepare for a block with so many marks, so that nothing need be made inside it."""

    def start(self) -> None:
        """Wait for the device, then start a block."""

    def mark(self, phase: str) -> None:
        """The phase has just ended; the last phase of a step ends the step too."""

    def stop(self) -> Block:
        """Wait for the device, then end the block."""


class HostClock:
    """Clock of a device that works when it is called: a CPU.

    Args:
        now: seconds on a clock that only goes forward.
    """

    resolution_s = time.get_clock_info("perf_counter").resolution

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self._phases: list[str] = []
        self._times: list[float] = []

    def reserve(self, marks: int) -> None:
        """See ``Clock``: reading the time needs nothing."""

    def start(self) -> None:
        """See ``Clock``."""
        self._phases.clear()
        self._times = [self._now()]

    def mark(self, phase: str) -> None:
        """See ``Clock``."""
        self._phases.append(phase)
        self._times.append(self._now())

    def stop(self) -> Block:
        """See ``Clock``."""
        elapsed = self._now() - self._times[0]
        durations = [end - begin for begin, end in itertools.pairwise(self._times)]
        return fold(self._phases, durations, elapsed)


class MarkingClock:
    """Another clock, which also notes in a profile where each phase of a step has ended.

    Args:
        clock: that keeps the time.
        note: takes each phase when it ends.
    """

    def __init__(self, clock: Clock, note: Callable[[str], None]) -> None:
        self._clock = clock
        self._note = note

    @property
    def resolution_s(self) -> float:
        """See ``Clock``."""
        return self._clock.resolution_s

    def reserve(self, marks: int) -> None:
        """See ``Clock``."""
        self._clock.reserve(marks)

    def start(self) -> None:
        """See ``Clock``."""
        self._clock.start()

    def mark(self, phase: str) -> None:
        """See ``Clock``."""
        self._clock.mark(phase)
        self._note(phase)

    def stop(self) -> Block:
        """See ``Clock``."""
        return self._clock.stop()


class EventClock:
    """Clock of a device that runs behind the host.

    Args:
        make_event: makes a timing event of ``torch.Event``'s interface.
        synchronize: waits for all work on the device.
        now: seconds on the host.
    """

    resolution_s = EVENT_RESOLUTION_S

    def __init__(
        self,
        make_event: Callable[[], Any],
        synchronize: Callable[[], None],
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._make_event = make_event
        self._synchronize = synchronize
        self._now = now
        self._phases: list[str] = []
        self._events: list[Any] = []
        """Reused by every block."""
        self._started = 0.0

    def reserve(self, marks: int) -> None:
        """See ``Clock``: an event is made when it is first recorded, which takes longer."""
        while len(self._events) <= marks:
            self._events.append(self._make_event())
            self._events[-1].record()

    def start(self) -> None:
        """See ``Clock``."""
        self._phases.clear()
        self._synchronize()
        self._started = self._now()
        self.reserve(0)
        self._events[0].record()

    def mark(self, phase: str) -> None:
        """See ``Clock``."""
        self._phases.append(phase)
        self.reserve(len(self._phases))
        self._events[len(self._phases)].record()

    def stop(self) -> Block:
        """See ``Clock``."""
        self._synchronize()
        elapsed = self._now() - self._started
        used = self._events[: len(self._phases) + 1]
        durations = [begin.elapsed_time(end) / 1e3 for begin, end in itertools.pairwise(used)]
        return fold(self._phases, durations, elapsed)


def fold(phases: Sequence[str], durations: Sequence[float], elapsed_s: float) -> Block:
    """Sum the parts of each step, and the steps; a piece such as a.b counts for a and for a.b.

    >>> fold(["forward", "optimizer"], [2.0, 1.0], 3.5).step_s
    [3.0]
    """
    step_s: list[float] = []
    names = dict.fromkeys(name for phase in phases for name in (phase.partition(".")[0], phase))
    phase_s: dict[str, list[float]] = {name: [] for name in names}
    current = dict.fromkeys(names, 0.0)
    for phase, duration in zip(phases, durations, strict=True):
        whole = phase.partition(".")[0]
        current[whole] += duration
        if phase != whole:
            current[phase] += duration
        if phase == LAST_PHASE:
            step_s.append(sum(spent for name, spent in current.items() if "." not in name))
            for name, seconds in current.items():
                phase_s[name].append(seconds)
            current = dict.fromkeys(names, 0.0)
    return Block(elapsed_s=elapsed_s, step_s=step_s, phase_s=phase_s)
