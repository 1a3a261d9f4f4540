"""Interfaces, and what the own name stands for."""

from __future__ import annotations

import queue
import socket
import sys
import threading
import time

import psutil

from bench.doctor.facts import Network
from bench.run.loopback import LOOPBACK

PATIENCE_S = 5.0
"""For the resolver, which may wait for servers that do not answer."""


def look_at_network() -> Network:
    """Interfaces of this host, and whether its name can be resolved."""
    name = socket.gethostname()
    addresses, resolved_s = resolve(name)
    return Network(
        hostname=name,
        interfaces=_interfaces(),
        addresses=addresses,
        resolved_s=resolved_s,
        loopback=LOOPBACK.get(sys.platform, "lo"),
    )


def _interfaces() -> dict[str, bool]:
    try:
        return {name: bool(stats.isup) for name, stats in psutil.net_if_stats().items()}
    except (OSError, psutil.Error):  # a sandbox without them
        return {}


def resolve(name: str, patience_s: float = PATIENCE_S) -> tuple[tuple[str, ...], float | None]:
    """Addresses of a host, and how long that took; None in place of it without an answer in time.

    The resolver cannot be told to give up: it is asked in a thread that is left behind.
    """
    answers: queue.Queue[tuple[str, ...]] = queue.Queue()

    def ask() -> None:
        try:
            found = socket.getaddrinfo(name, None, proto=socket.IPPROTO_TCP)
        except (OSError, UnicodeError):
            answers.put(())
        else:
            answers.put(tuple(sorted({str(one[4][0]) for one in found})))

    began_s = time.monotonic()
    threading.Thread(target=ask, daemon=True).start()
    try:
        return answers.get(timeout=patience_s), time.monotonic() - began_s
    except queue.Empty:
        return (), None
