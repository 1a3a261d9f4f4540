"""The parity pass, and the reference that it compares with.

See ``bench.measure.parity``, ``bench.measure.reference`` and ``bench.measure.spread``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import torch
from torch import Tensor, distributed

from bench.measure import deviation, parity
from bench.measure.parity import Comparison
from bench.measure.precision import FACTORS
from bench.measure.reference import (
    Reference,
    Trained,
    accumulate,
    copy_gradients,
    drift_of,
    load_reference,
    save_reference,
    step_batches,
    take_step,
    train_reference,
)
from bench.measure.spread import nudge, reordering_spread, rounding_spread, scaled_reference
from bench.run.rank import Rank
from bench.run.verdict import Shown, verdict
from bench.strategies.base import Session
from bench.strategies.module_session import autocast
from workloads.base import Batch, Problem

TF32_ROUNDING = 2.0**-10
"""Of factors with ten bits behind the point."""
CASTS = {"bf16": torch.bfloat16, "fp16": torch.float16}
"""Types that a strategy may cast to by itself: its reference is a model of that type."""


def prove(rank: Rank) -> Session:
    """The parity pass: fp64 over several steps, then the first one in the case's precision."""
    assert rank.assignment.reference is not None
    reference = load_reference(Path(rank.assignment.reference))
    rank.note(phase="parity in fp64")
    session, shown = _prove_exact(rank, reference)
    session.close()
    del session
    gc.collect()
    if rank.compilation is not None:
        rank.compilation.forget()  # that of another model than the next one
    rank.note(phase=f"parity in {rank.case.precision}")
    session, native = _prove_native(rank, reference)
    rank.note(parity=verdict(rank, shown, native, reference))
    rank.note_compiled()
    return session


def _prove_exact(rank: Rank, reference: Reference) -> tuple[Session, Shown]:
    problem = rank.problem_for_proof(dtype=torch.float64)
    session = rank.session(problem, exact=True)
    batches = rank.batches(problem)
    exactness, settle_steps = rank.exactness, rank.rhythm.settle_steps
    shown, steps = Shown(), rank.rhythm.proof_steps
    for step in range(steps):
        shown.losses.append(mean_over_ranks(micro_steps(rank, session, batches), rank))
        if exactness.kind == "lossy" and step == settle_steps:
            shown.compressed = deviation.of_gradient(
                session.full_gradients(),
                reference.settled or reference.first,
                tolerance=exactness.gradient_error,
            )
        elif step == 0:
            shown.first = parity.compare_first(session.full_gradients(), reference)
        session.optimizer_step()
        if rank.processes > 1 and (exactness.kind == "local" or step == steps - 1):
            shown.divergence[step + 1] = _divergence(session)
    if exactness.kind == "exact":
        shown.final = parity.compare_final(session.full_parameters(), reference)
        if rank.rank == 0 and reference.buffers:
            shown.buffers = parity.compare_buffers(session.named_buffers(), reference)
    else:
        shown.way = deviation.of_way(session.full_parameters(), reference)
    return session, shown


def _prove_native(rank: Rank, reference: Reference) -> tuple[Session, list[Comparison]]:
    """The first gradient and step, and that a strategy that settles later has numbers then too."""
    problem = rank.problem_for_proof()
    session = rank.session(problem, initial_scale=reference.scale)
    batches = rank.batches(problem)
    micro_steps(rank, session, batches)
    settle_steps = rank.rhythm.settle_steps
    first = parity.compare_native(
        session.full_gradients(),
        reference,
        rounding=_rounding(rank),
        is_compiled=rank.compilation is not None,
        by_design=0.0 if settle_steps else rank.exactness.gradient_error,
    )
    if rank.exactness.kind == "local" and not settle_steps:  # it averages parameters instead
        return session, [first]
    compared = [first, *_prove_step(rank, session)]
    for step in range(settle_steps):
        if step > 0:
            session.optimizer_step()
        micro_steps(rank, session, batches)
    if settle_steps:
        compared.append(deviation.find_odd_numbers(session.full_gradients()))
    return session, compared


def _prove_step(rank: Rank, session: Session) -> Iterator[Comparison]:
    """Take an optimizer step: the one that a plain optimizer takes, and the same on all ranks."""
    if rank.rank == 0:
        plain = rank.problem_for_proof(plain=True)
        parameters = dict(plain.model.named_parameters())
        rounding = max(torch.finfo(one.dtype).eps for one in parameters.values())
        before = {name: one.detach().cpu().clone() for name, one in parameters.items()}
        expected = take_step(plain, session.full_gradients())
        session.optimizer_step()
        yield parity.compare_step(session.full_parameters(), before, expected, rounding=rounding)
    else:
        _follow(session.full_gradients())
        session.optimizer_step()
        _follow(session.full_parameters())
    if rank.processes > 1:
        yield Comparison(
            error=_divergence(session), tolerance=0.0, where="difference between ranks after a step"
        )


def _follow(tensors: Iterator[tuple[str, Tensor]]) -> None:
    """Take part in what gathers them, and keep none."""
    for _ in tensors:
        pass


def _rounding(rank: Rank) -> float:
    """Relative rounding error of the case's precision, which bounds what parity can ask."""
    if rank.case.precision == "tf32":
        return TF32_ROUNDING
    return torch.finfo(FACTORS[rank.case.precision]).eps


def micro_steps(rank: Rank, session: Session, batches: Iterator[Batch]) -> float:
    """All micro-steps of one optimizer step; returns this rank's mean loss."""
    steps = rank.case.accumulation_steps
    every = rank.case.accumulation_sync == "every"
    losses: list[Tensor] = [
        session.micro_step(next(batches), sync=every or step == steps - 1, mark=lambda _: None)
        for step in range(steps)
    ]
    return torch.stack(losses).double().mean().item()


def mean_over_ranks(value: float, rank: Rank) -> float:
    """The mean of the processes' values. Collective."""
    if rank.processes == 1:
        return value
    total = torch.tensor(value, dtype=torch.float64)
    distributed.all_reduce(total)
    return total.item() / rank.processes


def _divergence(session: Session) -> float:
    """Largest difference of any parameter from the first rank's, over all ranks; NaN counts."""
    worst = torch.zeros((), dtype=torch.float64)
    for _, parameter in session.full_parameters():
        own = parameter.cpu()
        first = own.clone()
        distributed.broadcast(first, src=0)
        difference = (own - first).abs().max().double()
        worst = torch.maximum(worst, torch.nan_to_num(difference, nan=float("inf")))
    distributed.all_reduce(worst, op=distributed.ReduceOp.MAX)
    return worst.item()


def _cast(problem: Problem, dtype: torch.dtype) -> Problem:
    """The same model and samples in another type; drawn in that type, they would be others."""

    def cast(batch: Batch) -> Batch:
        inputs = (one.to(dtype) if one.is_floating_point() else one for one in batch.inputs)
        return Batch(tuple(inputs), batch.targets)

    return dataclasses.replace(
        problem,
        model=problem.model.to(dtype),
        batches=lambda shard, shards: map(cast, problem.batches(shard, shards)),
    )


def make_reference(rank: Rank) -> None:
    """Train on one device what all ranks of the case would train together, and save it."""
    rank.note(phase="reference")
    case = rank.case
    assert rank.assignment.reference is not None

    def batches_of(problem: Problem) -> Iterator[list[Batch]]:
        return step_batches(
            problem,
            shards=case.world_size,
            accumulation_steps=case.accumulation_steps,
            whole=rank.strategy.reference(case.options) == "whole_batch",
        )

    narrow = rank.strategy.casts(case.options)

    def region() -> AbstractContextManager[object]:
        return autocast(rank.context()) if narrow is None else contextlib.nullcontext()

    def train(rounding: float) -> Trained:
        problem = rank.problem_for_proof(dtype=torch.float64, plain=True)
        if rounding:
            nudge(problem.model.parameters(), rounding, seed=case.seed)
        return train_reference(
            problem,
            batches_of(problem),
            rank.rhythm.proof_steps,
            settle_steps=rank.rhythm.settle_steps,
            accumulation_steps=case.accumulation_steps,
        )

    trained = train(0.0)
    drift = drift_of(trained, train(torch.finfo(torch.float64).eps))
    problem = rank.problem_for_proof(plain=True)
    if narrow is not None:
        problem = _cast(problem, CASTS[narrow])
    batches = next(batches_of(problem))
    scale = whole_scale = 1.0
    if case.precision == "fp16-amp":
        ranks = len(batches) // case.accumulation_steps
        scale, native, spread = scaled_reference(
            problem, batches, ranks=ranks, seed=case.seed, region=region
        )
        whole_scale = scale * ranks
    else:
        accumulate(problem, batches, region)
        native = copy_gradients(problem.model.named_parameters())
        spread = reordering_spread(problem, batches, native, seed=case.seed, region=region)
    rounded = rounding_spread(
        problem,
        batches,
        native,
        seed=case.seed,
        rounding=_rounding(rank),
        region=region,
        scale=whole_scale,
    )
    save_reference(
        Path(rank.assignment.reference),
        Reference(
            scale=scale,
            losses=trained.losses,
            first=trained.first,
            final=trained.final,
            moved=trained.moved,
            native=native,
            spread=spread,
            rounding_spread=rounded,
            settled=trained.settled,
            buffers=trained.buffers,
            buffers_moved=trained.buffers_moved,
            drift=drift,
        ),
    )
