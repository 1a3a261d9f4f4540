"""Predict the tensor memory of one case: its strategy's own code, on tensors without data."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import torch
from torch import Tensor
from torch.distributed.optim import ZeroRedundancyOptimizer

from bench.measure.allocations import Allocations
from bench.measure.precision import PARAMETERS
from bench.plan.case import Case
from bench.plan.registry import find_strategy, find_workload
from bench.predict.memory_ddp import BucketedModule
from bench.predict.memory_fake import conversions, fake_world
from bench.predict.memory_tracker import AllocationLog
from bench.strategies.base import Context, Session, Strategy
from bench.strategies.module_session import ModuleSession
from bench.strategies.prepare import prepare
from workloads.base import Batch, Build, Problem

WARM_UP_STEPS = 1
"""The optimizer makes its state in the first step, DDP rebuilds its buckets before the second."""
STAND_IN = torch.device("cpu")
"""Of the tensors without data: autograd on fake ones of an accelerator needs its driver."""


def predict(case: Case) -> Allocations:
    """Tensor memory of one steady step of a case, on the rank that holds most.

    Args:
        case: that has no obstacle; see ``bench.predict.memory_obstacle``.
    """
    strategy = find_strategy(case.strategy)
    processes = 1 if strategy.processes == "one" else case.world_size
    rank, fullest = 0, 0
    while True:
        log = AllocationLog(case.device, case.backend)
        with fake_world(case, rank, processes), log:
            found, fullest = _steps(case, strategy, rank, log)
        if fullest == rank:
            return found
        rank = fullest


def _steps(
    case: Case, strategy: Strategy, rank: int, log: AllocationLog
) -> tuple[Allocations, int]:
    """What a few steps allocate on a rank, and on which rank they would allocate most."""
    options = strategy.in_few_steps(case.options)
    with conversions():
        problem = _problem(case)
    session = prepare(strategy, problem, _context(case, strategy, rank, options))
    loop = _Loop(case=case, session=session, log=log, batches=iter(()))
    loop.draw(_batches(problem, case, rank))
    rhythm = strategy.rhythm(options)
    for _ in range(max(WARM_UP_STEPS, rhythm.settle_steps + 1)):
        loop.step()
    log.begin_steps()
    for _ in range(rhythm.period):
        loop.step(loop.mark)
    found = log.read(case.world_size if strategy.processes == "one" else 1)
    fullest = _fullest_rank(session, rank)
    session.close()
    return found, fullest


@dataclass(kw_only=True)
class _Loop:
    """The steps of ``bench.run.loop``, without a clock."""

    case: Case
    session: Session
    log: AllocationLog
    batches: Iterator[Batch]
    data: frozenset[int] = frozenset()
    """Addresses of batches."""
    loss: Tensor | None = None
    """The last one, which the loop keeps."""

    def draw(self, batches: Iterator[Batch]) -> None:
        """Make a first batch; what that leaves in memory is data, as its pool is."""
        before = self.log.allocations
        first = next(batches)
        self.batches = itertools.chain([first], batches)
        self.data = frozenset(self.log.born_since(before))

    def step(self, mark: Callable[[str], None] = lambda _: None) -> None:
        """One optimizer step."""
        last = self.case.accumulation_steps - 1
        for micro_step in range(last + 1):
            batch = next(self.batches)
            mark("data")
            is_due = self.case.accumulation_sync == "every" or micro_step == last
            self.loss = self.session.micro_step(batch, sync=is_due, mark=mark)
        self.session.optimizer_step()
        mark("optimizer")

    def mark(self, phase: str) -> None:
        """A phase has ended: write down what is held then."""
        self.log.mark(phase, _held(self.session), self.data)


def _held(session: Session) -> Mapping[str, list[Tensor]]:
    if not isinstance(session, ModuleSession):
        return {}
    held = session.held_tensors()
    if isinstance(session.module, BucketedModule):
        held |= session.module.held_tensors()
    return held


def _fullest_rank(session: Session, rank: int) -> int:
    """The rank whose share is largest: of what is not shared out evenly.

    FSDP's first rank has the largest part of each tensor. ``ZeroRedundancyOptimizer`` gives whole
    parameters to ranks, the largest first.
    """
    optimizer: Any = getattr(session, "optimizer", None)
    if not isinstance(optimizer, ZeroRedundancyOptimizer):
        return rank
    partition: Any = getattr(optimizer, "_partition_parameters")  # noqa: B009 - it has no types
    shares = [
        sum(parameter.numel() for group in groups for parameter in group["params"])
        for groups in partition()
    ]
    return rank if shares[rank] == max(shares) else shares.index(max(shares))


def _problem(case: Case) -> Problem:
    workload = find_workload(case.workload)
    build = Build(
        device=STAND_IN,
        dtype=PARAMETERS[case.precision],
        seed=case.seed,
        per_device_batch=case.per_device_batch,
        optimizer=case.optimizer,
        optimizer_kernels=case.optimizer_kernels,
    )
    return workload.build(msgspec.convert(case.workload_options, workload.options), build)


def _context(case: Case, strategy: Strategy, rank: int, options: Mapping[str, Any]) -> Context:
    return Context(
        device=STAND_IN,
        rank=rank,
        world_size=case.world_size,
        nodes=case.nodes,
        precision=case.precision,
        accumulation_steps=case.accumulation_steps,
        activation_checkpointing=case.activation_checkpointing,
        optimizer_kernels=case.optimizer_kernels,
        accumulation_sync=case.accumulation_sync,
        options=msgspec.convert(options, strategy.options),
        one_thread=True,
    )


def _batches(problem: Problem, case: Case, rank: int) -> Iterator[Batch]:
    if find_strategy(case.strategy).processes == "one":
        return problem.batches(None, case.world_size)
    return problem.batches(rank, case.world_size)
