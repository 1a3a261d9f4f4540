"""One rank of a group that carries out collectives alone: check each, then time it."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import torch
from torch import Tensor, distributed

from bench.comm.limits import measure_limits
from bench.comm.pairs import measure_pairs
from bench.comm.sweep import Group, Point
from bench.measure.clock import LAST_PHASE, Clock
from bench.measure.device import Device, is_out_of_memory, open_device
from bench.measure.operations import Call, carrier, make_call, slowest
from bench.plan.case import Limits
from bench.run.group import join_group, placement
from bench.run.handover import RankOutcome, Times
from bench.run.phases import DONE, Note, Notebook
from bench.run.process import Place, carry_out, enter

WARM_UP, PILOT = 2, 3
"""Calls before any is timed, and those that say how many there can be."""
PATIENCE_S = 0.3
"""For the calls alone of one point, and again for its rows."""
LEAST_CALLS, MOST_CALLS = 7, 200
LEAST_ROWS, MOST_ROWS = 5, 20
ROW = 20
"""Calls in a row at most."""


class CommAssignment(msgspec.Struct, frozen=True, kw_only=True):
    """What the parent tells the processes of one group, as a file."""

    group: Group
    points: list[Point]
    """Empty where the limits of the machine are to be measured."""
    folder: str
    cores: tuple[tuple[int, ...], ...]
    """Per device."""
    environment: dict[str, str]
    launch_s: float
    """How long it may take."""
    pairs: bool = False
    """Whether every pair of ranks is measured, instead of points or limits."""
    limits: Limits = Limits()


def main(assignment_file: str) -> None:
    """Entry of every process that carries out collectives.

    Args:
        assignment_file: path of the launch's ``CommAssignment``.
    """
    assignment, place = enter(assignment_file, CommAssignment)
    carry_out(_Collectives(assignment, place), Path(assignment.folder))


class _Collectives:
    """See ``bench.run.process.Work``: the points of one group."""

    def __init__(self, assignment: CommAssignment, place: Place) -> None:
        self._assignment = assignment
        self.place = place
        self._outcome = RankOutcome(rank=place.rank)
        self._notebook = Notebook(Path(assignment.folder), place.local_rank)

    def do(self) -> None:
        """See ``Work``."""
        assignment, place = self._assignment, self.place
        device = open_device(assignment.group, [place.local_rank], assignment.cores)
        device.claim()
        self._note("start", placement=placement())
        join_group(
            assignment.group.backend,
            device.torch_device,
            launch_s=assignment.launch_s,
            group_device=device.group_device,
        )
        slowest(0.0)
        self._note("set-up", joined_s=time.monotonic())
        if assignment.pairs:
            self._note("pairs", pairs=measure_pairs(device, place))
        elif not assignment.points:
            self._note("limits", limits=measure_limits(device, place))
        for number, point in enumerate(assignment.points):
            self._note(f"{point.op} of {point.bytes} bytes of {point.dtype}")
            found = measure(point, number, device, place)
            self._outcome = msgspec.structs.replace(
                self._outcome, times=[*self._outcome.times, found]
            )
        self._note(DONE)

    def outcome(self, error: BaseException | None) -> RankOutcome:  # noqa: ARG002 - all is there
        """See ``Work``."""
        return self._outcome

    def leave(self) -> None:
        """See ``Work``."""
        slowest(0.0)
        distributed.destroy_process_group()

    def _note(self, phase: str, **found: object) -> None:
        self._outcome = msgspec.structs.replace(self._outcome, phase=phase, **found)
        self._notebook.write(Note(phase=phase, since_s=time.monotonic()))


def measure(point: Point, number: int, device: Device, place: Place) -> Times:
    """Check and time one point; all ranks of the group together.

    Args:
        point: what to carry out.
        number: of the point.
        device: of this process.
        place: of this process.
    """
    try:
        call: Call | None = make_call(
            point.op,
            size=point.bytes,
            dtype=point.dtype,
            device=device.torch_device,
            rank=place.rank,
            ranks=place.processes,
        )
        reason = None
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        call, reason = None, str(error)
    if slowest(float(call is None)) or call is None:  # or the others would wait for this rank
        return Times(number=number, out_of_memory=True, reason=reason)
    problem = _problem_of(call, device, place.rank)
    if slowest(float(problem is not None)):
        return Times(number=number, reason=problem)
    aligned = torch.zeros(1, device=device.torch_device)
    clock = device.clock()

    def calls(count: int) -> float:
        return timed(clock, device, aligned, call.run, count)

    call.clear()
    for _ in range(WARM_UP):
        call.run()
    pilot_s = slowest(statistics.median([calls(1) for _ in range(PILOT)]))
    alone = _within(PATIENCE_S / pilot_s, LEAST_CALLS, MOST_CALLS)
    isolated_s = [calls(1) for _ in range(alone)]
    in_row = _within(PATIENCE_S / LEAST_ROWS / pilot_s, 2, ROW)
    rows = _within(PATIENCE_S / (in_row * pilot_s), LEAST_ROWS, MOST_ROWS)
    row_s = [calls(in_row) for _ in range(rows)]
    problem = _problem_of(call, device, place.rank)
    return Times(
        number=number,
        reason=f"after {WARM_UP + alone + rows * in_row} calls: {problem}" if problem else None,
        carried_by=carrier(device.torch_device),
        isolated_s=isolated_s,
        row_s=row_s,
        row_calls=in_row,
    )


def _problem_of(call: Call, device: Device, rank: int) -> str | None:
    """Carry out the call once; why its result is none, or not the right one."""
    call.fill(rank)
    try:
        call.run()
        device.synchronize()
    except (RuntimeError, ValueError, NotImplementedError) as error:
        return f"{type(error).__name__}: {error}"
    return None if call.is_right() else "the result is wrong"


def timed(
    clock: Clock, device: Device, aligned: Tensor, run: Callable[[], None], count: int
) -> float:
    """Seconds of some calls in a row on this rank, from when all ranks were ready for them."""
    clock.reserve(2)
    clock.start()
    device.occupy(count)
    distributed.all_reduce(aligned)
    clock.mark("align")
    for _ in range(count):
        run()
    clock.mark(LAST_PHASE)
    return clock.stop().phase_s[LAST_PHASE][0]


def _within(wanted: float, least: int, most: int) -> int:
    return min(max(math.floor(wanted), least), most)
