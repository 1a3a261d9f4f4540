"""How far rounding alone moves a gradient: what a strategy's own gradient is compared within."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable

import torch
from torch import Tensor

from bench.measure.reference import Region, Tensors, accumulate, copy_gradients, norm
from workloads.base import Batch, Problem

REORDERINGS = 3
LOSS_SCALES = tuple(2.0**power for power in range(16, -33, -8))
"""Tried for the first gradient of a precision that needs a scaled loss, torch's own first: training
finds its scale by skipping steps, which a proof of one gradient cannot."""


def reordering_spread(
    problem: Problem,
    batches: list[Batch],
    native: Tensors,
    *,
    seed: int,
    region: Region = contextlib.nullcontext,
    scale: float = 1.0,
) -> dict[str, float]:
    """How far each gradient moves when the same samples are summed in another order.

    Args:
        problem: with its initial parameters, whose gradients are used and cleared.
        batches: the first step's micro-batches, in the order that gave ``native``.
        native: the gradient to compare with.
        seed: of the permutations.
        region: that forward runs in.
        scale: of the loss during backward.

    Returns:
        Per tensor, the largest norm of the difference over ``REORDERINGS`` permutations of the
        samples within each micro-batch, and of the micro-batches.
    """
    generator = torch.Generator().manual_seed(seed)
    spread = dict.fromkeys(native, 0.0)
    for _ in range(REORDERINGS):
        order = torch.randperm(len(batches), generator=generator).tolist()
        problem.model.zero_grad()
        shuffled = [_shuffled(batches[index], generator) for index in order]
        accumulate(problem, shuffled, region, scale=scale)
        moved = copy_gradients(problem.model.named_parameters())
        for name, gradient in native.items():
            spread[name] = max(spread[name], norm(moved[name] - gradient))
    problem.model.zero_grad()
    return spread


def rounding_spread(
    problem: Problem,
    batches: list[Batch],
    native: Tensors,
    *,
    seed: int,
    rounding: float,
    region: Region = contextlib.nullcontext,
    scale: float = 1.0,
) -> dict[str, float]:
    """How far each gradient moves when every parameter is off by one rounding, up or down.

    Rounding an operation's result differently does as much as rounding what goes into it: this is
    what a compiler may do that fuses operations, and so rounds elsewhere.

    Args:
        problem: with its initial parameters, whose gradients are used and cleared.
        batches: the first step's micro-batches.
        native: the gradient to compare with.
        seed: of the directions.
        rounding: relative rounding error of the precision that computes.
        region: that forward runs in.
        scale: of the loss during backward.

    Returns:
        Per tensor, the norm of the difference.
    """
    parameters = list(problem.model.parameters())
    before = [parameter.detach().clone() for parameter in parameters]
    nudge(parameters, rounding, seed=seed)
    problem.model.zero_grad()
    accumulate(problem, batches, region, scale=scale)
    moved = copy_gradients(problem.model.named_parameters())
    problem.model.zero_grad()
    with torch.no_grad():
        for parameter, value in zip(parameters, before, strict=True):
            parameter.copy_(value)
    return {name: norm(moved[name] - gradient) for name, gradient in native.items()}


@torch.no_grad()
def nudge(parameters: Iterable[Tensor], rounding: float, *, seed: int) -> None:
    """Put every element one rounding off, up or down.

    Args:
        parameters: are changed.
        rounding: relative, at least that of their type.
        seed: of the directions.
    """
    generator = torch.Generator().manual_seed(seed)
    for parameter in parameters:
        drawn = torch.randint(0, 2, parameter.shape, generator=generator).to(parameter)
        parameter.mul_(1 + rounding * (2 * drawn - 1))


def scaled_reference(
    problem: Problem, batches: list[Batch], *, ranks: int, seed: int, region: Region
) -> tuple[float, Tensors, dict[str, float]]:
    """The first gradient and its spread at the largest of ``LOSS_SCALES`` at which none overflows.

    Args:
        problem: with its initial parameters.
        batches: the first step's micro-batches.
        ranks: that share the micro-batches. Each scales the mean loss of its own, which is so many
            times larger than their share in the mean of all: what overflows there must do so here.
        seed: of the permutations.
        region: that forward runs in.

    Returns:
        The scale for each rank, the gradient, and the spread.

    Raises:
        RuntimeError: some gradient is not finite at any scale.
    """
    for scale in LOSS_SCALES:
        problem.model.zero_grad()
        accumulate(problem, batches, region, scale=scale * ranks)
        native = copy_gradients(problem.model.named_parameters())
        if not all(map(math.isfinite, map(norm, native.values()))):
            continue
        spread = reordering_spread(
            problem, batches, native, seed=seed, region=region, scale=scale * ranks
        )
        if all(map(math.isfinite, spread.values())):
            return scale, native, spread
    raise RuntimeError(
        f"a gradient is not finite at any scale of the loss from {LOSS_SCALES[0]:g} down to "
        f"{LOSS_SCALES[-1]:g}: fp16 is too narrow for this model; use bf16-amp"
    )


def _shuffled(batch: Batch, generator: torch.Generator) -> Batch:
    order = torch.randperm(len(batch.targets), generator=generator).to(batch.targets.device)
    return Batch(tuple(part[order] for part in batch.inputs), batch.targets[order])
