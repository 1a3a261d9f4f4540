"""What collectives are compared with: copying memory, and the way between two ranks."""

from __future__ import annotations

import socket
import statistics
import threading
import time
from collections.abc import Callable

import torch
from torch import distributed

from bench.measure.device import Device
from bench.measure.operations import slowest
from bench.records.collectives import Limit
from bench.run.process import Place

COPIED, SENT = 2**26, 2**27
"""Bytes of one copy, and of what is sent one way: far more than any cache holds."""
PIECE = 2**20
REPEATS = 7
ADDRESS = "127.0.0.1"


def measure_limits(device: Device, place: Place) -> list[Limit]:
    """Of all ranks at once; on each rank the slowest one's figures.

    Args:
        device: of this process.
        place: of this process.
    """
    found = [Limit(what="memory copy", ranks=place.processes, bytes_per_s=_copy(device))]
    if place.processes == 2 and device.torch_device.type == "cpu":
        found.append(Limit(what="loopback", ranks=2, bytes_per_s=_loopback(place)))
    return found


def _copy(device: Device) -> float:
    """Bytes a second from one buffer of a device into another of the same."""
    source = torch.ones(COPIED, dtype=torch.uint8, device=device.torch_device)
    target = torch.empty_like(source)

    def copy() -> None:
        target.copy_(source)
        device.synchronize()

    return COPIED / slowest(_median_s(copy))


def _loopback(place: Place) -> float:
    """Bytes a second through a TCP connection of two ranks, both sending at the same time.

    With plain sockets, as gloo does it, and so with what the kernel itself costs.
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
        return SENT / slowest(_median_s(lambda: _exchange(peer)))


def _exchange(peer: socket.socket) -> None:
    """Send all there is while as much comes in."""
    out, into = bytes(PIECE), bytearray(PIECE)

    def send() -> None:
        for _ in range(SENT // PIECE):
            peer.sendall(out)

    sender = threading.Thread(target=send)
    sender.start()
    left = SENT
    while left:
        received = peer.recv_into(into, min(left, PIECE))
        assert received, "the other rank is still there"
        left -= received
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
