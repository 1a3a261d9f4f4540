"""The checkpoint pass: that training goes on from what was saved, and what saving it takes.

First the round trips, in fp64 on little data. Then, in the case's own precision and size, a state
is saved and restored a few times with a clock beside it.
"""

from __future__ import annotations

import gc
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, distributed

from bench.measure import checkpoint_files as files
from bench.measure import parity
from bench.records.trained import Checkpoint
from bench.run.loop import run_block
from bench.run.passes import TRIED_STEPS, set_up
from bench.run.rank import Rank
from bench.run.round_trip import FURTHER_STEPS, prove_round_trips
from bench.run.saving import as_saved, remove, restore, write
from bench.strategies.base import SavedSession, Session

REPEATS = 3
"""Saves, and restores, that are timed."""


def measure_checkpoint(rank: Rank) -> Session | None:
    """The checkpoint pass; returns a session, which must outlive the hand-over."""
    saving = rank.strategy.saving(rank.options, rank.case.world_size)
    if saving.form == "none":
        rank.note(checkpoint=Checkpoint(verdict="not_checked", reason=saving.reason))
        return None
    sharded = saving.form == "sharded"
    place = Path(rank.assignment.checkpoint or rank.assignment.folder)
    rank.note(phase="checkpoint in fp64")
    shown = prove_round_trips(rank, place / "proof", sharded=sharded)
    gc.collect()
    if rank.compilation is not None:
        rank.compilation.forget()  # that of another model than the next one
    rank.note(phase=f"checkpoint in {rank.case.precision}")
    session, timed = _time(rank, place / "timed", sharded=sharded)
    problems = [*shown.problems, *timed.problems]
    rank.note(
        checkpoint=Checkpoint(
            verdict="failed" if problems else "exact",
            reason="; ".join(problems) or None,
            form=saving.form,
            save_s=timed.save_s,
            restore_s=timed.restore_s,
            bytes_by_rank=timed.bytes_by_rank,
            is_cold=timed.is_cold,
            loss_errors=shown.errors,
            tolerance=parity.TOLERANCE,
            steps=FURTHER_STEPS,
        )
    )
    rank.note_compiled()
    return session


@dataclass(kw_only=True)
class _Timed:
    save_s: list[float] = field(default_factory=list)
    restore_s: list[float] = field(default_factory=list)
    bytes_by_rank: list[int] = field(default_factory=list)
    is_cold: bool = False
    problems: list[str] = field(default_factory=list)


def _time(rank: Rank, folder: Path, *, sharded: bool) -> tuple[Session, _Timed]:
    """Save and restore the case's own training state, the slowest rank's seconds each."""
    engine = set_up(rank)
    run_block(engine, max(TRIED_STEPS, rank.rhythm.proof_steps))
    session = as_saved(engine.session)
    with_optimizer = rank.slowest(float(session.keeps_state())) > 0
    _require_space(rank, session, folder.parent, sharded=sharded)
    timed = _Timed()
    for repeat in range(REPEATS):
        if rank.rank == 0:
            folder.mkdir()
        timed.save_s.append(
            _slowest_s(
                rank,
                lambda: write(
                    rank, session, folder, sharded=sharded, with_optimizer=with_optimizer
                ),
            )
        )
        if rank.rank == 0:
            timed.bytes_by_rank = files.bytes_by_rank(folder, rank.processes)
            timed.is_cold = files.forget_cached(folder)
        before = parity.digest(_held(session))
        _spoil(session)
        timed.restore_s.append(_slowest_s(rank, lambda: restore(session, folder, sharded=sharded)))
        if parity.digest(_held(session)) != before:
            timed.problems.append(f"in {rank.case.precision}: rank {rank.rank} has not what it had")
        if repeat < REPEATS - 1 or rank.assignment.checkpoint is None:
            remove(rank, folder)
    return session, timed


def _require_space(rank: Rank, session: SavedSession, folder: Path, *, sharded: bool) -> None:
    """The tensors alone: what is written beside them is little."""
    held = sum(sum(device.values()) for device in session.held_bytes()[:1])
    needed = torch.tensor(held, dtype=torch.int64)
    if sharded and rank.processes > 1:
        distributed.all_reduce(needed)
    if rank.rank == 0:
        files.require_space(folder, int(needed.item()), shutil.disk_usage(folder).free)


def _slowest_s(rank: Rank, work: Callable[[], None]) -> float:
    """Seconds from a common start until the slowest rank has done its part."""
    rank.slowest(0.0)
    rank.device.synchronize()
    begin = time.perf_counter()
    work()
    rank.device.synchronize()
    return rank.slowest(time.perf_counter() - begin)


def _held(session: SavedSession) -> Iterator[Tensor]:
    """What this rank holds of parameters and the optimizer's state; buffers may be another's."""
    held = session.held_tensors()
    for tensor in (*held["parameters"], *held["optimizer_state"]):
        part = getattr(tensor, "_local_tensor", tensor)
        if isinstance(part, Tensor):
            yield part


@torch.no_grad()
def _spoil(session: SavedSession) -> None:
    """Overwrite it, so that what is right afterwards was restored."""
    for part in _held(session):
        part.zero_()
