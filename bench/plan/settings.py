"""Settings that hold for every strategy: where they can show nothing, or torch cannot do them."""

from __future__ import annotations

import functools

import torch
from torch import nn

from bench.errors import one_line
from bench.plan.case import Case, Optimizer, OptimizerKernels
from bench.strategies.base import Strategy
from workloads.base import KERNELS, Facts, optimizer_factory

MOST_STEPS = 20_000
"""Of warm-up and the least window, that a strategy's own rhythm may ask for."""


def problem_of(case: Case, facts: Facts, strategy: Strategy) -> str | None:
    """Why a case cannot have what it sets, or why another case shows the same."""
    if case.activation_checkpointing and not facts.has_shard_units:
        return (
            "activation_checkpointing goes by the workload's shard units, of which it has none; "
            "let shard_units give the model's blocks"
        )
    rhythm = strategy.rhythm(case.options)
    if rhythm.settle_steps + rhythm.period > MOST_STEPS:
        return (
            f"trains as it should after {rhythm.settle_steps} steps and repeats itself every "
            f"{rhythm.period}: more than {MOST_STEPS} together are not waited for; lower them"
        )
    if case.accumulation_sync == "every":
        problem = _problem_of_syncing(case, strategy)
        if problem is not None:
            return problem
    if case.optimizer_kernels != "auto":
        return _problem_of_kernels(case, facts)
    return None


def _problem_of_syncing(case: Case, strategy: Strategy) -> str | None:
    if case.accumulation_steps == 1:
        return "accumulation_sync: every is the same as last where accumulation_steps is 1"
    if strategy.exactness(case.options).kind == "local":
        return "ranks train apart: the same as accumulation_sync: last"
    if not strategy.communicates:
        return f"{strategy.name} synchronises nothing: the same as accumulation_sync: last"
    if strategy.processes == "one":
        return (
            f"{strategy.name} adds up gradients in every micro-step anyway: the same as "
            "accumulation_sync: last"
        )
    return None


def _problem_of_kernels(case: Case, facts: Facts) -> str | None:
    kernels = case.optimizer_kernels
    if kernels == "fused" and case.device not in _fused_devices(case.device):
        return f"torch has no fused optimizers for {case.device} devices; use foreach or for-loop"
    refusal = _refusal(case.optimizer, kernels, is_sparse=facts.has_sparse_gradients)
    if refusal is None:
        return None
    kind = "sparse" if facts.has_sparse_gradients else "dense"
    return (
        f"torch refuses {kernels} kernels of {case.optimizer} with {kind} gradients ({refusal}); "
        "use optimizer_kernels: for-loop"
    )


def _fused_devices(assumed: str) -> list[str]:
    """Device types for which torch says that it has fused optimizers; unknown, the one assumed."""
    ask = getattr(torch.utils._foreach_utils, "_get_fused_kernels_supported_devices", None)
    return [assumed] if ask is None else list(ask())


@functools.cache
def _refusal(optimizer: Optimizer, kernels: OptimizerKernels, *, is_sparse: bool) -> str | None:
    """What torch says to two steps of such an optimizer, tried on a CPU; None if they succeed."""
    table = nn.Embedding(2, 2, sparse=is_sparse)
    try:
        made = optimizer_factory(optimizer, lr=0.1, kernels=kernels)(table.parameters())
        for _ in range(2):
            table(torch.tensor([1])).sum().backward()
            made.step()
            made.zero_grad()
    except (RuntimeError, ValueError, TypeError) as error:
        return one_line(str(error), limit=120)
    assert KERNELS[kernels].items() <= made.defaults.items()
    return None
