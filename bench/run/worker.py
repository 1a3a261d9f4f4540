"""One rank of one launch: join, build, run one pass, hand over the outcome.

The order of the first lines matters: the process must be bound to its parent's life, have its
environment, and own its device before anything can touch an accelerator.
"""

from __future__ import annotations

import faulthandler
import gc
import itertools
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor, distributed

from bench.measure import parity
from bench.measure.device import Device, is_out_of_memory, open_device
from bench.plan.registry import find_strategy, find_workload
from bench.records.record import Parity
from bench.records.store import write_atomically
from bench.run.loop import (
    Engine,
    block_size,
    run_sync_pairs,
    run_window,
    warm_up,
    warmup_rule,
)
from bench.run.outcome import Assignment, Failure, Measured, RankOutcome
from bench.run.server import follow_server
from bench.strategies.base import Context, Session, Strategy, autocast
from workloads.base import Batch, Build, Problem, whole_batches

DTYPES = {"bf16": torch.bfloat16}
"""Type of the parameters, where it is not fp32."""
ROUNDING = {"bf16": torch.bfloat16, "bf16-amp": torch.bfloat16, "fp16-amp": torch.float16}
"""Type whose rounding bounds what parity can ask, where it is not fp32."""
DIGESTED_BATCHES = 3


@dataclass(kw_only=True)
class Rank:
    """This process within its launch."""

    assignment: Assignment
    rank: int
    local_rank: int
    processes: int
    strategy: Strategy
    device: Device
    outcome: RankOutcome

    def note(self, **found: Any) -> None:
        """Add to what will be handed over; a phase is left on disk for when it never is."""
        self.outcome = msgspec.structs.replace(self.outcome, **found)
        if "phase" in found:
            phase_file(Path(self.assignment.folder), self.rank).write_text(found["phase"])

    def slowest(self, value: float) -> float:
        """Largest value over all ranks; on host tensors, so no device is involved."""
        agreed = torch.tensor(value, dtype=torch.float64)
        distributed.all_reduce(agreed, op=distributed.ReduceOp.MAX)
        return agreed.item()


def main(assignment_file: str) -> None:
    """Entry of every worker process.

    Args:
        assignment_file: path of the launch's ``Assignment``.
    """
    follow_server()
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # the parent decides what an interrupt means
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    assignment = msgspec.json.decode(Path(assignment_file).read_bytes(), type=Assignment)
    os.environ.update(assignment.environment)
    number, local = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    rank = Rank(
        assignment=assignment,
        rank=number,
        local_rank=local,
        processes=int(os.environ["WORLD_SIZE"]),
        strategy=find_strategy(assignment.case.strategy),
        device=open_device(assignment.case, local_rank=local, cores=assignment.cores[local]),
        outcome=RankOutcome(rank=number),
    )
    try:
        session = _work(rank)
        rank.note(phase="done")
        _hand_over(rank)
    except BaseException as error:  # noqa: BLE001 - whatever it is, the parent must learn of it
        rank.note(failure=_failure(error))
        traceback.print_exc()
        _hand_over(rank)
        sys.stderr.flush()
        # Never through the group's destructor: it would wait for peers that sit in a collective.
        os._exit(1)
    _leave(session)


def _work(rank: Rank) -> Session | None:
    """Run the assignment's job; returns the session, which must outlive the hand-over."""
    _join(rank)
    rank.device.set_precision(rank.assignment.case.precision)
    match rank.assignment.job:
        case "timing":
            return _time(rank)
        case "communication":
            return _communicate(rank)
        case "parity":
            return _prove(rank)
        case "reference":
            _make_reference(rank)
            return None
    raise AssertionError(f"no job {rank.assignment.job}")


def _join(rank: Rank) -> None:
    """Claim the device, then join the group. Control messages always go over gloo."""
    rank.device.claim()
    case = rank.assignment.case
    carrier = case.backend or "gloo"
    backend = carrier if carrier == "gloo" else f"cpu:gloo,{case.device}:{carrier}"
    distributed.init_process_group(
        backend,
        # The parent ends a stuck launch, with stacks; the group must not do it first.
        timeout=timedelta(seconds=2 * rank.assignment.effort.timeout_s + 60),
        device_id=rank.device.group_device,
    )
    rank.slowest(0.0)
    rank.note(joined_s=time.monotonic())
    rank.device.start_memory()


def _context(rank: Rank, *, exact: bool = False) -> Context:
    case = rank.assignment.case
    return Context(
        device=rank.device.torch_device,
        rank=rank.rank,
        world_size=case.world_size,
        precision="fp32" if exact else case.precision,
        accumulation_steps=case.accumulation_steps,
        options=msgspec.convert(case.options, rank.strategy.options),
    )


def _problem(rank: Rank, *, dtype: torch.dtype | None = None, batch: int | None = None) -> Problem:
    case = rank.assignment.case
    workload = find_workload(case.workload)
    return workload.build(
        msgspec.convert(case.workload_options, workload.options),
        Build(
            device=rank.device.torch_device,
            dtype=dtype or DTYPES.get(case.precision, torch.float32),
            seed=case.seed,
            per_device_batch=batch or case.per_device_batch,
            optimizer=case.optimizer,
        ),
    )


def _batches(rank: Rank, problem: Problem) -> Iterator[Batch]:
    """This process's own samples: its shard, or all shards if it drives all devices."""
    shards = rank.assignment.case.world_size
    if rank.strategy.processes == "one":
        return whole_batches(problem, shards)
    return problem.batches(rank.rank, shards)


def _set_up(rank: Rank) -> Engine:
    """Build everything and warm up nothing."""
    rank.note(phase="set-up")
    begin = time.perf_counter()
    problem = _problem(rank)
    session = rank.strategy.prepare(problem, _context(rank))
    batches = _batches(rank, problem)
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
        accumulation_steps=rank.assignment.case.accumulation_steps,
        sample_memory=rank.device.sample_memory,
    )


def _time(rank: Rank) -> Session:
    """The timing pass."""
    effort, case = rank.assignment.effort, rank.assignment.case
    engine = _set_up(rank)
    rank.note(phase="warm-up")
    warm = warm_up(engine, warmup_rule(effort, case.device))
    step_s = warm.typical_step_s()
    steps = block_size(rank.slowest(step_s) if step_s is not None else None, effort.window)
    gc.collect()
    rank.device.reset_peaks()
    rank.note(phase="window")
    timed = run_window(engine, effort.window, steps)
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
        memory=[rank.device.peaks()],
        phase="check",
    )
    rank.note(parameter_digest=_parameter_digest(engine.session))
    return engine.session


def _parameter_digest(session: Session) -> str:
    return parity.digest(tensor for _, tensor in session.full_parameters())


def _communicate(rank: Rank) -> Session:
    """The communication pass: what synchronisation adds to a step."""
    effort = rank.assignment.effort
    engine = _set_up(rank)
    rank.note(phase="warm-up")
    warm = warm_up(engine, warmup_rule(effort, rank.assignment.case.device))
    step_s = warm.typical_step_s()
    steps = block_size(rank.slowest(step_s) if step_s is not None else None, effort.window)
    rank.note(phase="communication", bucket_bytes=engine.session.bucket_bytes())
    rank.note(sync_pairs_s=run_sync_pairs(engine, effort.window, steps))
    return engine.session


def _parity_batch(rank: Rank) -> int:
    return min(rank.assignment.case.per_device_batch, parity.MAX_BATCH)


def _prove(rank: Rank) -> Session:
    """The parity pass: fp64 over several steps, then the first gradient in the case's precision."""
    assert rank.assignment.reference is not None
    reference = parity.load_reference(Path(rank.assignment.reference))
    rank.note(phase="parity in fp64")
    session, exact, divergence = _prove_exact(rank, reference)
    session.close()
    del session
    gc.collect()
    rank.note(phase=f"parity in {rank.assignment.case.precision}")
    session, native = _prove_native(rank, reference)
    if rank.rank == 0:
        rank.note(parity=_verdict(rank, exact, native, divergence))
    return session


def _prove_exact(
    rank: Rank, reference: parity.Reference
) -> tuple[Session, parity.Comparison, float]:
    problem = _problem(rank, dtype=torch.float64, batch=_parity_batch(rank))
    session = rank.strategy.prepare(problem, _context(rank, exact=True))
    batches = _batches(rank, problem)
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
    case = rank.assignment.case
    problem = _problem(rank, batch=_parity_batch(rank))
    session = rank.strategy.prepare(problem, _context(rank))
    _accumulate(rank, session, _batches(rank, problem))
    rounding = torch.finfo(ROUNDING.get(case.precision, torch.float32)).eps
    return session, parity.compare_native(session.full_gradients(), reference, rounding=rounding)


def _accumulate(rank: Rank, session: Session, batches: Iterator[Batch]) -> float:
    """All micro-steps of one optimizer step; returns this rank's mean loss."""
    steps = rank.assignment.case.accumulation_steps
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
    precision = rank.assignment.case.precision
    problems = []
    if not exact.passed:
        problems.append(f"fp64: {exact.where} is off by {exact.error:.1e}")
    if divergence != 0:
        problems.append(f"fp64: ranks ended with parameters up to {divergence:.1e} apart")
    if not native.passed:
        problems.append(
            f"{precision}: the gradient of {native.where} is off by {native.error:.1e}, "
            f"reordering explains {native.tolerance:.1e}"
        )
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


def _make_reference(rank: Rank) -> None:
    """Train on one device what all ranks of the case would train together, and save it."""
    rank.note(phase="reference")
    case = rank.assignment.case
    assert rank.assignment.reference is not None

    def step_batches(problem: Problem) -> Iterator[list[Batch]]:
        return parity.step_batches(
            problem,
            shards=case.world_size,
            accumulation_steps=case.accumulation_steps,
            whole=rank.strategy.reference == "whole_batch",
        )

    problem = _problem(rank, dtype=torch.float64, batch=_parity_batch(rank))
    losses, exact = parity.train_reference(problem, step_batches(problem), parity.STEPS)
    problem = _problem(rank, batch=_parity_batch(rank))
    first = next(step_batches(problem))
    with autocast(_context(rank)):
        parity.accumulate(problem, first)
        native = parity.copy_gradients(problem.model.named_parameters())
        spread = parity.reordering_spread(problem, first, native, seed=case.seed)
    parity.save_reference(
        Path(rank.assignment.reference),
        parity.Reference(losses=losses, exact=exact, native=native, spread=spread),
    )


def _failure(error: BaseException) -> Failure:
    message = " ".join(str(error).split())
    reason = f"{type(error).__name__}: {message}" if message else type(error).__name__
    return Failure(
        status="out_of_memory" if is_out_of_memory(error) else "failed",
        reason=reason[:500],
        at_s=time.monotonic(),
    )


def outcome_file(folder: Path, rank: int) -> Path:
    """Where a rank hands over its outcome."""
    return folder / f"rank{rank}.json"


def phase_file(folder: Path, rank: int) -> Path:
    """Where a rank says how far it has come."""
    return folder / f"rank{rank}.phase"


def _hand_over(rank: Rank) -> None:
    content = msgspec.json.encode(rank.outcome)
    write_atomically(outcome_file(Path(rank.assignment.folder), rank.rank), content)


def _leave(session: Session | None) -> None:
    """End in step with the others: a group destroyed while DDP still holds it aborts at exit."""
    distributed.barrier()
    if session is not None:
        session.close()
    del session
    gc.collect()
    distributed.destroy_process_group()
