"""Proof that a strategy trains the same model as one device does.

Training is chaotic in low precision: sums in another order give other gradients, and after a few
steps another model. So two things are checked, both against the same samples on one device:

* in fp64, the losses of several steps, the first gradient, the parameters after the last step, and
  that all ranks hold the same ones: what a correct strategy can only miss by rounding in the 16th
  digit;
* in the case's own precision, the first gradient, tensor by tensor, against what mere reordering
  of the reference's samples does to that tensor.

The reference trains on the micro-batches of all ranks one by one and averages their gradients, so
that batch norm sees what each rank saw; or on the whole batch, for strategies whose batch norm
does so too.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from workloads.base import Batch, Problem, concatenate

STEPS = 3
"""Optimizer steps: enough for a wrong gradient to show in the losses of two more."""
TOLERANCE = 1e-6
"""For fp64. Three ranks of ResNet-152 stay below 3e-9 over four steps."""
FINAL_TOLERANCE = 1e-3
"""For the last fp64 parameters, relative to their way: training amplifies rounding (6e-7 was seen
with three ranks of ResNet-152), while a wrong step is off by tenths, a missing decay by 1e-2."""
REORDERINGS = 3
SPREAD_FACTOR = 10.0
"""Three reorderings underestimate the largest one; a missing or doubled gradient is off by 1."""
ROUNDINGS = 4.0
"""Least tolerance in units of the precision's rounding: a sum of a few terms."""
FUSED_FACTOR = 4.0
"""A compiler rounds in other places than torch, forward and backward; one drawing of roundings
underestimates the largest."""
LOSS_SCALES = tuple(2.0**power for power in range(16, -33, -8))
"""Tried for the first gradient of a precision that needs a scaled loss, torch's own first: training
finds its scale by skipping steps, which a proof of one gradient cannot."""
SMALL = 1e-3
"""Share of a typical tensor's size below which a tensor is measured on that size, not its own: a
gradient that is zero but for rounding has no size of its own."""

Tensors = dict[str, Tensor]
Region = Callable[[], AbstractContextManager[object]]
"""Makes the region that forward runs in, such as autocast."""


@dataclass(frozen=True, kw_only=True)
class Reference:
    """What one device did, with gradients as means over the global batch."""

    losses: list[float]
    """Mean loss of each step, in fp64."""
    first: Tensors
    """First gradient in fp64."""
    final: Tensors
    """Parameters after the last step in fp64."""
    moved: dict[str, float]
    """Norm of each parameter's way from the first to the last."""
    native: Tensors
    """First gradient in the case's own precision."""
    spread: dict[str, float]
    """Largest norm of a tensor's change under reordering, in the case's own precision."""
    rounding_spread: dict[str, float] = field(default_factory=dict)
    """Norm of a tensor's change when every parameter is off by one rounding, likewise."""
    scale: float = 1.0
    """Of the loss of each rank's micro-batches, in the case's own precision."""
    settled: Tensors = field(default_factory=dict)
    """Gradient of a later step in fp64, for a strategy that takes steps to settle; else empty."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The worst of several relative errors, and what it may be."""

    error: float
    tolerance: float
    where: str
    loosest: float = 0.0
    """Largest tolerance of any tensor of more than negligible size: 1 would prove nothing."""

    @property
    def passed(self) -> bool:
        """False for an error that is not a number, too."""
        return self.error <= self.tolerance

    @property
    def excess(self) -> float:
        """Error in units of what is allowed; infinite for what is not a number."""
        if math.isnan(self.error):
            return math.inf
        if self.tolerance == 0:
            return 0.0 if self.error == 0 else math.inf
        return self.error / self.tolerance

    def __str__(self) -> str:
        return f"{self.where} is off by {self.error:.1e}, {self.tolerance:.1e} is allowed"


@dataclass(frozen=True, kw_only=True)
class Trained:
    """What training in fp64 left: the fields of the same names of ``Reference``."""

    losses: list[float]
    first: Tensors
    final: Tensors
    moved: dict[str, float]
    settled: Tensors


def train_reference(
    problem: Problem, step_batches: Iterator[list[Batch]], steps: int, *, settle_steps: int = 0
) -> Trained:
    """Train on one device in fp64.

    Args:
        problem: with its initial parameters.
        step_batches: per step, its micro-batches.
        steps: optimizer steps.
        settle_steps: after which one more gradient is kept, where there are any.
    """
    parameters = dict(problem.model.named_parameters())
    initial = {name: parameter.detach().clone() for name, parameter in parameters.items()}
    optimizer = problem.make_optimizer(parameters.values())
    losses: list[float] = []
    kept: dict[int, Tensors] = {}
    for step, batches in enumerate(itertools.islice(step_batches, steps)):
        losses.append(accumulate(problem, batches))
        if step in {0, settle_steps}:
            kept[step] = copy_gradients(parameters.items())
        optimizer.step()
        optimizer.zero_grad()
    final = {name: parameter.detach().cpu() for name, parameter in parameters.items()}
    moved = {name: norm(parameters[name].detach() - initial[name]) for name in parameters}
    settled = kept[settle_steps] if settle_steps > 0 else {}
    return Trained(losses=losses, first=kept[0], final=final, moved=moved, settled=settled)


def accumulate(
    problem: Problem,
    batches: list[Batch],
    region: Region = contextlib.nullcontext,
    *,
    scale: float = 1.0,
) -> float:
    """Add the gradient of the batches' mean loss to the parameters, which have none; returns it.

    Args:
        problem: whose model to use.
        batches: of one optimizer step.
        region: that forward runs in.
        scale: of the loss during backward, taken out of the gradients again: a power of two.
    """
    total = 0.0
    for batch in batches:
        with region():
            loss = problem.loss(problem.model(*batch.inputs), batch)
        (loss / len(batches) * scale).backward()  # type: ignore[no-untyped-call]
        total += loss.item() / len(batches)
    if scale != 1:
        for parameter in problem.model.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(1 / scale)
    return total


def copy_gradients(parameters: Iterable[tuple[str, Tensor]]) -> Tensors:
    """Tensors by name, copied to the host; parameters without one are left out."""
    return {
        name: dense(parameter.grad.detach()).cpu().clone()
        for name, parameter in parameters
        if parameter.grad is not None
    }


def dense(tensor: Tensor) -> Tensor:
    """The same values with all zeros written out."""
    return tensor.to_dense() if tensor.is_sparse else tensor


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
    generator = torch.Generator().manual_seed(seed)
    parameters = list(problem.model.parameters())
    before = [parameter.detach().clone() for parameter in parameters]
    with torch.no_grad():
        for parameter in parameters:
            drawn = torch.randint(0, 2, parameter.shape, generator=generator).to(parameter.device)
            parameter.mul_(1 + rounding * (2 * drawn - 1))
    problem.model.zero_grad()
    accumulate(problem, batches, region, scale=scale)
    moved = copy_gradients(problem.model.named_parameters())
    problem.model.zero_grad()
    with torch.no_grad():
        for parameter, value in zip(parameters, before, strict=True):
            parameter.copy_(value)
    return {name: norm(moved[name] - gradient) for name, gradient in native.items()}


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


def compare_losses(
    losses: list[float],
    reference: Reference,
    steps: slice = slice(None),
    *,
    tolerance: float = TOLERANCE,
) -> Comparison:
    """fp64: the worst relative error among the losses of some steps, all of them unless told."""
    assert len(losses) == len(reference.losses), f"{len(losses)} steps were trained"
    pairs = [*enumerate(zip(losses, reference.losses, strict=True), start=1)]
    return worst(
        Comparison(
            error=abs(loss - expected) / abs(expected),
            tolerance=tolerance,
            where=f"loss of step {step}",
        )
        for step, (loss, expected) in pairs[steps]
    )


def compare_first(gradients: Iterable[tuple[str, Tensor]], reference: Reference) -> Comparison:
    """fp64: the worst tensor of the first gradient, relative to its size."""
    return compare_gradients(gradients, reference.first, tolerance=TOLERANCE)


def compare_gradients(
    gradients: Iterable[tuple[str, Tensor]], expected: Tensors, *, tolerance: float
) -> Comparison:
    """The worst tensor of a gradient, relative to its size; all of them may be off alike."""
    sizes = {name: norm(gradient) for name, gradient in expected.items()}
    return _compare(gradients, expected, "gradient of", sizes, dict.fromkeys(sizes, tolerance))


def compare_final(parameters: Iterable[tuple[str, Tensor]], reference: Reference) -> Comparison:
    """fp64: the worst tensor of the last parameters, relative to how far training moved it."""
    tolerances = dict.fromkeys(reference.moved, FINAL_TOLERANCE)
    return _compare(parameters, reference.final, "parameter", reference.moved, tolerances)


def compare_native(
    gradients: Iterable[tuple[str, Tensor]],
    reference: Reference,
    *,
    rounding: float,
    by_design: float = 0.0,
    is_compiled: bool = False,
) -> Comparison:
    """The case's precision: the worst tensor of the first gradient, against its own spread.

    Args:
        gradients: what the strategy synchronised.
        reference: what one device had.
        rounding: relative rounding error of the precision that computes, such as 1.2e-7.
        by_design: what the strategy itself may change, relative.
        is_compiled: whether operations were fused, and so round in other places.
    """
    fused = reference.rounding_spread if is_compiled else {}
    sizes = {name: norm(gradient) for name, gradient in reference.native.items()}
    scales = _scales(sizes)
    tolerances = {
        name: SPREAD_FACTOR * reference.spread[name] / scales[name]
        + FUSED_FACTOR * fused.get(name, 0.0) / scales[name]
        + ROUNDINGS * rounding
        + by_design
        for name in sizes
    }
    return _compare(gradients, reference.native, "gradient of", sizes, tolerances)


def _scales(sizes: Mapping[str, float]) -> dict[str, float]:
    """What each tensor's error is relative to: its size, or a share of the typical one."""
    typical = math.sqrt(sum(size**2 for size in sizes.values()) / max(1, len(sizes)))
    return {name: max(size, SMALL * typical) for name, size in sizes.items()}


def _compare(
    own: Iterable[tuple[str, Tensor]],
    expected: Tensors,
    noun: str,
    sizes: Mapping[str, float],
    tolerances: Mapping[str, float],
) -> Comparison:
    """The worst of all tensors, taken one by one; all of them are taken, since that is collective.

    Args:
        own: name and value, as the strategy has them.
        expected: as one device has them.
        noun: what they are, for the message.
        sizes: norms that errors are relative to.
        tolerances: of the relative errors.
    """
    scales = _scales(sizes)
    found: list[Comparison] = []
    missing = set(expected)
    for name, tensor in own:
        missing.discard(name)
        if name not in expected or tensor.shape != expected[name].shape:
            found.append(_incomparable(f"{noun} {name}, which one device does not have like this,"))
            continue
        whole = dense(tensor.detach()).to("cpu", expected[name].dtype)
        difference = norm(whole - expected[name])
        found.append(
            Comparison(
                error=difference / scales[name] if scales[name] else difference,
                tolerance=tolerances[name],
                where=f"{noun} {name}",
                loosest=tolerances[name] if sizes[name] >= scales[name] else 0.0,
            )
        )
    found += [
        _incomparable(f"{noun} {name}, which the strategy does not have,") for name in missing
    ]
    return worst(found)


def _incomparable(where: str) -> Comparison:
    return Comparison(error=math.inf, tolerance=0.0, where=where)


def worst(comparisons: Iterable[Comparison]) -> Comparison:
    """The one that exceeds its tolerance by most, with the loosest tolerance of them all."""
    every = list(comparisons)
    worst_one = max(every, key=lambda one: one.excess)
    return replace(worst_one, loosest=max(one.loosest for one in every))


def norm(tensor: Tensor) -> float:
    """Euclidean norm, summed in fp64."""
    return float(torch.linalg.vector_norm(tensor, dtype=torch.float64))


def save_reference(path: Path, reference: Reference) -> None:
    """Write a reference for the ranks that will compare with it."""
    fields = {one.name: getattr(reference, one.name) for one in dataclasses.fields(reference)}
    torch.save(fields, path)


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
