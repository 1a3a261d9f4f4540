"""A case's session: its strategy's, with what a suite may ask of every strategy laid around it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from torch import nn
from torch.optim import Optimizer

from bench.plan.case import OptimizerKernels
from bench.strategies.base import Context, Session, Strategy
from bench.strategies.checkpointing import checkpoint_units
from bench.strategies.compiling import compile_around, compile_within
from workloads.base import KERNELS, Problem


def prepare(strategy: Strategy, problem: Problem, context: Context) -> Session:
    """The one way from a problem to what the loop drives, for every pass.

    Args:
        strategy: wraps the model.
        problem: freshly built; its model is changed in place.
        context: says what else is asked for.
    """
    if context.optimizer_kernels != "auto":
        problem = _with_checked_kernels(problem, context.optimizer_kernels)
    if context.activation_checkpointing:
        checkpoint_units(problem.shard_units(problem.model))
    compile_within(problem, context)
    session = strategy.prepare(problem, context)
    compile_around(session, context)
    return session


def _with_checked_kernels(problem: Problem, kernels: OptimizerKernels) -> Problem:
    """The same problem, whose optimizer is refused where it has other kernels than asked for."""
    make = problem.make_optimizer

    def make_checked(parameters: Iterable[nn.Parameter]) -> Optimizer:
        optimizer = make(parameters)
        wanted = KERNELS[kernels]
        found = {name: optimizer.defaults.get(name) for name in wanted}
        if found != wanted:
            raise ValueError(
                f"optimizer_kernels: {kernels} asks for {wanted}, and the workload's optimizer "
                f"has {found}: its make_optimizer must pass on Build.optimizer_kernels, as "
                "workloads.base.optimizer_factory does"
            )
        return optimizer

    return dataclasses.replace(problem, make_optimizer=make_checked)
