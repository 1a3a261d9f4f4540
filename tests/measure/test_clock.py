from __future__ import annotations

import pytest

from bench.measure.clock import EventClock, HostClock, fold
from tests.fakes import FakeEvent, FakeTime


def test_the_host_clock_times_parts_and_steps() -> None:
    time = FakeTime()
    clock = HostClock(time)
    clock.start()
    for _ in range(3):
        for phase, seconds in (("data", 0.5), ("forward", 1.0), ("backward", 2.0)):
            time.sleep(seconds)
            clock.mark(phase)
        time.sleep(0.25)
        clock.mark("optimizer")
    time.sleep(0.1)
    block = clock.stop()
    assert block.step_s == [3.75] * 3
    assert block.phase_s["backward"] == [2.0] * 3
    assert block.elapsed_s == pytest.approx(3 * 3.75 + 0.1)


def test_the_event_clock_waits_only_at_both_ends() -> None:
    time = FakeTime()
    clock = EventClock(lambda: FakeEvent(time), time.synchronize, time)
    for _ in range(2):  # the second block reuses the events of the first
        time.synchronisations.clear()
        begin = time.now_s
        clock.start()
        for _ in range(4):
            time.late_work_s += 1.0  # the device is given a second of work, the host goes on
            time.sleep(0.001)
            clock.mark("optimizer")
        block = clock.stop()
        assert len(time.synchronisations) == 2
        assert time.synchronisations[0] == begin
        assert block.elapsed_s == pytest.approx(4.004)
        assert sum(block.step_s) == pytest.approx(4.004, rel=1e-3)


def test_clocks_know_how_fine_they_are() -> None:
    assert 0 < HostClock().resolution_s < 1e-5
    assert EventClock(lambda: None, lambda: None).resolution_s == 0.5e-6  # as CUDA documents


def test_a_step_adds_up_its_micro_steps() -> None:
    block = fold(["forward", "backward", "forward", "backward", "optimizer"], [1, 2, 3, 4, 5], 15.0)
    assert block.phase_s == {"forward": [4.0], "backward": [6.0], "optimizer": [5.0]}
    assert block.step_s == [15.0]
