"""Round trips of a training state: saved, restored elsewhere, and trained on with the same losses.

In fp64 on little data, as in a proof: some steps, a save, and some more, whose losses are what each
restored model must show. It is restored under the same strategy; onto one device without a wrapper;
and what that device saves, under the strategy again.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor, distributed

from bench.measure import checkpoint_files as files
from bench.measure import parity
from bench.measure.reference import accumulate, step_batches
from bench.plan.registry import find_strategy
from bench.run.proof import mean_over_ranks, micro_steps
from bench.run.rank import Rank
from bench.run.saving import as_saved, remove, restore, write
from bench.strategies.base import SavedSession
from bench.strategies.saving import State
from workloads.base import Batch, Problem

FURTHER_STEPS = 3
"""Optimizer steps after saving: a wrong state of the optimizer shows in the losses after them."""
SAME, ONE_DEVICE, BACK = "same ranks", "one device", "back from one device"
OTHER_SEED = 1
"""Added to a case's seed: whatever a restored model has right was restored."""


@dataclass(kw_only=True)
class Shown:
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


def prove_round_trips(rank: Rank, folder: Path, *, sharded: bool) -> Shown:
    """Save a training state, and go on from it wherever that can be compared. Collective.

    Args:
        rank: of this process.
        folder: to save to, which is made here and goes again.
        sharded: how the strategy is saved.
    """
    problem = rank.problem_for_proof(dtype=torch.float64)
    session = as_saved(rank.session(problem, exact=True))
    batches = rank.batches(problem)
    before = rank.rhythm.proof_steps
    for _ in range(before):
        _step(rank, session, batches)
    with_optimizer = rank.slowest(float(session.keeps_state())) > 0
    _save(rank, session, folder, sharded=sharded, with_optimizer=with_optimizer)
    saved = session.take_state(whole=True, with_optimizer=with_optimizer)
    own = {name: parity.digest([one]) for name, one in session.named_buffers()}
    shown = Shown(losses=[], saved=_digests(saved), buffers=_of_all_ranks(rank, own))
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
        remove(rank, moved)
    remove(rank, folder)
    return shown


def _save(
    rank: Rank, session: SavedSession, folder: Path, *, sharded: bool, with_optimizer: bool
) -> None:
    """Have all ranks save a training state; returns when the disk has it. Collective."""
    if rank.rank == 0:
        folder.mkdir()
    rank.slowest(0.0)
    write(rank, session, folder, sharded=sharded, with_optimizer=with_optimizer)
    rank.slowest(0.0)


def _trip(rank: Rank, name: str, folder: Path, shown: Shown, before: int, *, sharded: bool) -> None:
    """Restore a model under the strategy, compare what it holds, and train on."""
    data = rank.problem_for_proof(dtype=torch.float64)
    problem = replace(_unlike(rank), batches=data.batches)
    session = as_saved(rank.session(problem, exact=True))
    batches = rank.batches(problem)
    _skip(batches, before * rank.case.accumulation_steps)
    restore(session, folder, sharded=sharded)
    with_optimizer = rank.slowest(float(session.keeps_state())) > 0
    _compare(rank, name, session.take_state(whole=True, with_optimizer=with_optimizer), shown)
    losses = [_step(rank, session, batches) for _ in range(FURTHER_STEPS)]
    _compare_losses(name, losses, shown)
    session.close()
    del session
    gc.collect()


def _to_one_device(rank: Rank, folder: Path, moved: Path, shown: Shown, before: int) -> None:
    """Restore onto one device without a wrapper, save there, and train on what all ranks see."""
    case = rank.case
    data = rank.problem_for_proof(dtype=torch.float64)
    problem = replace(_unlike(rank), batches=data.batches)
    single = find_strategy("single")
    context = replace(
        rank.context(exact=True), rank=0, world_size=1, compile="none", options=single.options()
    )
    session = as_saved(single.prepare(problem, context))
    session.put_state(files.read_whole(folder), whole=True)
    state = session.take_state(whole=True, with_optimizer=session.keeps_state())
    _compare(rank, ONE_DEVICE, state, shown)
    moved.mkdir()
    files.write_whole(state, moved)
    steps = step_batches(
        problem,
        shards=case.world_size,
        accumulation_steps=case.accumulation_steps,
        whole=rank.strategy.reference(case.options) == "whole_batch",
    )
    _skip(steps, before)
    losses = []
    for batches in (next(steps) for _ in range(FURTHER_STEPS)):
        losses.append(accumulate(problem, batches))
        session.optimizer_step()
    _compare_losses(ONE_DEVICE, losses, shown)


def _step(rank: Rank, session: SavedSession, batches: Iterator[Batch]) -> float:
    """One optimizer step; returns its mean loss over all ranks. Collective."""
    loss = mean_over_ranks(micro_steps(rank, session, batches), rank)
    session.optimizer_step()
    return loss


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


def _compare(rank: Rank, name: str, state: State, shown: Shown) -> None:
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


def _compare_losses(name: str, losses: list[float], shown: Shown) -> None:
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
