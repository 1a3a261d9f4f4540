"""The parity pass, and the reference that it compares with: see ``bench.measure.parity``."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, distributed

from bench.measure import parity
from bench.records.record import Parity
from bench.run.rank import Rank
from bench.strategies.base import Session, autocast
from workloads.base import Batch, Problem

ROUNDING = {"bf16": torch.bfloat16, "bf16-amp": torch.bfloat16, "fp16-amp": torch.float16}
"""Type whose rounding bounds what parity can ask, where it is not fp32."""


def _parity_batch(rank: Rank) -> int:
    return min(rank.case.per_device_batch, parity.MAX_BATCH)


def prove(rank: Rank) -> Session:
    """The parity pass: fp64 over several steps, then the first gradient in the case's precision."""
    assert rank.assignment.reference is not None
    reference = parity.load_reference(Path(rank.assignment.reference))
    rank.note(phase="parity in fp64")
    session, exact, divergence = _prove_exact(rank, reference)
    session.close()
    del session
    gc.collect()
    rank.note(phase=f"parity in {rank.case.precision}")
    session, native = _prove_native(rank, reference)
    rank.note(parity=_verdict(rank, exact, native, divergence))
    return session


def _prove_exact(
    rank: Rank, reference: parity.Reference
) -> tuple[Session, parity.Comparison, float]:
    problem = rank.problem(dtype=torch.float64, batch=_parity_batch(rank))
    session = rank.strategy.prepare(problem, rank.context(exact=True))
    batches = rank.batches(problem)
    losses: list[float] = []
    gradients: parity.Gradients = {}
    for step in range(len(reference.losses)):
        losses.append(_mean_over_ranks(_accumulate(rank, session, batches), rank))
        if step == 0:
            gradients = {
                name: gradient.cpu().clone() for name, gradient in session.full_gradients()
            }
        session.optimizer_step()
    exact = parity.compare_exact(losses, gradients.items(), reference)
    return session, exact, _divergence(session)


def _prove_native(rank: Rank, reference: parity.Reference) -> tuple[Session, parity.Comparison]:
    case = rank.case
    problem = rank.problem(batch=_parity_batch(rank))
    session = rank.strategy.prepare(problem, rank.context())
    _accumulate(rank, session, rank.batches(problem))
    rounding = torch.finfo(ROUNDING.get(case.precision, torch.float32)).eps
    return session, parity.compare_native(session.full_gradients(), reference, rounding=rounding)


def _accumulate(rank: Rank, session: Session, batches: Iterator[Batch]) -> float:
    """All micro-steps of one optimizer step; returns this rank's mean loss."""
    steps = rank.case.accumulation_steps
    losses: list[Tensor] = [
        session.micro_step(next(batches), sync=step == steps - 1, mark=lambda _: None)
        for step in range(steps)
    ]
    return torch.stack(losses).double().mean().item()


def _mean_over_ranks(value: float, rank: Rank) -> float:
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


def _verdict(
    rank: Rank, exact: parity.Comparison, native: parity.Comparison, divergence: float
) -> Parity:
    problems = []
    if not exact.passed:
        problems.append(f"fp64: {exact}")
    if divergence != 0:
        problems.append(f"fp64: ranks ended with parameters up to {divergence:.1e} apart")
    if not native.passed:
        problems.append(f"{rank.case.precision}: {native}")
    return Parity(
        verdict="failed" if problems else "exact",
        reason="; ".join(problems) or None,
        error=_finite(exact.error),
        tolerance=exact.tolerance,
        gradient_error=_finite(native.error),
        gradient_tolerance=native.tolerance,
        max_rank_divergence=_finite(divergence),
        reference=rank.strategy.reference,
        steps=parity.STEPS,
        per_device_batch=_parity_batch(rank),
    )


def _finite(value: float) -> float | None:
    return value if abs(value) < float("inf") else None


def make_reference(rank: Rank) -> None:
    """Train on one device what all ranks of the case would train together, and save it."""
    rank.note(phase="reference")
    case = rank.case
    assert rank.assignment.reference is not None

    def step_batches(problem: Problem) -> Iterator[list[Batch]]:
        return parity.step_batches(
            problem,
            shards=case.world_size,
            accumulation_steps=case.accumulation_steps,
            whole=rank.strategy.reference == "whole_batch",
        )

    problem = rank.problem(dtype=torch.float64, batch=_parity_batch(rank))
    losses, exact = parity.train_reference(problem, step_batches(problem), parity.STEPS)
    problem = rank.problem(batch=_parity_batch(rank))
    first = next(step_batches(problem))
    with autocast(rank.context()):
        parity.accumulate(problem, first)
        native = parity.copy_gradients(problem.model.named_parameters())
        spread = parity.reordering_spread(problem, first, native, seed=case.seed)
    parity.save_reference(
        Path(rank.assignment.reference),
        parity.Reference(losses=losses, exact=exact, native=native, spread=spread),
    )
