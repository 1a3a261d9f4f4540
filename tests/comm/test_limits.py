from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor

import pytest

from bench.comm import limits


@pytest.mark.parametrize("both", [True, False])
def test_as_much_is_received_as_was_sent_both_ways_or_one(
    monkeypatch: pytest.MonkeyPatch, both: bool
) -> None:
    monkeypatch.setattr(limits, "SENT", 4 * limits.PIECE)
    first, second = socket.socketpair()
    with first, second, ThreadPoolExecutor(1) as other:
        there = other.submit(limits._exchange, second, sends=both, receives=True)
        limits._exchange(first, sends=True, receives=both)
        there.result(timeout=30)
        for end in (first, second):
            end.setblocking(False)
            with pytest.raises(BlockingIOError):  # nothing is left over
                end.recv(1)
