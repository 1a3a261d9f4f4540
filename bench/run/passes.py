"""The passes that take time: what a step costs, and what synchronisation adds to it."""

from __future__ import annotations

import gc
import itertools
import time

from bench.measure import parity
from bench.run.loop import (
    Engine,
    Length,
    WarmUp,
    decide_length,
    run_sync_pairs,
    run_window,
    warm_up,
    warmup_rule,
)
from bench.run.outcome import Measured
from bench.run.rank import Rank
from bench.strategies.base import Session

DIGESTED_BATCHES = 3
"""Batches of each rank whose digests show that all ranks' data differ."""


def measure_time(rank: Rank) -> Session:
    """The timing pass; returns the session, which must outlive the hand-over."""
    engine, warm, length = _warm_engine(rank)
    gc.collect()
    rank.device.reset_peaks()
    rank.note(phase="window")
    timed = run_window(engine, rank.assignment.effort.window, length)
    rank.note(
        measured=Measured(
            first_step_s=warm.first_step_s,
            warmup_step_s=warm.step_s,
            step_s=timed.step_s,
            phase_s=timed.phase_s,
            window_s=timed.window_s,
            block_steps=timed.block_steps,
            stopped_by=timed.stopped_by,
        ),
        memory=rank.device.peaks(),
        phase="check",
    )
    parameters = (tensor for _, tensor in engine.session.full_parameters())
    rank.note(parameter_digest=parity.digest(parameters))
    return engine.session


def measure_communication(rank: Rank) -> Session:
    """The communication pass; returns the session, which must outlive the hand-over."""
    engine, _, length = _warm_engine(rank)
    rank.note(phase="communication", bucket_bytes=engine.session.bucket_bytes())
    window = rank.assignment.effort.window
    rank.note(sync_pairs_s=run_sync_pairs(engine, window, length.block_steps))
    return engine.session


def _warm_engine(rank: Rank) -> tuple[Engine, WarmUp, Length]:
    """A warmed-up engine, how it warmed up, and how long its window will be."""
    effort = rank.assignment.effort
    engine = _set_up(rank)
    rank.note(phase="warm-up")
    warm = warm_up(engine, warmup_rule(effort, rank.case.device))
    return engine, warm, decide_length(warm.pilot_s, effort.window)


def _set_up(rank: Rank) -> Engine:
    """Build everything and warm up nothing."""
    rank.note(phase="set-up")
    begin = time.perf_counter()
    problem = rank.problem()
    session = rank.strategy.prepare(problem, rank.context())
    batches = rank.batches(problem)
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
        sample_memory=rank.device.sample_memory,
    )
