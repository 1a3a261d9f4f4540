"""What an emulated link really carries: plain TCP sockets between two hosts, before the run."""

from __future__ import annotations

import socket
import statistics
import threading
import time
from collections.abc import Sequence

import msgspec

from bench.lab.enter import made_in
from bench.lab.network import Layout, Link, address_of
from bench.plan.case import bytes_per_s

PIECE = 2**18
SENDING_S = 1.0
"""That a link is to be kept busy."""
UNLIMITED_BYTES = 2**28
SKIPPED = 0.2
"""Share of what arrives before the clock starts: the full bucket, and TCP's slow start."""
TURNS, WORD = 50, b"x" * 64
PATIENCE_S = 60.0


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """What a link carried between the first two hosts."""

    link: Link
    one_way_bytes_per_s: float
    both_ways_bytes_per_s: float
    """In each direction, while both were used."""
    round_trip_s: float
    """Of a small message, median, while nothing else was on the way."""


def measure(layout: Layout, link: Link) -> Measured:
    """Measure a network that has been given a link.

    Args:
        layout: its names.
        link: that it was given; sets how much is sent.

    Raises:
        OSError: the hosts do not reach each other.
    """
    size = UNLIMITED_BYTES
    if link.rate is not None:
        size = max(8 * PIECE, round(bytes_per_s(link.rate) * SENDING_S))
    near, far = _connected(layout)
    with near, far:
        round_trip_s = _round_trip_s(near, far)
        one_way = _rates([(near, far)], size)
        both = _rates([(near, far), (far, near)], size)
    return Measured(
        link=link,
        one_way_bytes_per_s=one_way[0],
        both_ways_bytes_per_s=min(both),
        round_trip_s=round_trip_s,
    )


def _connected(layout: Layout) -> tuple[socket.socket, socket.socket]:
    """Both ends of a connection from host 0 to host 1."""
    place = (address_of(1), 0)
    with made_in(layout.host(1), lambda: socket.create_server(place)) as server:
        there = server.getsockname()[:2]
        near = made_in(layout.host(0), lambda: socket.create_connection(there, timeout=PATIENCE_S))
        far, _ = server.accept()
    for one in (near, far):
        one.settimeout(PATIENCE_S)
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return near, far


def _round_trip_s(near: socket.socket, far: socket.socket) -> float:
    def answer() -> None:
        for _ in range(TURNS):
            far.sendall(far.recv(len(WORD), socket.MSG_WAITALL))

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    spent: list[float] = []
    for _ in range(TURNS):
        begin = time.perf_counter()
        near.sendall(WORD)
        near.recv(len(WORD), socket.MSG_WAITALL)
        spent.append(time.perf_counter() - begin)
    thread.join()
    return statistics.median(spent)


def _rates(ways: Sequence[tuple[socket.socket, socket.socket]], size: int) -> list[float]:
    """Bytes a second of each way, all used at once."""
    found: dict[int, float] = {}

    def receive(number: int, end: socket.socket) -> None:
        found[number] = received_rate(end, size)

    threads = [
        threading.Thread(target=receive, args=(number, end), daemon=True)
        for number, (_, end) in enumerate(ways)
    ]
    threads += [threading.Thread(target=_send, args=(end, size), daemon=True) for end, _ in ways]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if len(found) < len(ways):
        raise OSError("the hosts of the laboratory do not reach each other")
    return [found[number] for number in range(len(ways))]


def _send(end: socket.socket, size: int) -> None:
    piece, left = bytes(PIECE), size
    while left:
        left -= end.send(piece[: min(left, PIECE)])


def received_rate(end: socket.socket, size: int) -> float:
    """Bytes a second at which so many arrive, once the first share of them has.

    Args:
        end: of a connection.
        size: bytes that will come.
    """
    into, came, skipped, begin = bytearray(PIECE), 0, 0, 0.0
    while came < size:
        count = end.recv_into(into, min(size - came, PIECE))
        if not count:
            raise OSError("the connection ended early")
        came += count
        if not begin and came >= SKIPPED * size:
            skipped, begin = came, time.perf_counter()
    return (came - skipped) / (time.perf_counter() - begin)
