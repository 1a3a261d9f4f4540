"""Proof that a strategy trains the same model as one device does.

Training is chaotic in low precision: sums in another order give other gradients, and after a few
steps another model. So two things are checked, both against the same samples on one device:

* in fp64, the losses of several steps, the first gradient, and that all ranks hold the same
  parameters: what a correct strategy can only miss by rounding in the 16th digit;
* in the case's own precision, the first gradient, tensor by tensor, against what mere reordering
  of the reference's samples does to that tensor.

The reference trains on the micro-batches of all ranks one by one and averages their gradients, so
that batch norm sees what each rank saw; or on the whole batch, for strategies whose batch norm
does so too.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from workloads.base import Batch, Problem, concatenate

STEPS = 3
"""Optimizer steps: enough for a wrong gradient to show in the losses of two more."""
MAX_BATCH = 4
"""Most samples of one micro-step: what a strategy does to gradients does not depend on it."""
TOLERANCE = 1e-6
"""For fp64. Three ranks of ResNet-152 stay below 3e-9 over four steps."""
REORDERINGS = 3
SPREAD_FACTOR = 10.0
"""Three reorderings underestimate the largest one; a missing or doubled gradient is off by 1."""
ROUNDINGS = 4.0
"""Least tolerance in units of the precision's rounding: a sum of a few terms."""

Gradients = dict[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class Reference:
    """What one device did, with gradients as means over the global batch."""

    losses: list[float]
    """Mean loss of each step, in fp64."""
    exact: Gradients
    """First gradient in fp64."""
    native: Gradients
    """First gradient in the case's own precision."""
    spread: dict[str, float]
    """Largest norm of a tensor's change under reordering, in the case's own precision."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The worst of several relative errors, and what it may be."""

    error: float
    tolerance: float
    where: str

    @property
    def passed(self) -> bool:
        """False for an error that is not a number, too."""
        return self.error <= self.tolerance

    def __str__(self) -> str:
        return f"{self.where} is off by {self.error:.1e}, {self.tolerance:.1e} is allowed"


def train_reference(
    problem: Problem, step_batches: Iterator[list[Batch]], steps: int
) -> tuple[list[float], Gradients]:
    """Train on one device; returns the loss of each step and the first step's gradient.

    Args:
        problem: in the precision wanted, with its initial parameters.
        step_batches: per step, its micro-batches.
        steps: optimizer steps.
    """
    parameters = dict(problem.model.named_parameters())
    optimizer = problem.make_optimizer(parameters.values())
    losses: list[float] = []
    first: Gradients = {}
    for batches in itertools.islice(step_batches, steps):
        losses.append(accumulate(problem, batches))
        first = first or copy_gradients(parameters.items())
        optimizer.step()
        optimizer.zero_grad()
    return losses, first


def accumulate(problem: Problem, batches: list[Batch]) -> float:
    """Add the gradient of the batches' mean loss to the parameters; returns that loss."""
    total = 0.0
    for batch in batches:
        loss = problem.loss(problem.model(*batch.inputs), batch) / len(batches)
        loss.backward()  # type: ignore[no-untyped-call]
        total += loss.item()
    return total


def copy_gradients(parameters: Iterable[tuple[str, Tensor]]) -> Gradients:
    """Gradients by name, copied to the host; parameters without one are left out."""
    return {
        name: parameter.grad.detach().cpu().clone()
        for name, parameter in parameters
        if parameter.grad is not None
    }


def reordering_spread(
    problem: Problem, batches: list[Batch], native: Gradients, *, seed: int
) -> dict[str, float]:
    """How far each gradient moves when the same samples are summed in another order.

    Args:
        problem: with its initial parameters, whose gradients are used and cleared.
        batches: the first step's micro-batches, in the order that gave ``native``.
        native: the gradient to compare with.
        seed: of the permutations.

    Returns:
        Per tensor, the largest norm of the difference over ``REORDERINGS`` permutations of the
        samples within each micro-batch, and of the micro-batches.
    """
    generator = torch.Generator().manual_seed(seed)
    spread = dict.fromkeys(native, 0.0)
    for _ in range(REORDERINGS):
        order = torch.randperm(len(batches), generator=generator).tolist()
        problem.model.zero_grad()
        accumulate(problem, [_shuffled(batches[index], generator) for index in order])
        moved = copy_gradients(problem.model.named_parameters())
        for name, gradient in native.items():
            spread[name] = max(spread[name], _norm(moved[name] - gradient))
    problem.model.zero_grad()
    return spread


def _shuffled(batch: Batch, generator: torch.Generator) -> Batch:
    order = torch.randperm(len(batch.targets), generator=generator).to(batch.targets.device)
    return Batch(tuple(part[order] for part in batch.inputs), batch.targets[order])


def step_batches(
    problem: Problem,
    *,
    shards: int,
    accumulation_steps: int,
    whole: bool,
) -> Iterator[list[Batch]]:
    """Per optimizer step, the micro-batches that all ranks together would see.

    Args:
        problem: whose batches to use.
        shards: number of ranks.
        accumulation_steps: micro-steps of each rank.
        whole: put what the ranks see at the same time into one batch.
    """
    streams = [problem.batches(shard, shards) for shard in range(shards)]
    while True:
        rounds = [[next(stream) for stream in streams] for _ in range(accumulation_steps)]
        if whole:
            yield [concatenate(batches) for batches in rounds]
        else:
            yield [batch for batches in rounds for batch in batches]


def compare_exact(
    losses: list[float], gradients: Iterable[tuple[str, Tensor]], reference: Reference
) -> Comparison:
    """fp64: the worst relative error among the losses of all steps and the first gradient."""
    assert len(losses) == len(reference.losses), f"{len(losses)} steps were trained"
    errors = {
        f"loss of step {step}": abs(loss - expected) / abs(expected)
        for step, (loss, expected) in enumerate(zip(losses, reference.losses, strict=True), start=1)
    }
    squares = {"difference": 0.0, "reference": 0.0}
    own = _comparable(gradients, reference.exact)
    if isinstance(own, Comparison):
        return own
    for name, gradient in own.items():
        squares["difference"] += _norm(gradient - reference.exact[name]) ** 2
        squares["reference"] += _norm(reference.exact[name]) ** 2
    errors["first gradient"] = math.sqrt(squares["difference"] / squares["reference"])
    return _worst({where: (error, TOLERANCE) for where, error in errors.items()})


def compare_native(
    gradients: Iterable[tuple[str, Tensor]], reference: Reference, *, rounding: float
) -> Comparison:
    """The case's precision: the worst tensor of the first gradient, against its own spread.

    Args:
        gradients: what the strategy synchronised.
        reference: what one device had.
        rounding: relative rounding error of the precision that computes, such as 1.2e-7.
    """
    sizes = {name: _norm(gradient) for name, gradient in reference.native.items()}
    typical = math.sqrt(sum(size**2 for size in sizes.values()) / max(1, len(sizes)))
    results: dict[str, tuple[float, float]] = {}
    own = _comparable(gradients, reference.native)
    if isinstance(own, Comparison):
        return own
    for name, gradient in own.items():
        scale = sizes[name] + rounding * typical  # a gradient that is all rounding has no scale
        allowed = SPREAD_FACTOR * reference.spread[name] + ROUNDINGS * rounding * scale
        difference = _norm(gradient - reference.native[name])
        results[f"gradient of {name}"] = (difference / scale, allowed / scale)
    return _worst(results)


def _comparable(
    gradients: Iterable[tuple[str, Tensor]], expected: Gradients
) -> Gradients | Comparison:
    """The gradients on the host and in the reference's type, or what makes them incomparable."""
    own = dict(gradients)
    for name, gradient in own.items():
        if name not in expected:
            return _incomparable(f"gradient of {name}, which one device does not have,")
        if gradient.shape != expected[name].shape:
            return _incomparable(f"gradient of {name} with shape {tuple(gradient.shape)}")
    missing = sorted(expected.keys() - own.keys())
    if missing:
        return _incomparable(f"gradient of {missing[0]}, which the strategy does not have,")
    return {name: one.detach().to("cpu", expected[name].dtype) for name, one in own.items()}


def _incomparable(where: str) -> Comparison:
    return Comparison(error=math.inf, tolerance=0.0, where=where)


def _worst(results: dict[str, tuple[float, float]]) -> Comparison:
    """The result that exceeds its tolerance by the largest factor; NaN is worse than any."""

    def excess(where: str) -> float:
        error, tolerance = results[where]
        return math.inf if math.isnan(error) else error / tolerance

    where = max(results, key=excess)
    error, tolerance = results[where]
    return Comparison(error=error, tolerance=tolerance, where=where)


def _norm(tensor: Tensor) -> float:
    return float(torch.linalg.vector_norm(tensor, dtype=torch.float64))


def save_reference(path: Path, reference: Reference) -> None:
    """Write a reference for the ranks that will compare with it."""
    torch.save(
        {
            "losses": reference.losses,
            "exact": reference.exact,
            "native": reference.native,
            "spread": reference.spread,
        },
        path,
    )


def load_reference(path: Path) -> Reference:
    """Read what ``save_reference`` wrote."""
    return Reference(**torch.load(path, weights_only=True, mmap=True))


def digest(tensors: Iterable[Tensor]) -> str:
    """Short hash of the bits of some tensors: equal only where all of them are."""
    state = hashlib.blake2b(digest_size=8)
    for tensor in tensors:
        plain = tensor.detach().cpu().contiguous().flatten()
        state.update(plain.view(torch.uint8).numpy().data)
    return state.hexdigest()
