"""The one training loop: warm up, then time blocks of steps.

Nothing here synchronises inside a block, and no rank decides anything alone: every decision is
computed from numbers that all ranks have agreed on. How long the window will be is decided before
it begins.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor

from bench.measure.clock import LAST_PHASE, Block, Clock
from bench.plan.case import Effort, Window
from bench.strategies.base import Session
from bench.strategies.nature import STEADY, Rhythm
from workloads.base import Batch

BLOCK_S = 0.5
"""Wanted length of a block: long against the agreement between blocks, short against a window."""
PILOT_STEPS = 4
"""Last steps of warm-up, at least, from whose spread the length of the window is decided."""
OVERTIME = 2.0
"""Times ``max_s`` after which a window ends that takes longer than it was decided to."""
QUIET_STEPS = 4
"""Steps in which nothing was compiled, for compiling to be over: a CUDA graph is warmed up in the
first of them, captured in the second, and replayed from the third on. No less than a pilot."""
COMPILING_STEPS = 64
"""Most steps that compiling may take: beyond them it goes on in the window, and is seen there."""
DDP_TIMED_STEPS = 11
"""Up to which DDP makes the host wait for the device, to time itself; no setting turns that off."""
MARKS_PER_MICRO_STEP = 3
"""Data, forward, backward; the optimizer's comes once a step."""
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
    syncs_every: bool = False
    """Whether every micro-step synchronises, and not the last one of an optimizer step alone."""
    rhythm: Rhythm = STEADY
    """Blocks of the window, and of the pairs, are whole rounds of it."""
    sample_memory: Callable[[], None] = field(default=lambda: None)
    """Called between blocks."""
    compilations: Callable[[], int] | None = None
    """How often this process has compiled something; None where nothing is to be compiled."""
    after_block: Callable[[int, Tensor], None] = field(default=lambda _, __: None)
    """Called after each block with the number of its steps, and the loss of the last micro-step,
    which stays where it is: on the device, and perhaps not computed yet."""


@dataclass(kw_only=True)
class _Steps:
    """Steps before the window, each timed alone."""

    engine: Engine
    own_s: list[float] = field(default_factory=list)
    slowest_s: list[float] = field(default_factory=list)
    quiet: int = 0
    """Last steps in which no rank has compiled anything."""

    def run(self) -> None:
        before = self._compilations()
        self.own_s.append(run_block(self.engine, 1).elapsed_s)
        # Decided on the slowest rank's time, so that all ranks run the same number of steps.
        self.slowest_s.append(self.engine.slowest(self.own_s[-1]))
        if self.engine.compilations is not None:
            compiled = self.engine.slowest(float(self._compilations() - before))
            self.quiet = 0 if compiled else self.quiet + 1

    def _compilations(self) -> int:
        return 0 if self.engine.compilations is None else self.engine.compilations()


@dataclass(frozen=True, kw_only=True)
class WarmUp:
    """Steps before the window, in seconds on this process."""

    first_step_s: float | None
    step_s: list[float]
    pilot_s: list[float]
    """The last steps, as the slowest rank took them: the same on all ranks."""


@dataclass(frozen=True, kw_only=True)
class Length:
    """How long a window will be: decided before it begins, from steps that are not in it.

    A window that ended when its own steps looked steady would prefer the moments in which the
    machine was quick.
    """

    blocks: int
    block_steps: int
    set_by: Literal["min_steps", "target_interval", "max_s"]


@dataclass(frozen=True, kw_only=True)
class Timed:
    """What the window gave, in seconds, on this process."""

    step_s: list[float]
    phase_s: dict[str, float]
    """Median over the steps; where they are not all alike, mean over whole rounds."""
    window_s: float
    block_steps: int
    stopped_by: Literal["min_steps", "target_interval", "max_s"]


def run_block(engine: Engine, steps: int, *, sync: bool = True) -> Block:
    """Time some optimizer steps.

    Args:
        engine: what to run.
        steps: how many.
        sync: False leaves the synchronisation out of all of them.
    """
    session, batches, mark = engine.session, engine.batches, engine.clock.mark
    last = engine.accumulation_steps - 1
    loss: Tensor | None = None
    engine.clock.reserve(steps * (MARKS_PER_MICRO_STEP * engine.accumulation_steps + 1))
    engine.clock.start()
    for _ in range(steps):
        for micro_step in range(engine.accumulation_steps):
            batch = next(batches)
            mark("data")
            is_due = engine.syncs_every or micro_step == last
            loss = session.micro_step(batch, sync=sync and is_due, mark=mark)
        session.optimizer_step()
        mark("optimizer")
    block = engine.clock.stop()
    if loss is not None:
        engine.after_block(steps, loss)
    return block


def warmup_rule(effort: Effort, device_type: str, rhythm: Rhythm = STEADY) -> tuple[int, float]:
    """(least steps, least seconds) before the window.

    On a CPU: past DDP's rebuild of its buckets in the second step, and a pilot. On accelerators:
    past the ten steps in which DDP makes the host wait to time itself, and long enough for clocks
    to rise. Whatever is asked for, past those ten, past the steps in which a strategy trains
    otherwise than later, the first of its own kind, and a pilot.
    """
    settled = 0
    if rhythm != STEADY:
        settled = rhythm.settle_steps + 1 + pilot_steps(rhythm)
    if effort.warmup_steps != "auto":
        timed = 0 if device_type == "cpu" else DDP_TIMED_STEPS
        return max(effort.warmup_steps, timed, settled), 0.0
    steps, seconds = (6, 0.5) if device_type == "cpu" else (12, 2.0)
    return max(steps, settled), seconds


def pilot_steps(rhythm: Rhythm) -> int:
    """Last steps of warm-up from which the window's length is decided: whole rounds."""
    return rhythm.whole_rounds(PILOT_STEPS)


def compile_steps(engine: Engine) -> list[float]:
    """Run until no rank compiles any more; seconds of each step on this process.

    Nothing where nothing is to be compiled.
    """
    if engine.compilations is None:
        return []
    steps = _Steps(engine=engine)
    engine.slowest(0.0)
    while steps.quiet < QUIET_STEPS and len(steps.own_s) < COMPILING_STEPS:
        steps.run()
    return steps.own_s


def warm_up(engine: Engine, rule: tuple[int, float], compiled_s: Sequence[float] = ()) -> WarmUp:
    """Run until both parts of the rule are met on the slowest rank; each step timed alone.

    Where there is a warm-up at all, it ends with a round of the strategy's rhythm.

    Args:
        engine: what to run.
        rule: least steps, least seconds.
        compiled_s: steps before them, in which something was compiled. A rank that compiles again
            makes all go on until none does.
    """
    min_steps, min_s = rule
    steps = _Steps(engine=engine, quiet=QUIET_STEPS)
    is_compiled = engine.compilations is not None
    engine.slowest(0.0)
    while (
        len(steps.own_s) < min_steps
        or sum(steps.slowest_s[0 if compiled_s else 1 :]) < min_s
        or (is_compiled and steps.quiet < QUIET_STEPS and len(steps.own_s) < COMPILING_STEPS)
        or (min_steps > 0 and not engine.rhythm.ends_round(len(compiled_s) + len(steps.own_s)))
    ):
        steps.run()
    own_s = [*compiled_s, *steps.own_s]
    return WarmUp(
        first_step_s=own_s[0] if own_s else None,
        step_s=own_s[1:],
        pilot_s=steps.slowest_s[0 if compiled_s else 1 :][-pilot_steps(engine.rhythm) :],
    )


def decide_length(pilot_s: Sequence[float], window: Window, rhythm: Rhythm = STEADY) -> Length:
    """How many blocks of how many steps the window has.

    As many steps as two standard errors within ``target_interval`` of the mean need, if steps
    scatter as in the pilot; at least ``min_steps``, and else no longer than ``max_s``. Blocks are
    whole rounds, so that each has its share of what comes once in a while.

    >>> decide_length([0.1, 0.1, 0.1, 0.1], Window(min_steps=10, max_s=10))
    Length(blocks=2, block_steps=5, set_by='min_steps')
    """
    if not pilot_s:
        block_steps = rhythm.period
        blocks = math.ceil(window.min_steps / block_steps)
        return Length(blocks=blocks, block_steps=block_steps, set_by="min_steps")
    step_s = max(statistics.fmean(pilot_s), 1e-9)
    block_steps = rhythm.whole_rounds(max(1, round(min(BLOCK_S, window.max_s / 10) / step_s)))
    needed = math.inf
    if len(pilot_s) >= PILOT_STEPS:
        needed = (2 * statistics.stdev(pilot_s) / (step_s * window.target_interval)) ** 2
    affordable = window.max_s / step_s
    steps = max(window.min_steps, min(needed, affordable))
    set_by: Literal["min_steps", "target_interval", "max_s"] = "min_steps"
    if steps > window.min_steps:
        set_by = "target_interval" if needed <= affordable else "max_s"
    return Length(blocks=math.ceil(steps / block_steps), block_steps=block_steps, set_by=set_by)


def expected_s(length: Length, pilot_s: Sequence[float]) -> float | None:
    """How long a window of that length takes at the pilot's pace; None without a pilot.

    >>> expected_s(Length(blocks=2, block_steps=5, set_by="min_steps"), [0.1, 0.3])
    2.0
    """
    if not pilot_s:
        return None
    return length.blocks * length.block_steps * statistics.fmean(pilot_s)


def expected_pairs_s(
    length: Length, pilot_s: Sequence[float], window: Window, rhythm: Rhythm = STEADY
) -> float | None:
    """How long ``run_sync_pairs`` takes at least, or as long as it may; None without a pilot."""
    if not pilot_s:
        return None
    pair_s = 2 * (length.block_steps + rhythm.period) * statistics.fmean(pilot_s)
    return SYNC_PAIRS * pair_s + window.max_s


def run_window(engine: Engine, window: Window, length: Length) -> Timed:
    """Time the window's blocks.

    Args:
        engine: warmed up.
        window: for the time after which it ends early, though not before ``min_steps``.
        length: the same on all ranks.
    """
    blocks: list[Block] = []
    spent_s = 0.0
    engine.slowest(0.0)
    for _ in range(length.blocks):
        blocks.append(run_block(engine, length.block_steps))
        engine.sample_memory()
        spent_s += engine.slowest(blocks[-1].elapsed_s)
        enough = len(blocks) * length.block_steps >= window.min_steps
        if enough and spent_s > OVERTIME * window.max_s:
            return _timed(blocks, length.block_steps, "max_s", engine.rhythm)
    return _timed(blocks, length.block_steps, length.set_by, engine.rhythm)


def run_sync_pairs(engine: Engine, window: Window, block_steps: int) -> list[tuple[float, float]]:
    """Seconds per step with and without synchronisation, slowest rank, in pairs of blocks.

    The optimizer's are left out: gradients are synchronised before.

    Each pair is measured back to back, in turns with either first, so that drift cancels. A round
    of its own kind, mostly one step, goes before each block: whether DDP broadcasts buffers depends
    on the step before. The ranks' parameters are no longer equal afterwards.
    """
    pairs: list[tuple[float, float]] = []
    spent = 0.0
    engine.slowest(0.0)
    while len(pairs) < SYNC_PAIRS or (spent < window.max_s and len(pairs) < 4 * SYNC_PAIRS):
        seconds: dict[bool, float] = {}
        for sync in (True, False) if len(pairs) % 2 == 0 else (False, True):
            run_block(engine, engine.rhythm.period, sync=sync)
            engine.slowest(0.0)
            block = run_block(engine, block_steps, sync=sync)
            # Without gradients of its own kind, as FSDP's, an optimizer would have nothing to do.
            before_optimizer_s = block.elapsed_s - sum(block.phase_s[LAST_PHASE])
            seconds[sync] = engine.slowest(before_optimizer_s) / block_steps
        spent += sum(seconds.values()) * block_steps
        pairs.append((seconds[True], seconds[False]))
    return pairs


def _timed(
    blocks: list[Block],
    block_steps: int,
    stopped_by: Literal["min_steps", "target_interval", "max_s"],
    rhythm: Rhythm,
) -> Timed:
    # A median of unlike steps would be of one kind of them, and blocks are whole rounds.
    typical = statistics.median if rhythm.period == 1 else statistics.fmean
    phases = dict.fromkeys(name for block in blocks for name in block.phase_s)
    return Timed(
        step_s=[step for block in blocks for step in block.step_s],
        phase_s={
            name: typical(part for block in blocks for part in block.phase_s[name])
            for name in phases
        },
        window_s=sum(block.elapsed_s for block in blocks),
        block_steps=block_steps,
        stopped_by=stopped_by,
    )
