"""The training pass: learn something from the start, and see how the loss falls.

Batches are made between blocks of steps, and losses stay on the device until a block is over, so
that nothing is timed but steps.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor, distributed, nn
from torch.optim import Optimizer

from bench.plan.case import Case, LearningRate
from bench.records.trained import Training
from bench.run.loop import run_block
from bench.run.passes import set_up
from bench.run.rank import Rank
from bench.strategies.base import Mark, Session
from workloads.base import Batch, Problem

BLOCK_STEPS = 4
"""Whose batches are made beforehand: no more, for the memory that they take."""


@dataclass(kw_only=True)
class _Watched:
    """What steps need of a session, with their losses kept where they are."""

    session: Session
    losses: list[Tensor] = field(default_factory=list)

    def micro_step(self, batch: Batch, *, sync: bool, mark: Mark) -> Tensor:
        loss = self.session.micro_step(batch, sync=sync, mark=mark)
        self.losses.append(loss)
        return loss

    def optimizer_step(self) -> None:
        self.session.optimizer_step()

    def read(self, micro_steps: int) -> list[float]:
        """Mean loss of each step so far, which are then forgotten. Waits for the device."""
        losses = torch.stack(self.losses).double().cpu()
        self.losses = []
        return [float(one) for one in losses.view(-1, micro_steps).mean(1)]


def measure_training(rank: Rank) -> Session:
    """The training pass; returns the session, which must outlive the hand-over."""
    effort, micro_steps = rank.assignment.effort, rank.case.accumulation_steps
    problem, rates = rank.problem(), list[float]()
    factor = rate_factor(rank.case, effort.learning_rate)
    task = problem.task
    engine = set_up(rank, problem=to_learn(problem, factor, rates))
    watched = _Watched(session=engine.session)
    losses: list[float] = []
    step_s: list[float] = []
    rank.note(phase="training")
    while len(losses) < effort.train_steps:
        steps = min(BLOCK_STEPS if losses else 1, effort.train_steps - len(losses))
        drawn = list(itertools.islice(engine.batches, steps * micro_steps))
        rank.slowest(0.0)
        block = run_block(
            dataclasses.replace(engine, session=watched, batches=iter(drawn)),  # type: ignore[arg-type] # all of a session that steps need
            steps,
        )
        losses += watched.read(micro_steps)
        step_s += block.step_s
        if len(losses) <= 1 + BLOCK_STEPS:  # now that the pace is known
            left = effort.train_steps - len(losses)
            rank.note(phase="training", expected_s=left * rank.slowest(block.elapsed_s) / steps)
    means = _mean_over_ranks(rank, losses)
    rank.note(
        training=Training(
            losses=[loss if math.isfinite(loss) else None for loss in means],
            at_s=list(itertools.accumulate(_slowest(rank, step_s))),
            task=None if task is None else task.what,
            constant_loss=None if task is None else task.constant_loss,
            learning_rate=effort.learning_rate,
            learning_rate_factor=factor,
            rate=rates[0] if rates else None,
        )
    )
    rank.note_compiled()
    return engine.session


def rate_factor(case: Case, rule: LearningRate) -> float:
    """What the learning rate is multiplied by: the number of times that the batch has grown.

    Goyal et al., "Accurate, Large Minibatch SGD", 2017: with k times the batch, k times the rate.
    Under strong scaling the batch is the same on any number of devices.
    """
    return float(case.world_size) if rule == "linear" and case.scaling == "weak" else 1.0


def to_learn(problem: Problem, factor: float, rates: list[float]) -> Problem:
    """The problem with batches to learn from, and the rate that suits them.

    Args:
        problem: with a task, or without: then on its own batches.
        factor: see ``rate_factor``.
        rates: takes the rates that are set.
    """
    task = problem.task
    own_rate = None if task is None else task.lr
    make = problem.make_optimizer

    def make_optimizer(parameters: Iterable[nn.Parameter]) -> Optimizer:
        optimizer = make(parameters)
        for group in optimizer.param_groups:
            group["lr"] = (group["lr"] if own_rate is None else own_rate) * factor
            rates.append(float(group["lr"]))
        if "lr" in optimizer.defaults:  # a wrapper may make the optimizer again from these
            optimizer.defaults["lr"] = optimizer.param_groups[0]["lr"]
        return optimizer

    batches = problem.batches if task is None else task.batches
    return dataclasses.replace(problem, batches=batches, make_optimizer=make_optimizer)


def _mean_over_ranks(rank: Rank, losses: list[float]) -> list[float]:
    means = torch.tensor(losses, dtype=torch.float64)
    if rank.processes > 1:
        distributed.all_reduce(means)
    return [float(one) for one in means / rank.processes]


def _slowest(rank: Rank, step_s: list[float]) -> Iterator[float]:
    """The steps of the process that took longest."""
    every: list[list[float] | None] = [step_s]
    if rank.processes > 1:
        every = [None] * rank.processes
        distributed.all_gather_object(every, step_s)
    yield from max((one for one in every if one is not None), key=sum)
