"""The checkpoint pass: that training goes on from what was saved, and what saving it takes.

First in fp64 on little data, as in a proof: some steps, a save, and some more, whose losses are
what every restored model must show. It is restored under the same strategy; onto one device without
a wrapper; and what that device saves, under the strategy again. Then, in the case's own precision
and size, a training state is saved and restored a few times with a clock beside it.
"""

from __future__ import annotations

import gc
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor, distributed

from bench.measure import checkpoint_files as files
from bench.measure import parity
from bench.plan.registry import find_strategy
from bench.records.trained import Checkpoint
from bench.run.loop import run_block
from bench.run.passes import TRIED_STEPS, set_up
from bench.run.proof import accumulate, mean_over_ranks
from bench.run.rank import Rank
from bench.strategies.base import SavedSession, Session
from bench.strategies.saving import State
from workloads.base import Batch, Problem

REPEATS = 3
"""Saves, and restores, that are timed."""
FURTHER_STEPS = 3
"""Optimizer steps after saving: a wrong state of the optimizer shows in the losses after them."""
SAME, ONE_DEVICE, BACK = "same ranks", "one device", "back from one device"
OTHER_SEED = 1
"""Added to a case's seed: whatever a restored model has right was restored."""


@dataclass(kw_only=True)
class _Shown:
    """What the trips have shown."""

    losses: list[float]
    """Of the steps after saving, uninterrupted; means over all ranks."""
    saved: dict[str, str]
    """Digest of each tensor that was saved; on rank 0."""
    buffers: dict[str, set[str]]
    """Of each buffer, those of all ranks, any of which may have been saved."""
    errors: dict[str, float] = field(default_factory=dict)
    """Largest relative error of a loss, by trip."""
    problems: list[str] = field(default_factory=list)


def measure_checkpoint(rank: Rank) -> Session | None:
    """The checkpoint pass; returns a session, which must outlive the hand-over."""
    saving = rank.strategy.saving(rank.options, rank.case.world_size)
    if saving.form == "none":
        rank.note(checkpoint=Checkpoint(verdict="not_checked", reason=saving.reason))
        return None
    sharded = saving.form == "sharded"
    place = Path(rank.assignment.checkpoint or rank.assignment.folder)
    rank.note(phase="checkpoint in fp64")
    shown = _prove(rank, place / "proof", sharded=sharded)
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


def _prove(rank: Rank, folder: Path, *, sharded: bool) -> _Shown:
    problem = rank.problem_for_proof(dtype=torch.float64)
    session = _saved(rank.session(problem, exact=True))
    batches = rank.batches(problem)
    before = rank.rhythm.proof_steps
    for _ in range(before):
        _step(rank, session, batches)
    with_optimizer = rank.slowest(float(session.keeps_state())) > 0
    _save(rank, session, folder, sharded=sharded, with_optimizer=with_optimizer)
    saved = session.take_state(whole=True, with_optimizer=with_optimizer)
    own = {name: parity.digest([one]) for name, one in problem.model.named_buffers()}
    shown = _Shown(losses=[], saved=_digests(saved), buffers=_of_all_ranks(rank, own))
    del saved
    shown.losses += [_step(rank, session, batches) for _ in range(FURTHER_STEPS)]
    session.close()
    del session, batches
    _trip(rank, SAME, folder, shown, before, sharded=sharded)
    is_exact = rank.exactness.kind == "exact"
    if is_exact and (rank.case.world_size > 1 or rank.strategy.name != "single"):
        moved = folder.with_name("moved")
        if rank.rank == 0:
            _to_one_device(rank, folder, moved, shown, before)
        rank.slowest(0.0)
        _trip(rank, BACK, moved, shown, before, sharded=False)
        _remove(rank, moved)
    _remove(rank, folder)
    return shown


def _save(
    rank: Rank, session: SavedSession, folder: Path, *, sharded: bool, with_optimizer: bool
) -> None:
    """Have all ranks save a training state; returns when the disk has it. Collective."""
    if rank.rank == 0:
        folder.mkdir()
    rank.slowest(0.0)
    _write(rank, session, folder, sharded=sharded, with_optimizer=with_optimizer)
    rank.slowest(0.0)


def _write(
    rank: Rank, session: SavedSession, folder: Path, *, sharded: bool, with_optimizer: bool
) -> None:
    state = session.take_state(whole=not sharded, with_optimizer=with_optimizer)
    if sharded:
        files.write_sharded(state, folder)
    elif rank.rank == 0:
        files.write_whole(state, folder)


def _restore(session: SavedSession, folder: Path, *, sharded: bool) -> None:
    """Have all ranks go on from what stands in a folder. Collective.

    Args:
        session: of this rank.
        folder: that was saved to.
        sharded: read only what this rank holds.
    """
    if sharded:
        state = session.take_state(whole=False, with_optimizer=files.holds_optimizer(folder))
        files.read_sharded(state, folder)
        session.put_state(state, whole=False)
    else:
        session.put_state(files.read_whole(folder), whole=True)


def _trip(
    rank: Rank, name: str, folder: Path, shown: _Shown, before: int, *, sharded: bool
) -> None:
    """Restore a model under the strategy, compare what it holds, and train on."""
    data = rank.problem_for_proof(dtype=torch.float64)
    problem = replace(_unlike(rank), batches=data.batches)
    session = _saved(rank.session(problem, exact=True))
    batches = rank.batches(problem)
    _skip(batches, before * rank.case.accumulation_steps)
    _restore(session, folder, sharded=sharded)
    with_optimizer = rank.slowest(float(session.keeps_state())) > 0
    _compare(rank, name, session.take_state(whole=True, with_optimizer=with_optimizer), shown)
    losses = [_step(rank, session, batches) for _ in range(FURTHER_STEPS)]
    _compare_losses(name, losses, shown)
    session.close()
    del session
    gc.collect()


def _to_one_device(rank: Rank, folder: Path, moved: Path, shown: _Shown, before: int) -> None:
    """Restore onto one device without a wrapper, save there, and train on what all ranks see."""
    case = rank.case
    data = rank.problem_for_proof(dtype=torch.float64)
    problem = replace(_unlike(rank), batches=data.batches)
    single = find_strategy("single")
    context = replace(
        rank.context(exact=True), rank=0, world_size=1, compile="none", options=single.options()
    )
    session = _saved(single.prepare(problem, context))
    session.put_state(files.read_whole(folder), whole=True)
    state = session.take_state(whole=True, with_optimizer=session.keeps_state())
    _compare(rank, ONE_DEVICE, state, shown)
    moved.mkdir()
    files.write_whole(state, moved)
    steps = parity.step_batches(
        problem,
        shards=case.world_size,
        accumulation_steps=case.accumulation_steps,
        whole=rank.strategy.reference(case.options) == "whole_batch",
    )
    _skip(steps, before)
    losses = []
    for batches in (next(steps) for _ in range(FURTHER_STEPS)):
        losses.append(parity.accumulate(problem, batches))
        session.optimizer_step()
    _compare_losses(ONE_DEVICE, losses, shown)


def _step(rank: Rank, session: SavedSession, batches: Iterator[Batch]) -> float:
    """One optimizer step; returns its mean loss over all ranks. Collective."""
    loss = mean_over_ranks(accumulate(rank, session, batches), rank)
    session.optimizer_step()
    return loss


def _saved(session: Session) -> SavedSession:
    """The session, under the contract of what can be saved.

    Raises:
        TypeError: it is not under that.
    """
    if not isinstance(session, SavedSession):
        raise TypeError(
            f"a {type(session).__name__} cannot be saved: give it the methods of "
            "bench.strategies.base.SavedSession, or give its strategy a saving whose form is none"
        )
    return session


def _unlike(rank: Rank) -> Problem:
    """The same model with other parameters than any rank has trained."""
    return rank.problem_for_proof(dtype=torch.float64, seed=rank.case.seed + OTHER_SEED)


def _skip(steps: Iterator[object], count: int) -> None:
    for _ in range(count):
        next(steps)


def _digests(state: State) -> dict[str, str]:
    """Of every tensor of a whole state, by its path."""
    found = {f"{name}": parity.digest([one]) for name, one in state.get("model", {}).items()}
    for name, values in state.get("optimizer", {}).get("state", {}).items():
        for key, value in values.items():
            if isinstance(value, Tensor):
                found[f"{name}: {key}"] = parity.digest([value])
    return found


def _of_all_ranks(rank: Rank, own: dict[str, str]) -> dict[str, set[str]]:
    every: list[dict[str, str] | None] = [own]
    if rank.processes > 1:
        every = [None] * rank.processes
        distributed.all_gather_object(every, own)
    return {name: {one[name] for one in every if one is not None} for name in own}


def _compare(rank: Rank, name: str, state: State, shown: _Shown) -> None:
    """Bit for bit, on rank 0; a buffer may be that of any rank, as each may have its own."""
    if rank.rank > 0:
        return
    restored = _digests(state)
    wrong = [
        place
        for place, digest in shown.saved.items()
        if restored.get(place) not in {digest, *shown.buffers.get(place, ())}
    ]
    if wrong:
        shown.problems.append(
            f"{name}: {len(wrong)} of {len(shown.saved)} tensors are not what was saved, the first "
            f"of them {wrong[0]}"
        )


def _compare_losses(name: str, losses: list[float], shown: _Shown) -> None:
    error = max(
        abs(loss - expected) / abs(expected)
        for loss, expected in zip(losses, shown.losses, strict=True)
    )
    shown.errors[name] = error
    if not error <= parity.TOLERANCE:
        shown.problems.append(
            f"{name}: a loss after restoring is off by {error:.1e}, {parity.TOLERANCE:.1e} is "
            "allowed"
        )


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
    session = _saved(engine.session)
    with_optimizer = rank.slowest(float(session.keeps_state())) > 0
    _require_space(rank, session, folder.parent, sharded=sharded)
    timed = _Timed()
    for repeat in range(REPEATS):
        if rank.rank == 0:
            folder.mkdir()
        timed.save_s.append(
            _slowest_s(
                rank,
                lambda: _write(
                    rank, session, folder, sharded=sharded, with_optimizer=with_optimizer
                ),
            )
        )
        if rank.rank == 0:
            timed.bytes_by_rank = files.bytes_by_rank(folder, rank.processes)
            timed.is_cold = files.forget_cached(folder)
        before = parity.digest(_held(session))
        _spoil(session)
        timed.restore_s.append(_slowest_s(rank, lambda: _restore(session, folder, sharded=sharded)))
        if parity.digest(_held(session)) != before:
            timed.problems.append(f"in {rank.case.precision}: rank {rank.rank} has not what it had")
        if repeat < REPEATS - 1 or rank.assignment.checkpoint is None:
            _remove(rank, folder)
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


def _remove(rank: Rank, folder: Path) -> None:
    """Of all ranks, when all of them are done with it."""
    rank.slowest(0.0)
    if rank.rank == 0:
        shutil.rmtree(folder)
    rank.slowest(0.0)
