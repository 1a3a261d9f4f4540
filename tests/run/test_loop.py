from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from bench.measure.clock import EventClock, HostClock
from bench.plan.case import Effort, Window
from bench.run.loop import (
    COMPILING_STEPS,
    QUIET_STEPS,
    Engine,
    Length,
    compile_steps,
    decide_length,
    run_block,
    run_sync_pairs,
    run_window,
    warm_up,
    warmup_rule,
)
from bench.run.outcome_timing import samples_per_s
from bench.strategies.nature import Rhythm
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


def length(blocks: int, block_steps: int = 1) -> Length:
    return Length(blocks=blocks, block_steps=block_steps, set_by="min_steps")


def session_of(engine: Engine) -> FakeSession:
    assert isinstance(engine.session, FakeSession)
    return engine.session


def test_a_known_step_gives_its_exact_rate() -> None:
    engine = make_engine(FakeTime(), forward_s=0.0625, backward_s=0.03125, optimizer_s=0.03125)
    timed = run_window(engine, WINDOW, length(5, 2))
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
        windows.append(run_window(engine, WINDOW, length(10)).window_s)
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
        timed = run_window(engine, WINDOW, length(10))
        rates.append(len(timed.step_s) / timed.window_s)
    assert rates[0] == rates[1]


@pytest.mark.parametrize(
    ("pilot_s", "window", "expected"),
    [
        # Steady: the least number of steps, in blocks of half a second.
        ([0.5] * 4, Window(min_steps=10, max_s=10), (10, 1, "min_steps")),
        ([0.05] * 4, Window(min_steps=10, max_s=10), (1, 10, "min_steps")),
        # Standard deviation 0.2 of 1: (2 x 0.2 / 0.05)^2 = 64 steps, if there is time for them.
        ([0.8, 1.2, 0.8, 1.2], Window(max_s=100, target_interval=0.05), (86, 1, "target_interval")),
        ([0.8, 1.2, 0.8, 1.2], Window(max_s=30, target_interval=0.05), (30, 1, "max_s")),
        # Too slow for the time: the least number all the same.
        ([20.0] * 4, Window(min_steps=3, max_s=10), (3, 1, "min_steps")),
        # Nothing known of the spread: as long as allowed; nothing known at all: the least.
        ([1.0, 1.0], Window(min_steps=5, max_s=20), (20, 1, "max_s")),
        ([], Window(min_steps=5, max_s=20), (5, 1, "min_steps")),
        ([0.001] * 4, Window(min_steps=10, max_s=0.5), (1, 50, "min_steps")),
    ],
)
def test_the_length_of_a_window_is_decided_before_it(
    pilot_s: list[float], window: Window, expected: tuple[int, int, str]
) -> None:
    decided = decide_length(pilot_s, window)
    assert (decided.blocks, decided.block_steps, decided.set_by) == expected


def test_what_happens_in_the_window_does_not_change_its_length() -> None:
    time = FakeTime()
    engine = make_engine(time, forward_s=0.5)
    session, count = session_of(engine), itertools.count()
    session.sleep = lambda seconds: time.sleep(seconds * (1 + 3 * (next(count) % 2)))
    assert len(run_window(engine, WINDOW, length(12)).step_s) == 12


def test_a_window_that_takes_far_too_long_ends_after_its_least_steps() -> None:
    engine = make_engine(FakeTime(), forward_s=100.0)
    timed = run_window(engine, Window(min_steps=4, max_s=10), length(50))
    assert len(timed.step_s) == 4
    assert timed.stopped_by == "max_s"


def test_all_ranks_decide_alike_from_the_slowest_times() -> None:
    decisions = []
    for own_s in (0.1, 0.4):  # both are told of the slowest, 0.4 s a step
        engine = make_engine(FakeTime(), forward_s=own_s, slowest=lambda value: value and 0.4)
        warm = warm_up(engine, (2, 3.0))
        decisions.append((len(warm.step_s), decide_length(warm.pilot_s, WINDOW)))
    assert decisions[0] == decisions[1]
    assert decisions[0][0] == 8


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


def test_every_micro_step_synchronises_where_it_is_asked_to() -> None:
    engine = dataclasses.replace(make_engine(FakeTime(), accumulation_steps=3), syncs_every=True)
    run_block(engine, 1)
    assert session_of(engine).synchronised == [True] * 3
    run_block(engine, 1, sync=False)
    assert session_of(engine).synchronised[3:] == [False] * 3


def test_warm_up_rules() -> None:
    assert warmup_rule(Effort(), "cpu")[0] >= 3  # DDP rebuilds its buckets in the second step
    assert warmup_rule(Effort(), "cuda") == (12, 2.0)
    assert warmup_rule(Effort(warmup_steps=7), "cpu") == (7, 0.0)
    assert warmup_rule(Effort(warmup_steps=7), "cuda") == (11, 0.0)  # DDP times itself before
    assert warmup_rule(Effort(warmup_steps=40), "cuda") == (40, 0.0)
    engine = make_engine(FakeTime(), forward_s=0.5)
    assert warm_up(engine, (0, 0.0)).first_step_s is None
    warm = warm_up(engine, (5, 0.0))
    assert (warm.first_step_s, warm.step_s) == (0.5, [0.5] * 4)


def compiling(time: FakeTime, *in_steps: int, slow_s: float = 5.0) -> Engine:
    """An engine that compiles once in each of some steps, which then take longer."""
    engine = make_engine(time, forward_s=0.5)
    session = session_of(engine)
    plain = session.micro_step
    compilations = 0

    def micro_step(batch: Batch, *, sync: bool, mark: Callable[[str], None]) -> torch.Tensor:
        nonlocal compilations
        if session.steps + 1 in in_steps:
            compilations += 1
            time.sleep(slow_s)
        return plain(batch, sync=sync, mark=mark)

    session.micro_step = micro_step  # type: ignore[method-assign]
    return dataclasses.replace(engine, compilations=lambda: compilations)


def test_steps_go_on_until_none_compiles() -> None:
    assert compile_steps(make_engine(FakeTime(), forward_s=0.5)) == []
    assert compile_steps(compiling(FakeTime(), 1)) == [5.5, *[0.5] * QUIET_STEPS]
    both = compile_steps(compiling(FakeTime(), 1, 4))
    assert both == [5.5, 0.5, 0.5, 5.5, *[0.5] * QUIET_STEPS]
    endless = compile_steps(compiling(FakeTime(), *range(1, 1000)))
    assert len(endless) == COMPILING_STEPS


def test_a_rank_that_compiles_makes_the_others_go_on() -> None:
    """The other one compiles in the first three steps; this one only hears of it."""
    heard = iter([1.0, 1.0, 1.0, *[0.0] * 100])

    def slowest(value: float) -> float:
        return next(heard) if value == 0.0 and engine_began else value

    engine_began = False
    engine = dataclasses.replace(
        make_engine(FakeTime(), forward_s=0.5, slowest=slowest), compilations=lambda: 0
    )
    session = session_of(engine)
    sleep = session.sleep

    def begin(seconds: float) -> None:
        nonlocal engine_began
        engine_began = True
        sleep(seconds)

    session.sleep = begin
    assert len(compile_steps(engine)) == 3 + QUIET_STEPS


def test_compiling_is_no_part_of_warm_up() -> None:
    engine = compiling(FakeTime(), 1)
    warm = warm_up(engine, (4, 0.0), compile_steps(engine))
    assert warm.first_step_s == 5.5
    assert warm.step_s == [0.5] * (QUIET_STEPS + 4)
    assert warm.pilot_s == [0.5] * 4
    # What compiles again makes warm-up longer, and the pilot comes after it.
    engine = compiling(FakeTime(), 1, 7)
    warm = warm_up(engine, (3, 0.0), compile_steps(engine))
    assert warm.step_s == [*[0.5] * QUIET_STEPS, 0.5, 5.5, *[0.5] * QUIET_STEPS]
    assert warm.pilot_s == [0.5] * 4
    # None is asked for: what is compiled is compiled before the window all the same.
    engine = compiling(FakeTime(), 1)
    assert len(warm_up(engine, (0, 0.0), compile_steps(engine)).step_s) == QUIET_STEPS


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
    # Each block of two follows an untimed step of its own kind.
    assert session.synchronised[:12] == [True] * 3 + [False] * 6 + [True] * 3


LATE = Rhythm(settle_steps=2, period=4)
"""Averages after steps 3, 7, 11 ..."""


@pytest.mark.parametrize(
    ("effort", "device", "rhythm", "expected"),
    [
        (Effort(), "cpu", Rhythm(settle_steps=2), (7, 0.5)),
        (Effort(), "cuda", Rhythm(settle_steps=2), (12, 2.0)),
        (Effort(), "cuda", Rhythm(settle_steps=100), (105, 2.0)),
        (Effort(warmup_steps=3), "cpu", Rhythm(settle_steps=10), (15, 0.0)),
        (Effort(warmup_steps=0), "cpu", LATE, (7, 0.0)),
        (Effort(warmup_steps=40), "cpu", LATE, (40, 0.0)),
        (Effort(), "cpu", Rhythm(period=10), (11, 0.5)),
    ],
)
def test_the_window_begins_after_a_strategy_has_settled_and_a_pilot_has_run(
    effort: Effort, device: str, rhythm: Rhythm, expected: tuple[int, float]
) -> None:
    assert warmup_rule(effort, device, rhythm) == expected


def test_warm_up_and_blocks_are_whole_rounds() -> None:
    engine = dataclasses.replace(make_engine(FakeTime(), forward_s=0.5), rhythm=LATE)
    warm = warm_up(engine, (8, 0.0))
    assert session_of(engine).steps == 11
    assert len(warm.pilot_s) == 4
    for pilot_s, window in (([0.5] * 4, Window(min_steps=10, max_s=10)), ([], WINDOW)):
        decided = decide_length(pilot_s, window, LATE)
        assert (decided.block_steps, decided.blocks) == (4, 3)
    run_window(engine, WINDOW, decide_length(warm.pilot_s, WINDOW, LATE))
    assert LATE.ends_round(session_of(engine).steps)


def test_phases_of_unlike_steps_are_means_over_whole_rounds() -> None:
    time = FakeTime()
    engine = dataclasses.replace(make_engine(time), rhythm=Rhythm(period=4))
    session, count = session_of(engine), itertools.count(1)
    session.optimizer_step = lambda: time.sleep(0.9 if next(count) % 4 == 0 else 0.1)  # type: ignore[method-assign] # one step in four averages
    timed = run_window(engine, WINDOW, length(3, 4))
    assert timed.phase_s["optimizer"] == pytest.approx(0.3)
    assert sum(timed.phase_s.values()) == pytest.approx(timed.window_s / 12)


def test_pairs_of_blocks_are_whole_rounds_too() -> None:
    engine = dataclasses.replace(make_engine(FakeTime(), forward_s=0.1), rhythm=LATE)
    run_sync_pairs(engine, Window(max_s=0.5), 4)
    assert session_of(engine).synchronised[:16] == [True] * 8 + [False] * 8


def test_a_pilot_is_of_the_last_steps_only() -> None:
    time = FakeTime()
    engine = dataclasses.replace(make_engine(time, forward_s=0.5), rhythm=Rhythm(settle_steps=3))
    session, count = session_of(engine), itertools.count()
    session.sleep = lambda seconds: time.sleep(seconds if next(count) >= 4 * 3 else 5.0)
    warm = warm_up(engine, warmup_rule(Effort(warmup_steps=0), "cpu", engine.rhythm))
    assert warm.pilot_s == [0.5] * 4
