"""The parity pass, and the reference that it compares with: see ``bench.measure.parity``."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, distributed

from bench.measure import parity
from bench.records.record import Parity, Verdict
from bench.run.rank import Rank, proof_size
from bench.strategies.base import Session, autocast
from workloads.base import Batch, Problem

ROUNDING = {"bf16": torch.bfloat16, "bf16-amp": torch.bfloat16, "fp16-amp": torch.float16}
"""Type whose rounding bounds what parity can ask, where it is not fp32."""
CASTS = {"bf16": torch.bfloat16, "fp16": torch.float16}
"""Types that a strategy may cast to by itself: its reference is a model of that type."""
IS_ROUGH = 1e-3
"""Tolerance of a gradient from which its proof is no longer called exact."""
PROVES_NOTHING = 0.5
"""Tolerance that would let a halved gradient pass."""


def prove(rank: Rank) -> Session:
    """The parity pass: fp64 over several steps, then the first gradient in the case's precision."""
    assert rank.assignment.reference is not None
    reference = parity.load_reference(Path(rank.assignment.reference))
    rank.note(phase="parity in fp64")
    session, exact = _prove_exact(rank, reference)
    session.close()
    del session
    gc.collect()
    if rank.compilation is not None:
        rank.compilation.forget()  # that of another model than the next one
    rank.note(phase=f"parity in {rank.case.precision}")
    session, native = _prove_native(rank, reference)
    rank.note(parity=_verdict(rank, exact, native))
    rank.note_compiled()
    return session


@dataclass(frozen=True, kw_only=True)
class _Exact:
    """What training in fp64 showed."""

    steps: parity.Comparison
    """The worst of all losses and the first gradient."""
    final: parity.Comparison
    """The last parameters."""
    divergence: float
    """Largest difference of any parameter between ranks."""


def _prove_exact(rank: Rank, reference: parity.Reference) -> tuple[Session, _Exact]:
    problem = rank.problem_for_proof(dtype=torch.float64)
    session = rank.session(problem, exact=True)
    batches = rank.batches(problem)
    losses: list[float] = []
    comparisons: list[parity.Comparison] = []
    for step in range(len(reference.losses)):
        losses.append(_mean_over_ranks(_accumulate(rank, session, batches), rank))
        if step == 0:
            comparisons.append(parity.compare_first(session.full_gradients(), reference))
        session.optimizer_step()
    comparisons.append(parity.compare_losses(losses, reference))
    return session, _Exact(
        steps=parity.worst(comparisons),
        final=parity.compare_final(session.full_parameters(), reference),
        divergence=_divergence(session) if rank.processes > 1 else 0.0,
    )


def _prove_native(rank: Rank, reference: parity.Reference) -> tuple[Session, parity.Comparison]:
    problem = rank.problem_for_proof()
    session = rank.session(problem, initial_scale=reference.scale)
    _accumulate(rank, session, rank.batches(problem))
    rounding = torch.finfo(ROUNDING.get(rank.case.precision, torch.float32)).eps
    return session, parity.compare_native(session.full_gradients(), reference, rounding=rounding)


def _accumulate(rank: Rank, session: Session, batches: Iterator[Batch]) -> float:
    """All micro-steps of one optimizer step; returns this rank's mean loss."""
    steps = rank.case.accumulation_steps
    every = rank.case.accumulation_sync == "every"
    losses: list[Tensor] = [
        session.micro_step(next(batches), sync=every or step == steps - 1, mark=lambda _: None)
        for step in range(steps)
    ]
    return torch.stack(losses).double().mean().item()


def _mean_over_ranks(value: float, rank: Rank) -> float:
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


def _verdict(rank: Rank, exact: _Exact, native: parity.Comparison) -> Parity:
    precision = rank.case.precision
    problems = [f"fp64: {one}" for one in (exact.steps, exact.final) if not one.passed]
    if exact.divergence != 0:
        problems.append(f"fp64: ranks ended with parameters up to {exact.divergence:.1e} apart")
    if not native.passed:
        problems.append(f"{precision}: {native}")
    reason = "; ".join(problems) or None
    if reason is None and native.loosest >= PROVES_NOTHING:
        reason = (
            f"exact in fp64; in {precision}, reordering alone may move a gradient by "
            f"{native.loosest:.1f} times its size, so that nothing more can be shown"
        )
    good: Verdict = "exact" if native.loosest < IS_ROUGH else "within_precision"
    return Parity(
        verdict="failed" if problems else good,
        reason=reason,
        error=_finite(exact.steps.error),
        tolerance=exact.steps.tolerance,
        gradient_error=_finite(native.error),
        gradient_tolerance=_finite(native.loosest),
        max_rank_divergence=_finite(exact.divergence),
        reference=rank.strategy.reference(rank.case.options),
        steps=parity.STEPS,
        per_device_batch=proof_size(rank.case)[1],
    )


def _finite(value: float) -> float | None:
    return value if abs(value) < float("inf") else None


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

    def step_batches(problem: Problem) -> Iterator[list[Batch]]:
        return parity.step_batches(
            problem,
            shards=case.world_size,
            accumulation_steps=case.accumulation_steps,
            whole=rank.strategy.reference(case.options) == "whole_batch",
        )

    narrow = rank.strategy.casts(case.options)

    def region() -> AbstractContextManager[object]:
        return autocast(rank.context()) if narrow is None else contextlib.nullcontext()

    problem = rank.problem_for_proof(dtype=torch.float64, plain=True)
    losses, first, final, moved = parity.train_reference(
        problem, step_batches(problem), parity.STEPS
    )
    problem = rank.problem_for_proof(plain=True)
    if narrow is not None:
        problem = _cast(problem, CASTS[narrow])
    batches = next(step_batches(problem))
    scale = 1.0
    if case.precision == "fp16-amp":
        ranks = len(batches) // case.accumulation_steps
        scale, native, spread = parity.scaled_reference(
            problem, batches, ranks=ranks, seed=case.seed, region=region
        )
    else:
        parity.accumulate(problem, batches, region)
        native = parity.copy_gradients(problem.model.named_parameters())
        spread = parity.reordering_spread(problem, batches, native, seed=case.seed, region=region)
    parity.save_reference(
        Path(rank.assignment.reference),
        parity.Reference(
            losses=losses,
            first=first,
            final=final,
            moved=moved,
            native=native,
            spread=spread,
            scale=scale,
        ),
    )
