from __future__ import annotations

import pytest

from bench.predict.timeline import LEAST_RATE, Task, busy_s, exposed_s, length_s, simulate
from bench.records.profile import Contention


def compute(seconds: float, *after: int) -> Task:
    return Task(name="c", kind="computation", stream="compute", work_s=seconds, after=after)


def send(seconds: float, *after: int, size: float = 0.0, alone_s: float | None = None) -> Task:
    return Task(
        name="s",
        kind="communication",
        stream="comm",
        work_s=seconds,
        alone_s=alone_s,
        bytes=size,
        after=after,
    )


def test_streams_go_on_beside_each_other_each_in_its_order() -> None:
    # 0-1 c; 1-4 s beside 1-3 c; 4-5 s; 5-6 c.
    tasks = [compute(1), send(3, 0), compute(2), send(1, 2), compute(1, 3)]
    spans = simulate(tasks)
    assert [(one.begin_s, one.end_s) for one in spans] == [(0, 1), (1, 4), (1, 3), (4, 5), (5, 6)]
    assert length_s(spans) == 6
    assert busy_s(spans, "computation") == 4
    assert busy_s(spans, "communication") == 4
    assert exposed_s(spans) == 2


def test_what_both_do_meanwhile_is_slower_and_only_then() -> None:
    # 3 s of work beside 2 s of sending, at half the pace: 1 s is done by then, 2 s are left.
    spans = simulate([send(2), compute(3)], Contention(computation=2.0, source="made"))
    assert length_s(spans) == pytest.approx(4.0)


def test_bytes_take_their_time_from_the_computation_at_any_rate() -> None:
    # 10 bytes take 0.1 s each: 1 s of computation goes to them, in 2 s or in 4.
    stolen = Contention(stolen_s_per_byte=0.1, source="made")
    for seconds in (2.0, 4.0):
        spans = simulate([send(seconds, size=10), compute(8)], stolen)
        assert length_s(spans) == pytest.approx(9.0)


def test_a_collective_that_is_too_quick_for_a_busy_device_waits() -> None:
    # 10 bytes in 1 s, but 5 a second at most beside computation.
    limited = Contention(most_bus_bytes_per_s=5.0, source="made")
    spans = simulate([send(1, size=10), compute(8)], limited)
    assert spans[0].end_s == pytest.approx(2.0)
    slow = simulate([send(4, size=10), compute(8)], limited)
    assert slow[0].end_s == pytest.approx(4.0)


def test_computation_never_stands_still() -> None:
    greedy = Contention(stolen_s_per_byte=1000.0, source="made")
    spans = simulate([send(1, size=10), compute(1)], greedy)
    assert length_s(spans) == pytest.approx(1 + (1 - LEAST_RATE))


def test_the_first_of_a_row_takes_what_one_takes_alone() -> None:
    spans = simulate([send(1, alone_s=5), send(1, alone_s=5), compute(20), send(1, 2, alone_s=5)])
    assert [one.end_s for one in spans] == [5, 6, 20, 25]


def test_work_of_no_length_takes_none() -> None:
    spans = simulate([compute(0), send(0, 0), compute(1, 1)])
    assert length_s(spans) == 1
    assert simulate([]) == []
