"""The one training loop: warm up, then time blocks of steps until all ranks agree to stop.

Nothing here synchronises inside a block, and no rank decides anything alone: every decision is
computed from numbers that all ranks have agreed on.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from bench.measure.clock import Block, Clock
from bench.plan.case import Effort, Window
from bench.strategies.base import Session
from workloads.base import Batch

BLOCK_S = 0.5
"""Wanted length of a block: long against the agreement between blocks, short against a window."""
MIN_BLOCKS = 4
"""Blocks before the spread among them may end the window."""
SYNC_PAIRS = 6
"""Least pairs of blocks with and without synchronisation: their extremes span a 95 % interval of
the median."""

Slowest = Callable[[float], float]
"""Largest value over all ranks. Collective, on the host, and so a common start for what follows."""


@dataclass(frozen=True, kw_only=True)
class Engine:
    """What the loop needs of one process."""

    session: Session
    batches: Iterator[Batch]
    clock: Clock
    slowest: Slowest
    accumulation_steps: int
    sample_memory: Callable[[], None] = field(default=lambda: None)
    """Called between blocks."""


@dataclass(frozen=True, kw_only=True)
class WarmUp:
    """Steps before the window, in seconds."""

    first_step_s: float | None
    step_s: list[float]

    def typical_step_s(self) -> float | None:
        """Median of the later half, when there is one."""
        later = self.step_s[len(self.step_s) // 2 :]
        return statistics.median(later) if later else self.first_step_s


@dataclass(frozen=True, kw_only=True)
class Timed:
    """What the window gave, in seconds, on this process."""

    step_s: list[float]
    phase_s: dict[str, float]
    """Median over the steps."""
    window_s: float
    block_steps: int
    stopped_by: Literal["target_interval", "max_s"]


def run_block(engine: Engine, steps: int, *, sync: bool = True) -> Block:
    """Time some optimizer steps.

    Args:
        engine: what to run.
        steps: how many.
        sync: False leaves the synchronisation out of all of them.
    """
    session, batches, mark = engine.session, engine.batches, engine.clock.mark
    last = engine.accumulation_steps - 1
    engine.clock.start()
    for _ in range(steps):
        for micro_step in range(engine.accumulation_steps):
            batch = next(batches)
            mark("data")
            session.micro_step(batch, sync=sync and micro_step == last, mark=mark)
        session.optimizer_step()
        mark("optimizer")
    return engine.clock.stop()


def warmup_rule(effort: Effort, device_type: str) -> tuple[int, float]:
    """(least steps, least seconds) before the window.

    On a CPU: past DDP's rebuild of its buckets in the second step. On accelerators: past the ten
    steps in which DDP makes the host wait to time itself, and long enough for clocks to rise.
    """
    if effort.warmup_steps != "auto":
        return effort.warmup_steps, 0.0
    return (4, 0.5) if device_type == "cpu" else (12, 2.0)


def warm_up(engine: Engine, rule: tuple[int, float]) -> WarmUp:
    """Run until both parts of the rule are met on the slowest rank; each step timed alone."""
    min_steps, min_s = rule
    elapsed: list[float] = []
    engine.slowest(0.0)
    while len(elapsed) < min_steps or sum(elapsed[1:]) < min_s:
        block = run_block(engine, 1)
        # Decided on the slowest rank's time, so that all ranks run the same number of steps.
        elapsed.append(engine.slowest(block.elapsed_s))
    return WarmUp(first_step_s=elapsed[0] if elapsed else None, step_s=elapsed[1:])


def block_size(step_s: float | None, window: Window) -> int:
    """Steps of one block, for a step of about this length on the slowest rank."""
    if step_s is None or step_s <= 0:
        return 1
    return max(1, round(min(BLOCK_S, window.max_s / 10) / step_s))


def run_window(engine: Engine, window: Window, block_steps: int) -> Timed:
    """Time blocks until the window's rule is met.

    Args:
        engine: warmed up.
        window: when to stop.
        block_steps: the same on all ranks.
    """
    blocks: list[Block] = []
    slowest_s: list[float] = []
    engine.slowest(0.0)
    while True:
        blocks.append(run_block(engine, block_steps))
        engine.sample_memory()
        slowest_s.append(engine.slowest(blocks[-1].elapsed_s))
        if len(blocks) * block_steps < window.min_steps:
            continue
        if relative_half_width(slowest_s) <= window.target_interval:
            return _timed(blocks, block_steps, "target_interval")
        if sum(slowest_s) >= window.max_s:
            return _timed(blocks, block_steps, "max_s")


def relative_half_width(values: list[float]) -> float:
    """Two standard errors of the mean, relative to it: a rule for stopping, not an interval.

    >>> relative_half_width([1.0, 1.0, 1.0, 1.0])
    0.0
    """
    if len(values) < MIN_BLOCKS:
        return float("inf")
    error = statistics.stdev(values) / math.sqrt(len(values))
    return 2 * error / statistics.fmean(values)


def run_sync_pairs(engine: Engine, window: Window, block_steps: int) -> list[tuple[float, float]]:
    """Seconds per step with and without synchronisation, slowest rank, in pairs of blocks.

    Each pair is measured back to back, in turns with either first, so that drift cancels. The
    ranks' parameters are no longer equal afterwards.
    """
    pairs: list[tuple[float, float]] = []
    spent = 0.0
    engine.slowest(0.0)
    while len(pairs) < SYNC_PAIRS or (spent < window.max_s and len(pairs) < 4 * SYNC_PAIRS):
        seconds: dict[bool, float] = {}
        for sync in (True, False) if len(pairs) % 2 == 0 else (False, True):
            block = run_block(engine, block_steps, sync=sync)
            seconds[sync] = engine.slowest(block.elapsed_s) / block_steps
        spent += sum(seconds.values()) * block_steps
        pairs.append((seconds[True], seconds[False]))
    return pairs


def _timed(
    blocks: list[Block], block_steps: int, stopped_by: Literal["target_interval", "max_s"]
) -> Timed:
    phases = dict.fromkeys(name for block in blocks for name in block.phase_s)
    return Timed(
        step_s=[step for block in blocks for step in block.step_s],
        phase_s={
            name: statistics.median(part for block in blocks for part in block.phase_s[name])
            for name in phases
        },
        window_s=sum(block.elapsed_s for block in blocks),
        block_steps=block_steps,
        stopped_by=stopped_by,
    )
