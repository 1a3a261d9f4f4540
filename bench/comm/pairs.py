"""How fast each rank reaches each other one: pair after pair, each way alone, all others quiet."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable

import torch
from torch import distributed

from bench.measure.device import Device
from bench.measure.operations import slowest
from bench.records.collectives import Pair
from bench.run.process import Place

PILOT = 2**20
"""Bytes of the first message, which says how many follow."""
PIECE = 2**22
"""Bytes of each that is timed."""
PATIENCE_S = 0.5
"""For one way of one pair, roughly; a token bucket's burst is a small part of what passes."""
MOST_PIECES = 64
TURNS = 20
"""Of a small message there and back."""


def measure_pairs(device: Device, place: Place) -> list[Pair]:
    """Every ordered pair of ranks; all ranks call this together, and each gets what it sent.

    Args:
        device: of this process.
        place: of this process.
    """
    found: list[Pair] = []
    for source, target in itertools.permutations(range(place.processes), 2):
        slowest(0.0)
        if place.rank == source:
            found.append(_send(device, source, target))
        elif place.rank == target:
            _receive(device, source)
    slowest(0.0)
    return found


def _send(device: Device, source: int, target: int) -> Pair:
    small = torch.zeros(1, device=device.torch_device)
    piece = torch.zeros(PIECE // 4, device=device.torch_device)

    def turn() -> None:
        distributed.send(small, target)
        distributed.recv(small, target)

    turn()
    round_trip_s = _timed(device, turn, TURNS) / TURNS

    def pilot() -> None:
        distributed.send(piece[: PILOT // 4], target)
        distributed.recv(small, target)

    pilot()
    pilot_s = _timed(device, pilot, 1)
    pieces = max(2, min(MOST_PIECES, round(PATIENCE_S / pilot_s * PILOT / PIECE)))
    distributed.send(torch.tensor([float(pieces)], device=device.torch_device), target)

    def stream() -> None:
        for _ in range(pieces):
            distributed.send(piece, target)
        distributed.recv(small, target)  # all has arrived

    spent_s = _timed(device, stream, 1)
    return Pair(
        source=source,
        target=target,
        bytes_per_s=pieces * PIECE / spent_s,
        round_trip_s=round_trip_s,
    )


def _receive(device: Device, source: int) -> None:
    """The other end of ``_send``, step by step."""
    small = torch.zeros(1, device=device.torch_device)
    piece = torch.empty(PIECE // 4, device=device.torch_device)
    for _ in range(1 + TURNS):
        distributed.recv(small, source)
        distributed.send(small, source)
    for _ in range(2):
        distributed.recv(piece[: PILOT // 4], source)
        distributed.send(small, source)
    count = torch.zeros(1, device=device.torch_device)
    distributed.recv(count, source)
    for _ in range(int(count)):
        distributed.recv(piece, source)
    distributed.send(small, source)


def _timed(device: Device, work: Callable[[], None], times: int) -> float:
    device.synchronize()
    begin = time.perf_counter()
    for _ in range(times):
        work()
    device.synchronize()
    return time.perf_counter() - begin
