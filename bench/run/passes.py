"""The passes over a case: what a step costs, what communication costs, what memory it needs."""

from __future__ import annotations

import dataclasses
import gc
import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self

import msgspec
from torch.profiler import profile, record_function

from bench.measure import parity
from bench.measure.allocations import read_allocations
from bench.measure.clock import MarkingClock
from bench.measure.compilation import CompileWatch, end_compiler
from bench.measure.counters import Counters
from bench.measure.device import is_out_of_memory
from bench.measure.flops import Work, matrix_rate
from bench.measure.memory import minor_faults
from bench.measure.observers import observers
from bench.measure.ranges import STEPS, mark_range
from bench.measure.standalone import measure_alone, messages_of
from bench.measure.trace import Event, read_steps, read_trace, timed_events
from bench.measure.tracefile import write_trace
from bench.run.handover import Measured
from bench.run.input import cpu_s, use_of
from bench.run.loop import (
    Engine,
    Length,
    WarmUp,
    compile_steps,
    decide_length,
    expected_pairs_s,
    expected_s,
    run_block,
    run_sync_pairs,
    run_window,
    warm_up,
    warmup_rule,
)
from bench.run.phases import COMPILE
from bench.run.rank import Rank
from bench.strategies.base import Session
from bench.strategies.module_session import addresses
from workloads.base import Batch, Problem

PROFILED_S = 1.0
"""Wanted length of the profiled steps."""
PROFILED_STEPS = range(2, 21)
"""How many they may be."""
TRIED_STEPS = 3
"""Of a batch that may not fit: the optimizer makes its state in the first, DDP rebuilds its buckets
before the second."""
NO_THREAD = "Resource temporarily unavailable"
"""What starting a thread says, among other causes, where its stack finds no memory."""
REBUILDING_STEPS = 2
"""Most steps by which a static graph rebuilds its buckets later than other graphs."""
DIGESTED_BATCHES = 3
"""Batches of each rank whose digests show that all ranks' data differ."""


def measure_time(rank: Rank) -> Session:
    """The timing pass; returns the session, which must outlive the hand-over."""
    engine, warm, length = _warm_engine(rank)
    gc.collect()
    if rank.case.device != "cpu":  # no step of warm-up has let the host run ahead of the device
        run_block(engine, length.block_steps)
    rank.device.reset_peaks()
    if rank.compilation is not None:
        rank.compilation.begin_window()
    rank.note(phase="window", expected_s=expected_s(length, warm.pilot_s))
    observing = observers()
    counters = Counters(rank.assignment.watched) if rank.local_rank == 0 else None
    skipped, retries = engine.session.skipped_steps(), rank.device.allocator_retries()
    faults = minor_faults()
    began_s, cpu_began_s = time.monotonic(), _cpu_s(rank)
    timed = run_window(engine, rank.assignment.effort.window, length)
    ended_s, cpu_ended_s = time.monotonic(), _cpu_s(rank)
    more_faults = minor_faults()
    cores_use = None if counters is None else counters.use()
    rank.note(
        measured=Measured(
            first_step_s=warm.first_step_s,
            warmup_step_s=warm.step_s,
            step_s=timed.step_s,
            phase_s=timed.phase_s,
            window_s=timed.window_s,
            block_steps=timed.block_steps,
            stopped_by=timed.stopped_by,
            minor_faults=more_faults - faults,
            clock_resolution_s=engine.clock.resolution_s,
            began_s=began_s,
            ended_s=ended_s,
            cpu_s=cpu_ended_s - cpu_began_s,
            cores_use=cores_use,
            skipped_steps=engine.session.skipped_steps() - skipped,
            allocator_retries=rank.device.allocator_retries() - retries,
        ),
        observers=sorted({*observing, *observers()}),
        input=None if rank.feed is None else use_of(rank.feed),
        memory=rank.device.peaks(),
        held=engine.session.held_bytes(),
        phase="check",
        loss_is_finite=rank.loss_is_finite(),
    )
    if rank.feed is not None:
        rank.feed.close()
    rank.note_compiled()
    parameters = (tensor for _, tensor in engine.session.full_parameters())
    rank.note(parameter_digest=parity.digest(parameters))
    if rank.assignment.launch == 0:
        rank.note(work=_work_of(rank))
    return engine.session


def _cpu_s(rank: Rank) -> float:
    """CPU time of this process and the workers of its loader."""
    return time.process_time() + cpu_s(rank.feed)


def _work_of(rank: Rank) -> Work:
    """What a step computes, and the device's rate: after all that is timed, once for each case."""
    rank.slowest(0.0)
    rate: float | None = None
    try:
        rate = matrix_rate(rank.device, rank.case.precision)
    except (RuntimeError, MemoryError) as error:  # no measured window is lost to that
        if not is_out_of_memory(error):
            raise
    counted = rank.count_flops() if rank.rank == 0 else Work()
    rank.slowest(0.0)  # else the others were done, and this one late, where a model takes minutes
    return msgspec.structs.replace(counted, matrix_flops_per_s=rate)


def measure_communication(rank: Rank) -> Session:
    """The communication pass; returns the session, which must outlive the hand-over."""
    engine, warm, length = _warm_engine(rank)
    window = rank.assignment.effort.window
    rank.note(
        phase="communication",
        expected_s=expected_pairs_s(length, warm.pilot_s, window, rank.rhythm),
        bucket_bytes=engine.session.bucket_bytes() or None,
    )
    if rank.strategy.has_sync_cost(rank.options) and _has_room_for_whole_gradients(rank):
        if rank.compilation is not None:  # a wrapper's forward may be another one without it
            run_block(engine, 1, sync=False)
            engine.slowest(0.0)
        rank.note(sync_pairs_s=run_sync_pairs(engine, window, length.block_steps))
    rank.note(phase="profile")
    profiler = rank.device.profiler(shapes=True)
    steps = rank.rhythm.whole_rounds(_profiled_count(warm))
    with profiler:
        run_block(engine, rank.rhythm.period)  # the profiler itself warms up
        _profiled_steps(rank, engine, steps)
        # A thread of gloo's may report a message after handing it over, and without its size where
        # the profile ends before: these steps, which nobody reads, give it the time.
        run_block(engine, rank.rhythm.period)
    events = _exported(rank, profiler, keep=True)
    trace = read_steps(
        events,
        steps=steps,
        world_size=rank.strategy.group_sizes(rank.case)[0],
        device=None if rank.case.device == "cpu" else rank.device.torch_device.index or 0,
    )
    if not trace.spans and rank.case.backend == "nccl" and rank.processes > 1:
        raise RuntimeError("the profile of a step over NCCL holds no communication")
    rank.note(trace=trace)
    if rank.processes > 1:
        rank.note(phase="standalone")
        messages = messages_of(trace, rank.rhythm.period, rank.processes)
        alone = measure_alone(messages, rank.device, rank=rank.rank, ranks=rank.processes)
        rank.note(alone_s=alone)
    rank.note_compiled()
    return engine.session


def _has_room_for_whole_gradients(rank: Rank) -> bool:
    """Whether steps without synchronisation fit: what shards gradients keeps whole ones meanwhile.

    The same on all ranks, which would wait for one that ran out of memory.
    """
    if rank.strategy.shards_gradients:
        free = rank.device.free_bytes()
        whole = sum(rank.outcome.bucket_bytes or ())
        lacks = free is not None and free < whole
        return not rank.slowest(float(lacks))
    return True


def measure_memory(rank: Rank) -> Session:
    """The memory pass: tensor memory of steady steps, from a profile that sees every allocation."""
    profiler = rank.device.profiler(memory=True)
    held: list[dict[int, str]] = []
    with profiler:
        engine = set_up(rank, one_thread=True)
        _compile(rank, engine)
        rank.note(phase="memory")
        # The first step makes the optimizer's state; DDP rebuilds its buckets before the second.
        # A strategy that settles holds what it needs after the first step of its own kind.
        rhythm = rank.rhythm
        run_block(engine, max(2, rhythm.settle_steps + 1))
        _await_buckets(engine)
        data = _Data(engine.batches)
        watched = dataclasses.replace(engine, batches=data)
        _profiled_steps(
            rank,
            watched,
            rhythm.period,
            after_mark=lambda: held.append({**data.addresses, **engine.session.held_addresses()}),
        )
    buckets = engine.session.bucket_bytes() or []
    found = read_allocations(_exported(rank, profiler), rank.driven, held, buckets)
    rank.note(allocations=found, held=engine.session.held_bytes())
    rank.note_compiled()
    return engine.session


def _await_buckets(engine: Engine) -> None:
    """Go on until DDP has its last buckets, which a static graph rebuilds a step later."""
    for _ in range(REBUILDING_STEPS):
        if engine.session.bucket_bytes() != []:
            return
        run_block(engine, 1)


class _Data:
    """Batches that pass by, and where they stand in memory."""

    def __init__(self, batches: Iterator[Batch]) -> None:
        self._batches = batches
        self.addresses: dict[int, str] = {}

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Batch:
        batch = next(self._batches)
        self.addresses |= dict.fromkeys(addresses([*batch.inputs, batch.targets]), "data")
        return batch


def try_batch(rank: Rank) -> Session:
    """A few steps under the memory limit: that they end is the result."""
    limit_gib = rank.assignment.effort.memory_limit_gib
    if limit_gib is not None:
        rank.device.limit_memory(round(limit_gib * 2**30))
    engine = set_up(rank)
    rank.note(phase="max_batch")
    try:
        run_block(engine, max(TRIED_STEPS, rank.rhythm.proof_steps))
    except RuntimeError as error:
        if limit_gib is not None and NO_THREAD in str(error):
            raise MemoryError("no memory is left for the stack of a thread") from error
        raise
    rank.device.limit_memory(None)
    rank.note(memory=rank.device.peaks())
    return engine.session


def _count_of(watch: CompileWatch | None) -> Callable[[], int] | None:
    return None if watch is None else lambda: watch.count


def _profiled_count(warm: WarmUp) -> int:
    """Steps to profile: the same on all ranks."""
    if not warm.pilot_s:
        return PROFILED_STEPS[0]
    wanted = round(PROFILED_S / max(statistics.fmean(warm.pilot_s), 1e-9))
    return min(max(wanted, PROFILED_STEPS[0]), PROFILED_STEPS[-1])


def _profiled_steps(
    rank: Rank, engine: Engine, steps: int, after_mark: Callable[[], None] = lambda: None
) -> None:
    def mark(phase: str) -> None:
        with record_function(mark_range(phase)):
            after_mark()

    marked = dataclasses.replace(engine, clock=MarkingClock(engine.clock, mark))
    rank.slowest(0.0)
    rank.device.synchronize()
    with record_function(STEPS):
        run_block(marked, steps)


def _exported(rank: Rank, profiler: profile, *, keep: bool = False) -> list[Event]:
    """The events of a profile.

    Args:
        rank: of this process.
        profiler: that has seen them.
        keep: them as a file too, where the run is to leave traces.
    """
    path = Path(rank.assignment.folder) / f"rank{rank.rank}.trace.json"
    profiler.export_chrome_trace(str(path))
    try:
        document = read_trace(path)
    finally:
        path.unlink()
    wish = rank.assignment.trace
    if keep and wish is not None and (wish.ranks is None or rank.rank in wish.ranks):
        problem = write_trace(
            document,
            Path(wish.folder) / f"rank{rank.rank}.json",
            rank=rank.rank,
            ranks=rank.processes,
            limit_bytes=wish.limit_bytes,
            bucket_bytes=rank.outcome.bucket_bytes,
        )
        rank.note(trace_problem=problem)
    return timed_events(document, path.name)


def _warm_engine(rank: Rank) -> tuple[Engine, WarmUp, Length]:
    """A warmed-up engine, how it warmed up, and how long its window will be."""
    effort = rank.assignment.effort
    engine = set_up(rank)
    compiled_s = _compile(rank, engine)
    rank.note(phase="warm-up")
    warm = warm_up(engine, warmup_rule(effort, rank.case.device, rank.rhythm), compiled_s)
    return engine, warm, decide_length(warm.pilot_s, effort.window, rank.rhythm)


def _compile(rank: Rank, engine: Engine) -> list[float]:
    """Run steps until all is compiled; returns their seconds."""
    if rank.compilation is None:
        return []
    rank.note(phase=COMPILE)
    compiled_s = compile_steps(engine)
    end_compiler()
    return compiled_s


def set_up(rank: Rank, *, one_thread: bool = False, problem: Problem | None = None) -> Engine:
    """Build everything and warm up nothing.

    Args:
        rank: of this process.
        one_thread: see ``Context``.
        problem: in place of the case's own, freshly built.
    """
    rank.note(phase="set-up")
    rank.device.reset_peaks()
    begin = time.perf_counter()
    problem = problem or rank.problem()
    session = rank.session(problem, one_thread=one_thread)
    batches = rank.open_feed(problem)
    first = list(itertools.islice(batches, DIGESTED_BATCHES))
    clock = rank.device.clock()
    rank.note(
        setup_s=time.perf_counter() - begin,
        batch_digests=[parity.digest((*batch.inputs, batch.targets)) for batch in first],
    )
    return Engine(
        session=session,
        batches=batches,
        clock=clock,
        slowest=rank.slowest,
        accumulation_steps=rank.case.accumulation_steps,
        syncs_every=rank.case.accumulation_sync == "every",
        rhythm=rank.rhythm,
        sample_memory=rank.device.sample_memory,
        compilations=_count_of(rank.compilation),
        after_block=rank.after_block,
    )
