from __future__ import annotations

import os
import signal

import pytest

from bench.errors import Interruption
from bench.run import signals


def test_the_first_signal_raises_and_the_next_only_much_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = {number: signal.getsignal(number) for number in signals.WANTED}
    with signals.signals_raise():
        pass
    assert {number: signal.getsignal(number) for number in signals.WANTED} == before
    with signals.signals_raise():
        with pytest.raises(Interruption, match="SIGTERM"):
            os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
        monkeypatch.setattr(signals, "AGAIN_S", 0.0)
        with pytest.raises(Interruption, match="SIGINT"):
            os.kill(os.getpid(), signal.SIGINT)
    monkeypatch.undo()
    os.kill(os.getpid(), signal.SIGTERM)  # while the report is written: nothing
    for number, handler in before.items():
        signal.signal(number, handler)
    with signals.signals_raise(), pytest.raises(Interruption):
        os.kill(os.getpid(), signal.SIGINT)
    for number, handler in before.items():
        signal.signal(number, handler)


def test_the_launchers_handlers_do_not_stay() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signals.GIVE_UP)]
    with signals.handlers_kept():
        with pytest.raises(signals.GaveUpError):
            os.kill(os.getpid(), signals.GIVE_UP)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    after = [signal.getsignal(number) for number in (signal.SIGINT, signals.GIVE_UP)]
    assert after == before
