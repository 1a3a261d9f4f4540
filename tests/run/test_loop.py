from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from bench.measure.clock import EventClock, HostClock
from bench.plan.case import Effort, Window
from bench.run.loop import (
    Engine,
    block_size,
    relative_half_width,
    run_block,
    run_sync_pairs,
    run_window,
    warm_up,
    warmup_rule,
)
from bench.run.outcome import samples_per_s
from tests.fakes import FakeEvent, FakeSession, FakeTime
from workloads.base import Batch

WINDOW = Window(min_steps=10, max_s=100, target_interval=0.02)


def endless() -> Iterator[Batch]:
    return itertools.repeat(Batch((), torch.zeros(1)))


def make_engine(
    time: FakeTime, *, slowest: Callable[[float], float] = lambda value: value, **session: Any
) -> Engine:
    accumulation_steps = session.pop("accumulation_steps", 1)
    return Engine(
        session=FakeSession(time.sleep, **session),
        batches=endless(),
        clock=HostClock(time),
        slowest=slowest,
        accumulation_steps=accumulation_steps,
    )


def session_of(engine: Engine) -> FakeSession:
    assert isinstance(engine.session, FakeSession)
    return engine.session


def test_a_known_step_gives_its_exact_rate() -> None:
    engine = make_engine(FakeTime(), forward_s=0.0625, backward_s=0.03125, optimizer_s=0.03125)
    timed = run_window(engine, WINDOW, block_steps=2)
    assert timed.step_s == [0.125] * len(timed.step_s)
    assert samples_per_s(32 * len(timed.step_s), [timed.window_s]) == 32 / 0.125
    assert timed.phase_s == {
        "data": 0.0,
        "forward": 0.0625,
        "backward": 0.03125,
        "optimizer": 0.03125,
    }


def test_the_total_follows_the_slowest_rank() -> None:
    windows = []
    for step_s in (0.125, 0.25):
        engine = make_engine(FakeTime(), forward_s=step_s)
        windows.append(run_window(engine, WINDOW, block_steps=1).window_s)
    steps = 10
    # Two ranks of 32 samples; 64 / 0.25, not 32 / 0.125 + 32 / 0.25, nor twice rank 0.
    assert samples_per_s(64 * steps, windows) == 64 / 0.25


def test_slow_first_steps_stay_out_of_the_window() -> None:
    def steps_taking(engine: Engine, first_s: float) -> None:
        session = session_of(engine)
        sleep = session.sleep
        count = itertools.count()
        session.sleep = lambda seconds: sleep(first_s if next(count) < 3 else seconds)

    rates = []
    for first_s in (0.125, 1.0):
        engine = make_engine(FakeTime(), optimizer_s=0.125)
        session_of(engine).forward_s = session_of(engine).backward_s = 0.0
        steps_taking(engine, first_s)
        warm_up(engine, (3, 0.0))
        timed = run_window(engine, WINDOW, block_steps=1)
        rates.append(len(timed.step_s) / timed.window_s)
    assert rates[0] == rates[1]


def test_the_window_ends_with_its_interval_or_its_time() -> None:
    steady = run_window(make_engine(FakeTime(), forward_s=0.5), WINDOW, block_steps=1)
    assert steady.stopped_by == "target_interval"
    assert len(steady.step_s) == WINDOW.min_steps

    time = FakeTime()
    engine = make_engine(time, forward_s=0.5)
    session, count = session_of(engine), itertools.count()
    session.sleep = lambda seconds: time.sleep(seconds * (1 + 3 * (next(count) % 2)))
    unsteady = run_window(engine, Window(min_steps=4, max_s=30, target_interval=1e-6), 1)
    assert unsteady.stopped_by == "max_s"
    assert unsteady.window_s >= 30


def test_all_ranks_decide_alike_from_the_slowest_times() -> None:
    counts = []
    for own_s in (0.1, 0.4):  # both are told of the slowest, 0.4 s a step
        engine = make_engine(FakeTime(), forward_s=own_s, slowest=lambda value: value and 0.4)
        counts.append(
            (
                len(warm_up(engine, (2, 3.0)).step_s),
                len(run_window(engine, WINDOW, block_steps=1).step_s),
            )
        )
    assert counts[0] == counts[1] == (8, 10)


def test_nothing_waits_for_the_device_inside_a_block() -> None:
    time = FakeTime()
    session = FakeSession(lambda _: None)
    engine = Engine(
        session=session,
        batches=endless(),
        clock=EventClock(lambda: FakeEvent(time), time.synchronize, time),
        slowest=lambda value: value,
        accumulation_steps=1,
    )
    run_block(engine, 50)
    assert session.steps == 50
    assert len(time.synchronisations) == 2


def test_only_the_last_micro_step_synchronises() -> None:
    engine = make_engine(FakeTime(), accumulation_steps=3)
    run_block(engine, 2)
    assert session_of(engine).synchronised == [False, False, True] * 2
    assert session_of(engine).steps == 2


def test_warm_up_rules() -> None:
    assert warmup_rule(Effort(), "cpu")[0] >= 3  # DDP rebuilds its buckets in the second step
    assert warmup_rule(Effort(), "cuda") == (12, 2.0)
    assert warmup_rule(Effort(warmup_steps=7), "cuda") == (7, 0.0)
    engine = make_engine(FakeTime(), forward_s=0.5)
    assert warm_up(engine, (0, 0.0)).first_step_s is None
    warm = warm_up(engine, (5, 0.0))
    assert (warm.first_step_s, warm.step_s) == (0.5, [0.5] * 4)


@pytest.mark.parametrize(
    ("step_s", "max_s", "expected"),
    [(None, 10, 1), (0.001, 10, 500), (0.001, 0.5, 50), (0.6, 10, 1), (0.1, 10, 5)],
)
def test_block_sizes(step_s: float | None, max_s: float, expected: int) -> None:
    assert block_size(step_s, Window(max_s=max_s)) == expected


def test_the_stopping_rule_is_two_standard_errors() -> None:
    assert relative_half_width([1.0, 3.0]) == float("inf")
    assert relative_half_width([1.0, 3.0, 1.0, 3.0]) == pytest.approx(2 * (4 / 3) ** 0.5 / 2 / 2)


def test_sync_cost_is_measured_in_turns() -> None:
    time = FakeTime()
    engine = make_engine(time, forward_s=0.1)
    session = session_of(engine)
    plain = session.micro_step

    def micro_step(batch: Batch, *, sync: bool, mark: Callable[[str], None]) -> torch.Tensor:
        time.sleep(0.05 if sync else 0.0)
        return plain(batch, sync=sync, mark=mark)

    session.micro_step = micro_step  # type: ignore[method-assign]
    pairs = run_sync_pairs(engine, Window(max_s=0.5), 2)
    assert len(pairs) == 6
    for with_sync, without in pairs:
        assert with_sync == pytest.approx(0.15)
        assert without == pytest.approx(0.1)
    assert session.synchronised[:8] == [True, True, False, False, False, False, True, True]
