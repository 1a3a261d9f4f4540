"""What collectives are compared with: copying memory, and the way between two ranks."""

from __future__ import annotations

import socket
import statistics
import threading
import time
from collections.abc import Callable

import torch
from torch import distributed

from bench.measure.clock import LAST_PHASE
from bench.measure.device import Device
from bench.measure.operations import slowest
from bench.records.collectives import Limit
from bench.run.process import Place

SIZES, DEVICE_SIZES = {"cpu": (2**26, 1)}, (2**30, 8)
"""Bytes of a copy, far more than the caches hold, and copies in a row: on an accelerator one alone
would also be what asking for it takes."""
SENT = 2**27
"""Bytes that are sent one way."""
PIECE = 2**20
REPEATS = 7
ONE_WAY = "loopback, one way"
ADDRESS = "127.0.0.1"


def measure_limits(device: Device, place: Place) -> list[Limit]:
    """Of all ranks at once; on each rank the slowest one's figures.

    Args:
        device: of this process.
        place: of this process.
    """
    found = [Limit(what="memory copy", ranks=place.processes, bytes_per_s=_copy(device))]
    if place.processes == 2 and device.torch_device.type == "cpu":
        for what, both in (("loopback", True), (ONE_WAY, False)):
            found.append(Limit(what=what, ranks=2, bytes_per_s=_loopback(place, both=both)))
    return found


def _copy(device: Device) -> float:
    """Bytes a second from one buffer into another, on the device's own clock."""
    size, copies = SIZES.get(device.torch_device.type, DEVICE_SIZES)
    source = torch.ones(size, dtype=torch.uint8, device=device.torch_device)
    target = torch.empty_like(source)
    clock = device.clock()

    def row_s() -> float:
        clock.reserve(3)
        clock.start()
        device.occupy(copies)
        clock.mark("align")
        for _ in range(copies):
            target.copy_(source)
        clock.mark(LAST_PHASE)
        return clock.stop().phase_s[LAST_PHASE][0]

    spent: list[float] = []
    for _ in range(REPEATS):
        slowest(0.0)
        spent.append(row_s())
    return copies * size / slowest(statistics.median(spent))


def _loopback(place: Place, *, both: bool) -> float:
    """Bytes a second, one way, through a TCP connection of two ranks.

    Both send at the same time, as in an all-reduce, or the first one alone, as in a broadcast. With
    plain sockets, as gloo does it, and so with what the kernel itself costs.
    """
    port = torch.zeros(1, dtype=torch.int64)
    if place.rank == 0:
        with socket.create_server((ADDRESS, 0)) as server:
            port[0] = server.getsockname()[1]
            distributed.broadcast(port, src=0)
            peer, _ = server.accept()
    else:
        distributed.broadcast(port, src=0)
        peer = socket.create_connection((ADDRESS, int(port)))
    with peer:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sends, receives = both or place.rank == 0, both or place.rank == 1
        return SENT / slowest(_median_s(lambda: _exchange(peer, sends=sends, receives=receives)))


def _exchange(peer: socket.socket, *, sends: bool, receives: bool) -> None:
    """Send all there is while as much comes in, or one of the two."""
    out, into = bytes(PIECE), bytearray(PIECE)

    def send() -> None:
        for _ in range(SENT // PIECE):
            peer.sendall(out)

    sender = threading.Thread(target=send)
    if sends:
        sender.start()
    left = SENT if receives else 0
    while left:
        received = peer.recv_into(into, min(left, PIECE))
        assert received, "the other rank is still there"
        left -= received
    if sends:
        sender.join()


def _median_s(work: Callable[[], None]) -> float:
    """Seconds of one of several repeats, all ranks having started each together."""
    spent: list[float] = []
    for _ in range(REPEATS):
        slowest(0.0)
        begin = time.perf_counter()
        work()
        spent.append(time.perf_counter() - begin)
    return statistics.median(spent)
